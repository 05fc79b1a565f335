"""What may help where a file is not read as updates: it is said behind what is wrong.

Most such files come from other programs: columns have other names, ids are texts, integers with gaps are floats,
the file is packed or of another format.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from ..ingest.decode_columns import Reason
from ..records.stream import BadRecord

OTHER_NAMES = "Where they have other names, give these: --column src=NAME --column dst=NAME"
"""What may help where columns have other names. Who has no such options says something else instead of this and
of the next."""
TEXT_IDS = "; texts are ids where --vertex-ids, or graph.vertex_ids, is string"
_NO_HEADER = f"; if it is a header line, it must begin with #, or name src and dst. {OTHER_NAMES}"
_PUT_BEFORE = "(echo src,dst; cat FILE) | graphtide ... -"
_COMMAS = f"; lines with commas are read where the first line names their columns: {_PUT_BEFORE}"
_BY_NAME = "; by its name the file is an edge list: .csv, .tsv, .json, .parquet and .arrow are read otherwise"
_DOCUMENTS = "; each line is an object of its own (`jq -c` writes such, `jq -c '.[]'` of a list)"
_GAPS = "; of integers with gaps pandas makes floats: leave those rows out, then .astype('int64') the columns"
_DATES = "; columns of dates are read from .parquet and .arrow"
_OTHER_OPS = '; what stands for which: --column op=op --column \'op_values={insert=["add"], delete=["remove"]}\''
_HOLDS_A_WORD = re.compile(r"(src|dst) holds '(?![\d.eE+-]+')[^']*[^\W\d_]")
_HOLDS_A_FLOAT = re.compile(r"(src|dst) holds '?-?\d+\.0'?;")
_HEADER_LIKE = re.compile(rb"[A-Za-z_][^,;|\t{]*[,;|\t]")
_IS_A_DATE = re.compile(r"ts is '\d{4}-\d\d-\d\d")
_COLUMN_OF_TEXTS = re.compile(r"(src|dst) is a column of '(large_)?(string|utf8|dictionary)")
_COLUMN_OF_FLOATS = re.compile(r"(src|dst) is a column of '(double|float)")
_SAVE = "save its edges as .csv or .parquet, with the columns src and dst"
_UNPACK = "unpack it first, or give it a name that ends in"
_NO_TEXT: Mapping[bytes, str] = {
    rb"\x1f\x8b": f"it is compressed by gzip; {_UNPACK} .gz",
    rb"\xfd7zXZ\0": f"it is compressed by xz; {_UNPACK} .xz",
    rb"\x28\xb5\x2f\xfd": f"it is compressed by zstd; {_UNPACK} .zst",
    rb"BZh[1-9]1AY&SY": f"it is compressed by bzip2; {_UNPACK} .bz2",
    rb"PAR1[\0-\x08\x0e-\x1f\x80-\xff]": "it is Parquet; give it a name that ends in .parquet",
    rb"ARROW1\0\0": "it is an Arrow file; give it a name that ends in .arrow",
    rb"PK\x03\x04": "it is a zip archive (as .xlsx and .npz are); unpack it, or save its edges as .csv",
    rb"\x93NUMPY": "it is an array of NumPy; give it a name that ends in .npy",
    rb"(?s).{257}ustar": "it is a tar archive; unpack it",
    rb"\x80[\x02-\x05]": f"it is a pickle of Python; {_SAVE}",
    rb"(?i)(\xef\xbb\xbf)?<(\?xml|graphml|gexf)": f"it is XML (as GraphML and GEXF are); {_SAVE}",
    rb"(?i)\*(vertices|network)": f"it is of Pajek; {_SAVE}",
    rb"\xff\xfe|\xfe\xff": "it is UTF-16: iconv -f UTF-16 -t UTF-8",
}
"""By how a file begins: what it is instead of text, and what helps."""


def instead_of_text(beginning: bytes) -> str | None:
    """What a file is that begins so, and what helps; None: it may be text."""
    return next((what for known, what in _NO_TEXT.items() if re.match(known, beginning)), None)


def on_line(encoding: str, bad: BadRecord, *, is_first: bool) -> str:
    """What may help where a line of a file of this encoding is bad: it is as in other programs' files."""
    reason, line = Reason(bad.reason), bad.value.lstrip()
    if encoding == "el" and is_first and bad.detail.startswith("src holds"):
        return f"{TEXT_IDS}{_NO_HEADER}"
    if encoding == "el" and is_first and _HEADER_LIKE.match(line):
        return _NO_HEADER
    if reason is Reason.BAD_ID and _HOLDS_A_WORD.match(bad.detail):
        return TEXT_IDS
    if reason is Reason.BAD_ID and _HOLDS_A_FLOAT.match(bad.detail):
        return _GAPS
    if reason is Reason.BAD_OP and "op_values" not in bad.detail:
        return _OTHER_OPS
    if reason is Reason.BAD_TIMESTAMP and _IS_A_DATE.match(bad.detail):
        return _DATES
    if encoding == "el" and reason is Reason.BAD_COLUMN:
        return _COMMAS if b"," in line else _BY_NAME if is_first else ""
    if encoding == "json" and reason is Reason.BAD_COLUMN and " has no " in bad.detail:
        return f". {OTHER_NAMES}"
    if encoding == "json" and reason is Reason.MALFORMED and (line.startswith(b"[") or line.rstrip() == b"{"):
        return _DOCUMENTS
    return ""


def on_header(header: str, *, named: bool) -> str:
    """What may help where this is no header line of CSV. ``named``: columns have names of their own."""
    if "\0" in header:
        return ". It may be UTF-16: iconv -f UTF-16 -t UTF-8"
    if "\r" in header.removesuffix("\r"):
        return ". Lines must end with a line feed: tr '\\r' '\\n'"
    if not re.search("[A-Za-z]", header):
        return f". Put such a line before the first: {_PUT_BEFORE}"
    return "" if named else f". {OTHER_NAMES}"


def on_column(detail: str, *, vertex_ids: str, named: bool) -> str:
    """What may help where a column of a table is bad, for this reason. ``named``: as ``on_header``."""
    if vertex_ids == "int" and _COLUMN_OF_TEXTS.match(detail):
        return TEXT_IDS
    if detail.startswith("the columns must be src") and not named:
        return f". {OTHER_NAMES}"
    return _GAPS if _COLUMN_OF_FLOATS.match(detail) else ""
