"""Vertex programs, and the engine that reruns them on the active part of the graph."""
