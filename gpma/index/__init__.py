"""The vertex index: external ids, integers or strings, to dense vertices and back.

``vertex_index.py`` has its two sides. The one writer inserts, removes and grows without a pause; readers, in other
threads or processes, look ids up in the same arrays meanwhile, without locks, and never find anything wrong: at
most what the writer did last is unknown to them. Ids travel as columns (``ids.py``), which everybody may import:
they load no compiler, and that is why nothing is handed on here. This room knows nothing of the packed arrays.
"""
