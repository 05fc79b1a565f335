"""Vertex programs, and the engine that reruns them on the active part of the graph.

A room a family: ``paths/``, ``counts/``, ``forest/``, ``walks/``, ``triangles/``, ``cores/``; ``audit/`` proves
what they keep. ``program.py`` is the form of all, ``links.py`` a view without directions that families may share,
and ``registry.py`` knows every kind by its name.
"""
