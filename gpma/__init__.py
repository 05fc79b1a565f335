"""The packed memory array on one processor, and the vertex index."""

from . import runtime

runtime.configure()
