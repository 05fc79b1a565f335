"""Protobuf's wire format, beside Google's library; its language; and that nothing in it can stop the stream."""

from __future__ import annotations

from typing import Any

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sampling import examples

from graphtide.daemon.ingest.captured import Path, Wanted
from graphtide.daemon.ingest.decode_columns import Bad
from graphtide.daemon.ingest.proto import NESTED_MAX, declared, message_type
from graphtide.daemon.ingest.protobuf import Layout, layout

KINDS = {
    "double": st.floats(allow_nan=False),
    "float": st.floats(width=32, allow_nan=False),
    "int32": st.integers(-(2**31), 2**31 - 1),
    "int64": st.integers(-(2**63), 2**63 - 1),
    "uint32": st.integers(0, 2**32 - 1),
    "uint64": st.integers(0, 2**64 - 1),
    "sint32": st.integers(-(2**31), 2**31 - 1),
    "sint64": st.integers(-(2**63), 2**63 - 1),
    "fixed32": st.integers(0, 2**32 - 1),
    "fixed64": st.integers(0, 2**64 - 1),
    "sfixed32": st.integers(-(2**31), 2**31 - 1),
    "sfixed64": st.integers(-(2**63), 2**63 - 1),
    "bool": st.booleans(),
    "string": st.text(max_size=5),
}
"""Each a field ``a_KIND`` of the message ``All``, from number 1 on; and ``b_KIND``, optional, from 101 on."""

SCALARS = "\n".join(
    f"{kind} a_{kind} = {number}; optional {kind} b_{kind} = {100 + number};"
    for number, kind in enumerate(KINDS, 1)
)
TEXT = f"""
// a comment with "quotes" and {{ braces
syntax = "proto3";
package tests.all;
import "google/protobuf/timestamp.proto";
import public 'other/kind.proto';
option java_package = "com.example;{{";
option (custom) = {{ a: 1; b {{ c: "}}" }} }};
/* a comment over
   lines */
message First {{}}
message All {{
  reserved 200 to 300, 400; reserved "old", 'older';
  extensions 500 to max;
  {SCALARS}
  Inner inner = 50 [(rules).required = true, deprecated = false, (more) = {{ a: [1, 2] }}];
  repeated Inner inners = 51;
  map<string, Inner> by_name = 52;
  other.kind.Kind kind = 53;
  .google.protobuf.Timestamp at = 54;
  oneof choice {{ option (x) = 1; int64 left = 55; string right = 56; }}
  repeated int32 many = 57;
  bytes raw = 58;
  message Inner {{
    enum Own {{ option allow_alias = true; NONE = 0; SOME = 0x2 [deprecated = true]; ALSO = 2; LESS = -1; }}
    Own own = 1; int64 number = 2; All again = 3;
  }}
  ;
}}
service Nothing {{ rpc Do (All) returns (stream All) {{ option (x) = "y"; }} rpc Other (All) returns (All); }}
extend First {{ int32 more = 9; }}
"""
KIND = 'syntax = "proto3"; package other.kind; enum Kind { UNKNOWN = 0; KNOWN = 1; }'
ALL = (1,)
TYPES = declared(TEXT, [KIND])


def descriptor() -> Any:
    """The same as the text, as Google's library has it."""
    kinds = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="all.proto", package="tests.all", syntax="proto3")
    file.message_type.add(name="First")
    all_ = file.message_type.add(name="All")

    def field(name: str, number: int, kind: int, **more: Any) -> Any:
        more.setdefault("label", kinds.LABEL_OPTIONAL)
        return all_.field.add(name=name, number=number, type=kind, **more)

    for number, kind in enumerate(KINDS, 1):
        code = getattr(kinds, f"TYPE_{kind.upper()}")
        field(f"a_{kind}", number, code)
        all_.oneof_decl.add(name=f"_b_{kind}")
    for number, kind in enumerate(KINDS, 1):
        code = getattr(kinds, f"TYPE_{kind.upper()}")
        field(f"b_{kind}", 100 + number, code, proto3_optional=True, oneof_index=number - 1)
    inner = ".tests.all.All.Inner"
    field("inner", 50, kinds.TYPE_MESSAGE, type_name=inner)
    field("inners", 51, kinds.TYPE_MESSAGE, type_name=inner, label=kinds.LABEL_REPEATED)
    field("kind", 53, kinds.TYPE_INT32)
    field("many", 57, kinds.TYPE_INT32, label=kinds.LABEL_REPEATED)
    field("left", 55, kinds.TYPE_INT64)
    nested = all_.nested_type.add(name="Inner")
    nested.field.add(name="own", number=1, type=kinds.TYPE_INT32, label=kinds.LABEL_OPTIONAL)
    nested.field.add(name="number", number=2, type=kinds.TYPE_INT64, label=kinds.LABEL_OPTIONAL)
    nested.field.add(
        name="again", number=3, type=kinds.TYPE_MESSAGE, type_name=".tests.all.All", label=kinds.LABEL_OPTIONAL
    )
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("tests.all.All"))


