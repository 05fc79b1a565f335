"""Clients of a graphtide daemon: ``Client``, ``AsyncClient``, what they answer, and the ``errors`` they raise."""

from . import errors
from .client import (
    AsyncClient,
    Change,
    Checkpoint,
    Client,
    Component,
    Degree,
    DegreeDistribution,
    EdgeFlags,
    Edges,
    Egonet,
    Histogram,
    Info,
    Neighbors,
    Path,
    Reach,
    Result,
    Top,
    Values,
    ValuesByProgram,
)

__version__ = "0.1.0"
__all__ = [
    "AsyncClient",
    "Change",
    "Checkpoint",
    "Client",
    "Component",
    "Degree",
    "DegreeDistribution",
    "EdgeFlags",
    "Edges",
    "Egonet",
    "Histogram",
    "Info",
    "Neighbors",
    "Path",
    "Reach",
    "Result",
    "Top",
    "Values",
    "ValuesByProgram",
    "errors",
]
