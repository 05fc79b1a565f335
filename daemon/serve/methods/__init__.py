"""The requests that the query server answers: one module for each theme, one function for each request."""

# Each registers its requests.
from . import at_run_time, changes, connection, groups, operating, paths, ranking, reading, topology
from .registry import METHODS, answer

__all__ = [
    "METHODS",
    "answer",
    "at_run_time",
    "changes",
    "connection",
    "groups",
    "operating",
    "paths",
    "ranking",
    "reading",
    "topology",
]