Message = descriptor()


def laid_out(*paths: Path, which: tuple[int, ...] = ALL, time: Path | None = None) -> Layout:
    return layout(TYPES, which, Wanted(paths, time))


EVERY: list[Path] = [(f"{letter}_{kind}",) for letter in "ab" for kind in KINDS]


@settings(deadline=None, max_examples=examples(100), suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.fixed_dictionaries({}, optional={name: KINDS[name[2:]] for (name,) in EVERY}), max_size=4))
def test_reads_scalars_as_google_wrote_them(values: list[dict[str, Any]]) -> None:
    """What was not set is what a reader of Google's would get; where that can be told, it is null."""
    found, bad = laid_out(*EVERY).read([Message(**value).SerializeToString() for value in values])
    assert not bad
    for document, value in zip(found.documents(), values, strict=True):
        message = Message(**value)
        for (name,) in EVERY:
            expected = getattr(message, name) if name[0] == "a" or name in value else None
            assert document[name] == expected and type(document[name]) is type(expected), name


def test_messages_within_messages() -> None:
    paths: list[Path] = [
        ("inner", "own"),
        ("inner", "number"),
        ("inner", "again", "inner", "number"),
        ("inners", "number"),
        ("by_name",),
        ("kind",),
        ("left",),
        ("missing", "too"),
    ]
    deep = Message(inner={"again": {"inner": {"number": 7}}})
    records = [
        Message(),
        Message(inner={"own": 2, "number": 5}, kind=1, left=3),
        Message(inner={"own": 9}, kind=9, inners=[{"number": 1}]),
        deep,
    ]
    # Of a message that comes twice the parts are put together, the last of each.
    twice = b"".join(Message(inner=inner).SerializeToString() for inner in ({"number": 5, "own": 1}, {"own": -1}))
    found, bad = laid_out(*paths).read([*(one.SerializeToString() for one in records), twice])
    assert not bad
    documents = found.documents()
    assert documents[0] == {"inner": None, "inners": None, "by_name": None, "kind": "UNKNOWN", "left": None}
    inner = {"own": "SOME", "number": 5, "again": None}
    assert documents[1] == {"inner": inner, "inners": None, "by_name": None, "kind": "KNOWN", "left": 3}
    assert documents[2]["inner"]["own"] == 9 and documents[2]["kind"] == 9
    assert repr(documents[2]["inners"]) == "a list"
    assert documents[3]["inner"]["again"] == {"inner": {"number": 7}}
    assert documents[4]["inner"] == {"own": "LESS", "number": 5, "again": None}


def test_times() -> None:
    """Whole milliseconds, whether they are a number or a Timestamp."""
    stamp = b"\xb2\x03\x06" + b"\x08\x05" + b"\x10\x80\x89\x7a"
    found, bad = laid_out(("at",), time=("at",)).read([stamp, b"", b"\xb2\x03\x00"])
    assert not bad and found.documents() == [{"at": 5002}, {"at": None}, {"at": 0}]
    found, _ = laid_out(("a_int64",), time=("a_int64",)).read([Message(a_int64=5).SerializeToString()])
    assert found.documents() == [{"a_int64": 5}]


def test_every_byte_that_is_missing_is_noticed() -> None:
    """Or what is left is a whole message of fewer fields."""
    whole = Message(inner={"number": 300}, a_double=1.5, a_fixed32=7, a_string="x" * 200).SerializeToString()
    plan = laid_out(("inner", "number"), ("a_double",), ("a_string",))
    found, bad = plan.read([whole[:cut] for cut in range(len(whole))] + [whole])
    for cut in range(len(whole)):
        try:
            Message.FromString(whole[:cut])
        except Exception:
            assert cut in bad
        else:
            assert cut not in bad
    assert found.documents()[-1] == {"inner": {"number": 300}, "a_double": 1.5, "a_string": "x" * 200}


WRONG = [
    (b"\x00\x00", "a field of number 0, or of an unknown wire type"),
    (b"\x0e", "a field of number 0, or of an unknown wire type"),
    (b"\x21\x00", "it ends too early"),
    (b"\x20" + b"\xff" * 9 + b"\x02", "a number of more than 64 bits"),
    (b"\x72\x05abc", "a length past its end"),
    (b"\x72" + b"\xff" * 9 + b"\x01", "a length past its end"),
    (b"\x22\x01x", "a field that has another type"),
    (b"\xc4\x3e", "the end of a group that has not begun"),
    (b"\xc3\x3e\x08", "it ends too early"),
]


@pytest.mark.parametrize(("record", "why"), WRONG)
def test_exact_reasons(record: bytes, why: str) -> None:
    _, bad = laid_out(("a_int64",), ("a_string",)).read([record])
    assert bad[0].detail == f"no Protobuf of this schema: {why}"


