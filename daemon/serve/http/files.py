"""The files that the HTTP door gives to anyone: the page, and the description of the requests."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from . import openapi

PAGE = {
    "/": ("page.html", "text/html; charset=utf-8"),
    "/page.css": ("page.css", "text/css; charset=utf-8"),
    "/page.js": ("page.js", "text/javascript; charset=utf-8"),
    "/icon.svg": ("icon.svg", "image/svg+xml"),
}


@dataclass(frozen=True, slots=True)
class File:
    """What is in it, and what that is."""

    content: bytes
    media_type: str


def find_file(path: str) -> File | None:
    """The file at this path of the server, if there is one."""
    if path == "/v1/openapi.json":
        return _description()
    return _page_file(path) if path in PAGE else None


@cache
def _page_file(path: str) -> File:
    name, media_type = PAGE[path]
    return File((files(__package__) / "page" / name).read_bytes(), media_type)


@cache
def _description() -> File:
    return File(openapi.text().encode(), "application/json")
