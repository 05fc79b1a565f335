"""MatrixMarket files are edge lists with a preamble: comments, of which the first tells them, and a line of sizes.

https://math.nist.gov/MatrixMarket/formats.html. A file is read in blocks of whole lines, and a preamble may be
longer than one: so each block is told whether it begins within it, and says whether the next one does.

Files that are no graph are refused by their first line, the banner, which says what they hold.
"""

from __future__ import annotations

import codecs

from .decode_text import numbered_lines
from .spool_content import Content

_BANNER = b"%%MatrixMarket"
_HEAD_BYTES = len(codecs.BOM_UTF8) + len(_BANNER)
_NO_TEXT = codecs.BOM_UTF8 + b" \t"
"""What may stand before the text of a line: the first has, perhaps, a byte-order mark, or blanks for it."""
_PIECE_BYTES = 1 << 20
_LOOKED_AT = 200
"""Bytes of a banner, which is shorter."""
_FIELDS, _SYMMETRIES = ("real", "integer", "pattern"), ("general", "symmetric")


def begins(value: bytes) -> bool:
    """Whether this is the beginning of such a file."""
    return value[:_HEAD_BYTES].lstrip(_NO_TEXT).startswith(_BANNER)


def refusal(value: bytes, *, directed: bool) -> str | None:
    """Why a file that begins so is none of edges; None: it is one. ``directed``: those of a directed graph, whose
    other half nobody adds."""
    banner = value[:_LOOKED_AT].lstrip(_NO_TEXT).partition(b"\n")[0].decode(errors="replace").strip()
    match banner.lower().split()[1:]:
        case ["matrix", "coordinate", field, symmetry] if field in _FIELDS and symmetry in _SYMMETRIES:
            if symmetry == "symmetric" and directed:
                return (
                    "a symmetric MatrixMarket file holds half of the edges of a directed graph; "
                    "`graphtide produce` and `graphtide load` add the others"
                )
            return None
    return (
        f"of MatrixMarket 'matrix coordinate' is read, of {', '.join(_FIELDS[:-1])} or {_FIELDS[-1]}, "
        f"{' or '.join(_SYMMETRIES)}; this is {banner!r}"
    )


def is_symmetric(value: bytes) -> bool:
    """Whether a file that begins so, and is not refused, holds one half of a symmetric matrix."""
    return value[:_LOOKED_AT].partition(b"\n")[0].lower().split()[-1] == b"symmetric"


def edges_promised(value: bytes) -> int | None:
    """How many edges the line of sizes, the last before these, promises; None: it is none."""
    sizes = value[: edges_begin(value)].rstrip().rpartition(b"\n")[2].split()
    return int(sizes[2]) if len(sizes) == 3 and all(map(bytes.isdigit, sizes)) else None


def edges_begin(value: bytes) -> int | None:
    """Where, in a block that begins within the preamble, the edges do.

    None: the block ends before.
    """
    for start, end in numbered_lines(value):
        if not value[start:end].lstrip(_NO_TEXT).startswith(b"%"):
            return min(len(value), value.find(b"\n", end) + 1 or len(value))
    return None


def next_is_inside(value: bytes, *, first: bool, inside: bool) -> bool:
    """Whether the block after this one begins within the preamble. ``first``: this one begins its file; else it
    begins within the preamble or not (``inside``)."""
    return (begins(value) if first else inside) and edges_begin(value) is None


def is_inside(content: Content, offset: int) -> bool:
    """Whether this byte of a file, at which a line begins, is within its preamble; reads on from byte 0."""
    if not begins(content.peek(_HEAD_BYTES)):
        return False
    rest = b""  # the line that is not whole yet: no more of it than what tells it from others
    while offset > 0 and (piece := content.peek(min(offset, _PIECE_BYTES))):
        content.advance(len(piece))
        offset -= len(piece)
        text = rest + piece
        stop = text.rfind(b"\n") + 1
        if edges_begin(text[:stop]) is not None:
            return False
        rest = text[stop:]
        if rest.lstrip(_NO_TEXT).startswith(b"%"):
            rest = b"%"
        elif rest.lstrip(_NO_TEXT).strip():
            return False
    return True