def test_groups_are_passed_over() -> None:
    """Also what looks like one of our fields within them."""
    group = b"\xc3\x3e" + b"\x20\x09" + b"\xcb\x3e\x72\x01x\xcc\x3e" + b"\xc4\x3e"
    found, bad = laid_out(("a_int64",)).read([group + b"\x20\x05" + group])
    assert not bad and found.documents() == [{"a_int64": 5}]


@pytest.mark.parametrize(
    ("head", "which"),
    [
        (b"\0", (0,)),
        (b"\x02\x00", (0,)),
        (b"\x02\x02", (1,)),
        (b"\x04\x02\x00", (1, 0)),
        (b"\x02\x80\x02", (128,)),
    ],
)
def test_which_message_type_it_is(head: bytes, which: tuple[int, ...]) -> None:
    assert message_type(b"-----" + head + b"rest", 5) == (which, 5 + len(head))


@pytest.mark.parametrize("head", [b"", b"\x02", b"\x04\x00", b"\x01", b"\xff" * 9, b"\x84\x01" + b"\0" * 80])
def test_no_message_type(head: bytes) -> None:
    with pytest.raises(Bad) as caught:
        message_type(b"-----" + head, 5)
    assert caught.value.reason == "malformed"


def test_message_types_by_place() -> None:
    plan = laid_out(("number",), which=(1, 0))
    assert plan.read([b"\x10\x07"])[0].documents() == [{"number": 7}]
    for which in ((2,), (1, 1), (-1,), (0, 0)):
        with pytest.raises(Bad, match="the schema has no message type"):
            laid_out(("number",), which=which)


def test_older_syntax() -> None:
    """Without ``syntax`` it is proto2: what was not set is null. Names may be those of keywords."""
    text = """
    message A {
      required int64 src = 1; optional string dst = 2 [default = "none; }"];
      optional group Result = 3 { optional int32 inner = 1; }
      optional int32 message_count = 4; optional B option_b = 5;
      message C { optional int64 x = 1; }
    }
    message B { optional A.C c = 1; optional int64 message = 2; }
    """
    plan = layout(declared(text, ()), (0,), Wanted([("src",), ("dst",), ("result",), ("option_b", "c", "x")]))
    found, bad = plan.read([b"\x08\x05", b"\x08\x05\x1b\x08\x01\x1c\x2a\x04\x0a\x02\x08\x07"])
    assert not bad
    documents = found.documents()
    assert documents[0] == {"src": 5, "dst": None, "result": None, "option_b": None}
    assert repr(documents[1].pop("result")) == "a list"
    assert documents[1] == {"src": 5, "dst": None, "option_b": {"c": {"x": 7}}}
    assert [inner.name for inner in declared(text, ()).message((0,)).inner] == ["A.Result", "A.C"]


BAD_SCHEMAS = [
    ("message A {", "ends too early"),
    ("message A { int64 x 1; }", "has '1' where = must stand"),
    ("message A { int64 x = y; }", "has 'y' where a number must stand"),
    ("message A { int64 x = 1", "ends too early"),
    ("message A { int64 x = 0; }", "has a field of number 0"),
    ("message A { int64 x = 9223372036854775808; }", "has a field of number 9223372036854775808"),
    ("message A ; }", "has ';' where { must stand"),
    ("\0", "has '\\x00', which is not of its language"),
    ('syntax = "proto3', "has '\"proto3', which is not of its language"),
    ("/* no end", "has '* no end', which is not of its language"),
    ("message A {" * (NESTED_MAX + 1), f"has more than {NESTED_MAX} messages within each other"),
]


@pytest.mark.parametrize(("text", "why"), BAD_SCHEMAS)
def test_schemas_that_are_of_no_use(text: str, why: str) -> None:
    with pytest.raises(Bad) as caught:
        declared(text, ())
    assert (caught.value.reason, caught.value.detail) == ("bad-schema", f"the Protobuf schema {why}")


@settings(deadline=None, max_examples=examples(150))
@given(st.lists(st.binary(max_size=60), min_size=1, max_size=4))
def test_no_bytes_can_stop_the_stream(records: list[bytes]) -> None:
    plan = laid_out(("inner", "again", "inner", "number"), *EVERY)
    found, bad = plan.read(records)
    for row, document in enumerate(found.documents()):
        again, alone = plan.read([records[row]])
        assert (row in bad) == (0 in alone)
        assert repr(document) == repr(again.documents()[0]) or row in bad


@settings(deadline=None, max_examples=examples(100))
@given(st.lists(st.sampled_from(TEXT.split()), max_size=60).map(" ".join))
def test_no_schema_can_stop_the_stream(text: str) -> None:
    try:
        declared(text, ())
    except Bad as bad:
        if bad.reason != "bad-schema":
            raise
