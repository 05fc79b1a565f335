"""The audit: proof, slice by slice, that results and storage are what the graph says.

``auditor.py`` goes over all programs, within a share of the time, and over what readers find of them;
``storage.py`` over the packed arrays. What a program's own slices prove stands with the program. An audit changes
nothing: it returns violations, and the daemon decides what to do about them.
"""
