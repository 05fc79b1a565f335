"""Programs of one's own: docs/programs.md as written, the rules that functors must keep, and the kernel cache."""

from __future__ import annotations

import contextlib
import importlib
import io
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numba as nb
import numpy as np
import pytest
from running import Daemon

from graphtide.compute import registry
from graphtide.compute.paths import NO_OFFER, SOURCE, Functors, PathProgram
from graphtide.compute.paths import form as path_form
from graphtide.compute.paths.form import check
from graphtide.compute.paths.templates import digest, specialise, step
from graphtide.compute.program import Parameter, Program, ProgramError, parse_sources
from graphtide.daemon.config.load import from_tables, load
from graphtide.daemon.config.sections.limits import LimitsConfig
from graphtide.daemon.config.settings import Config
from graphtide.daemon.engine.ad_hoc import AdHoc
from graphtide.daemon.engine.beside import Beside, GivenUp
from graphtide.daemon.errors import ConfigError, LimitExceeded
from graphtide.daemon.records.asked import Unwanted
from graphtide.daemon.records.encode import encode_msgpack
from graphtide.daemon.records.spool_format import SpoolWriter
from graphtide.daemon.serve.http.arguments import from_json
from graphtide.daemon.tools.program_tables import written_anew
from graphtide.daemon.warm_up import warm_up
from graphtide.gpma import intrinsics
from graphtide.gpma.team import share
from graphtide.ops.metrics import Metrics

PAGE = (Path(__file__).resolve().parents[1] / "docs" / "programs.md").read_text("utf-8")


def block(language: str, holds: str) -> str:
    blocks = re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    (found,) = [block for block in blocks if holds in block]
    return str(found)


@pytest.fixture
def other_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The page's program of another form as the module ``my_other_programs``, for processes of its own."""
    (tmp_path / "my_other_programs.py").write_text(block("python", "class Mutual"))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return tmp_path


@pytest.fixture
def own_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The page's programs as the module ``my_programs``, forgotten afterwards."""
    (tmp_path / "my_programs.py").write_text(block("python", "class Within"))
    monkeypatch.syspath_prepend(tmp_path)
    before = dict(registry.KINDS)
    yield tmp_path
    registry.KINDS.clear()
    registry.KINDS.update(before)
    sys.modules.pop("my_programs", None)


# -- the page -------------------------------------------------------------------------------------------------


def test_the_tables_are_what_the_programs_declare() -> None:
    """python -m graphtide.daemon.tools.program_tables docs/programs.md"""
    assert written_anew(PAGE) == PAGE
    kinds = [kind for kind, cls in registry.KINDS.items() if cls.__module__.startswith("graphtide.")]
    listed = re.findall(r"^\| `(\w+)` \|", PAGE, re.MULTILINE)
    assert listed[: len(kinds)] == kinds
    assert listed[len(kinds) :] == [kind for kind in kinds if issubclass(registry.KINDS[kind], PathProgram)]


@pytest.mark.usefixtures("own_module")
def test_the_example_prints_what_the_page_says() -> None:
    importlib.import_module("my_programs")
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(block("python", "engine.start()"), "programs.md", "exec"), {})
    assert printed.getvalue() == block("text", "fading")


@pytest.mark.usefixtures("own_module")
def test_no_more_programs_are_compiled_than_a_process_can_keep(monkeypatch: pytest.MonkeyPatch) -> None:
    """Machine code cannot be given back, and clients choose parameters. Those that are there go on to be made."""
    importlib.import_module("my_programs")
    registry.make_program("within", None, {"source": 0, "hops": 971})
    monkeypatch.setattr(path_form, "FORMS_MAX", len(path_form._known) + 1)
    registry.make_program("within", None, {"source": 0, "hops": 972})
    words = "within: compiled code of .* other functions or parameters is there, .* after a restart"
    with pytest.raises(ProgramError, match=words):
        registry.make_program("within", None, {"source": 0, "hops": 973})
    for kind, given in (("within", {"hops": 971}), ("within", {"hops": 972}), ("pagerank", {"damping": 0.5})):
        registry.make_program(kind, None, given if kind == "pagerank" else {"source": 0, **given})


@pytest.mark.usefixtures("own_module")
def test_who_has_had_his_share_compiled_leaves_the_rest_to_others() -> None:
    importlib.import_module("my_programs")
    registry.make_program("within", None, {"source": 0, "hops": 961})
    allowed = path_form.FormsAllowed(1)
    with allowed.spending():
        for hops in (961, 962, 962):  # the first is there
            registry.make_program("within", None, {"source": 0, "hops": hops})
        with pytest.raises(path_form.FormsSpent, match="within: no program has had"):
            registry.make_program("within", None, {"source": 0, "hops": 963})
        registry.make_program("within", None, {"source": 0, "hops": 962})
    registry.make_program("within", None, {"source": 0, "hops": 963})
    with allowed.spending():
        registry.make_program("within", None, {"source": 0, "hops": 963})
    field = LimitsConfig.model_fields["ad_hoc_compiled_max"]
    assert field.default < path_form.FORMS_MAX and f"most {path_form.FORMS_MAX}:" in str(field.description)


@pytest.mark.usefixtures("own_module")
def test_clients_cannot_have_the_last_program_compiled_that_there_is_room_for() -> None:
    importlib.import_module("my_programs")

    def ready(kind: str, given: Any, given_up: Unwanted) -> None:
        raise GivenUp("it may be computed")

    pipeline: Any = SimpleNamespace(graph=SimpleNamespace(weight_domain="non-negative"), between=None)
    nothing: Any = None
    beside = Beside(pipeline, nothing, lambda ids: np.zeros(len(ids), np.uint32), nothing, ready, 1)
    ad_hoc = AdHoc(beside, Metrics(), 1, 2)

    def compute(hops: int, *, by_admin: bool = False) -> None:
        given = {"source": 0, "hops": hops}
        asked = {"program": "within", "parameters": given, "top": 0, "by_admin": by_admin}
        ad_hoc.compute(asked, Unwanted())

    for hops in (951, 952, 951, 952):
        with pytest.raises(GivenUp):
            compute(hops)
    words = (
        "within has functions with parameters .* and 2 such were compiled .*: ask with parameters of before, or"
    )
    with pytest.raises(LimitExceeded, match=words) as caught:
        compute(953)
    assert caught.value.detail == {"ad_hoc_compiled_max": 2, "parameter": "parameters"}
    with pytest.raises(GivenUp):
        compute(953, by_admin=True)
    with pytest.raises(GivenUp):
        compute(953)


def test_sources_may_have_any_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who gives a program the least that it needs, and who reads ids in a request, know them by their kind."""
    seeds = Parameter("seeds", "where to start", parse_sources)
    monkeypatch.setitem(
        registry.KINDS, "seeded", type("Seeded", (Program,), {"kind": "seeded", "parameters": (seeds,)})
    )
    assert ("seeded", {"seeds": 0}) in registry.least_programs(weighted=False)
    assert from_json("compute", b'{"program": "seeded", "seeds": ["1", 2]}', "int")["seeds"] == [1, 2]


@pytest.mark.usefixtures("own_module")
def test_the_example_takes_no_parameters_but_right_ones() -> None:
    importlib.import_module("my_programs")
    for kind, name, words in (("within", "hops", "a whole number"), ("fading", "keeps", "a number above 0")):
        for wrong in (2.7, True, "1", -1, np.nan, None, []):
            with pytest.raises(ProgramError, match=re.escape(f"is not allowed; expected {words}")):
                registry.parse_parameters(kind, {"source": 0, name: wrong})
        assert registry.parse_parameters(kind, {"source": 0, name: 1})[name] == 1


def test_the_configuration_is_accepted(own_module: Path) -> None:
    settings = own_module / "graphtide.toml"
    settings.write_text(block("toml", "python_modules"))
    programs = load(settings, environ={}).config.program
    assert [(program.name, program.parameters) for program in programs] == [
        ("within", {"source": 1, "hops": 2}),
        ("fading", {"source": 1}),
    ]


@pytest.mark.sample(among="a stream through a daemon")
def test_the_daemon_keeps_and_serves_them(own_module: Path) -> None:
    programs = [
        {"name": "within", "source": 1, "hops": 2},
        {"name": "fading", "source": 1, "keeps": 0.5},
        {"name": "sssp", "source": 1},
        {"name": "sswp", "source": 1},
    ]
    with Daemon(own_module, {"compute": {"python_modules": ["my_programs"]}, "program": programs}) as daemon:
        daemon.start()
        with SpoolWriter(daemon.spool, name="a") as writer:
            writer.append(encode_msgpack([1, 2, 3, 1], [2, 3, 4, 4], [1] * 4, [2.0, 4.0, 8.0, 20.0]))
            writer.append(encode_msgpack([1], [5], [1], [1.0]))
            offsets = {"a.msgpack": writer.offset}
        with daemon.client() as client:
            client.wait(offsets)
            assert client.get("within", [1, 2, 3, 4]).values.tolist() == [0, 1, 2, 1]
            assert client.get("fading", [1, 2, 3, 4]).values.tolist() == [np.inf, 1.0, 0.5, 10.0]
            assert client.get("sssp", [1, 2, 3, 4, 5]).values.tolist() == [0, 2, 6, 14, 1]
            assert client.get("sswp", [1, 2, 3, 4]).values.tolist() == [np.inf, 2, 2, 20]
            assert list(client.path("sssp", 4).vertices) == [1, 2, 3, 4]
            assert list(client.path("sswp", 4).vertices) == [1, 4]
            assert list(client.path("within", 3).vertices) == [1, 2, 3]
        assert daemon.stop() == 0
        # The restart restores them from the checkpoint, bit for bit, and goes on.
        daemon.start()
        with SpoolWriter(daemon.spool, name="b") as writer:
            writer.append(encode_msgpack([2], [3], [0], [1.0]))
            offsets |= {"b.msgpack": writer.offset}
        with daemon.client() as client:
            client.wait(offsets)
            assert client.get("sssp", [1, 2, 3, 4, 5]).values.tolist() == [0, 2, None, 20, 1]
        assert daemon.stop() == 0
        # Words that another function made are not taken over: an edited program starts from scratch.
        written = own_module / "my_programs.py"
        written.write_text(written.read_text().replace("* share", "* share * share"))
        daemon.start()
        with daemon.client() as client:
            client.wait(offsets)
            assert client.get("fading", [1, 2, 4]).values.tolist() == [np.inf, 0.5, 5.0]
            assert client.get("sssp", [1, 2, 3, 4, 5]).values.tolist() == [0, 2, None, 20, 1]
        assert daemon.stop() == 0


@pytest.mark.sample(among="a stream through a daemon")
def test_the_daemon_keeps_one_of_another_form(other_module: Path) -> None:
    """Audited whole after every epoch, told to subscribers, and restored after a kill."""
    tables = {
        "compute": {"python_modules": ["my_other_programs"]},
        "audit": {"full_every_epoch": True},
        "program": [{"name": "mutual"}],
    }
    with Daemon(other_module, tables) as daemon:
        daemon.start()
        with daemon.client() as client, SpoolWriter(daemon.spool, name="a") as writer:

            def write(*columns: Any) -> None:
                writer.append(encode_msgpack(*columns))
                writer.flush()
                client.wait({"a.msgpack": writer.offset})

            seen = dict[Any, Any]()
            with contextlib.closing(client.subscribe("mutual")) as told:
                write([1, 2, 2], [2, 1, 3], [1, 1, 1])
                while len(seen) < 3:
                    change = next(told)
                    seen |= dict(zip(change.ids.tolist(), change.values.tolist(), strict=True))
            assert seen == {1: 1, 2: 1, 3: 0}, (
                "new vertices are told of, also where the program does not name them"
            )
            write([3, 1, 4, 4], [2, 2, 4, 1], [1, 0, 1, 1])
            assert client.get("mutual", [1, 2, 3, 4]).values.tolist() == [0, 1, 1, 0]
            write([3], [0], [3])
            write([3], [1], [1])
        daemon.kill()
        daemon.start()
        with daemon.client() as client:
            client.wait({"a.msgpack": writer.offset})
            assert client.get("mutual", [1, 2, 3, 4]).values.tolist() == [0, 0, 0, 0]
            assert client.programs()["programs"]["mutual"]["state"] == "fresh"
            assert client.stats()["audit"]["violations"] == {}
        assert daemon.stop() == 0


# -- refusals -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("weights", "name", "words"),
    [
        ("any", "sssp", "sssp needs a graph whose weights are 'non-negative', and graph.weights is 'any'"),
        ("unweighted", "sssp", "graph.weights is 'unweighted'"),
        ("unweighted", "sswp", "needs a graph whose weights are 'non-negative' or 'any'"),
    ],
)
def test_other_weights_are_refused(tmp_path: Path, weights: str, name: str, words: str) -> None:
    settings = tmp_path / "graphtide.toml"
    settings.write_text(f'[graph]\nweights = "{weights}"\n[[program]]\nname = "{name}"\nsource = 1\n')
    with pytest.raises(ConfigError, match=re.escape(words)):
        load(settings, environ={})


def test_modules_that_cannot_be_imported_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "broken_programs.py").write_text("1 / 0\n")
    monkeypatch.syspath_prepend(tmp_path)
    for name, words in (("broken_programs", "ZeroDivisionError"), ("no_such_module", "ModuleNotFoundError")):
        with pytest.raises(ConfigError, match=f"'{name}' cannot be imported: {words}"):
            load(environ={"GRAPHTIDE_COMPUTE__PYTHON_MODULES": name})


def test_a_module_that_is_not_found_is_one_problem_with_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not two: its programs are unknown, which is no other mistake. One that lacks another module says which."""
    (tmp_path / "needs_another.py").write_text("import no_such_module_either\n")
    monkeypatch.syspath_prepend(tmp_path)
    advice = "; install it, or have its folder in PYTHONPATH"
    for name, advised in (("no_such_module", True), ("no_such_folder.programs", True), ("needs_another", False)):
        tables = {"compute": {"python_modules": [name]}, "program": [{"name": "own"}, {"name": "own", "hops": 1}]}
        with pytest.raises(ConfigError) as refused:
            from_tables(tables)
        (problem,) = refused.value.detail["problems"]
        assert problem["key"] == "compute.python_modules"
        assert problem["allowed"].endswith(advice) == advised
    tables = {"compute": {"python_modules": ["no_such_module"]}, "program": [{"name": "bfs", "surce": 1}]}
    with pytest.raises(ConfigError, match="did you mean 'source'"):
        from_tables(tables)


@pytest.mark.usefixtures("own_module")
@pytest.mark.parametrize("kind", ["pagerank", "ppr"])
def test_bounds_of_numbers_are_said_where_the_parameters_are_described(kind: str) -> None:
    for name in ("damping", "tolerance"):
        (parameter,) = [one for one in registry.KINDS[kind].parameters if one.name == name]
        said = re.search(r", from (\S+) to (\S+)$", parameter.help)
        assert said is not None
        low, high = map(float, said.groups())
        assert (parameter.parse(low), parameter.parse(high)) == (low, high)
        for wrong in (low * 0.99, high * 1.01):
            with pytest.raises(ValueError, match="a number from"):
                parameter.parse(wrong)


@pytest.mark.usefixtures("own_module")
def test_a_name_belongs_to_one_program() -> None:
    module = importlib.import_module("my_programs")
    assert registry.register(module.Within) is module.Within
    other = type("Other", (module.Within,), {"__module__": "elsewhere"})
    with pytest.raises(ProgramError, match=r"already is a program 'within': my_programs\.Within"):
        registry.register(other)


def smaller(new: Any, old: Any) -> bool:
    return bool(new < old)


def sum_of(value: Any, weight: Any) -> Any:
    return value + weight


@pytest.fixture
def register(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Registers a path program ``own`` whose class is sound but for what is given; forgotten afterwards."""
    monkeypatch.setattr(registry, "KINDS", dict(registry.KINDS))

    def register(gather: Callable[..., Any] = sum_of, better: Callable[..., Any] = smaller, **given: Any) -> None:
        sound = {
            "kind": "own",
            "summary": "a sum",
            "needs_weights": True,
            "weight_domains": ("non-negative",),
            "value": np.float32,
            "at_source": 0.0,
            "functors": classmethod(lambda cls, **parameters: Functors(gather, better)),
        }
        attributes = {name: value for name, value in {**sound, **given}.items() if value is not None}
        registry.register(type("Own", (PathProgram,), attributes))

    return register


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"value": None}, "own: value = None is not allowed; expected np.uint32 or np.float32"),
        ({"value": np.int64}, "own: value = int64 is not allowed; expected np.uint32 or np.float32"),
        ({"at_source": None}, "own: at_source = None is not allowed; expected a source's float32 value"),
        ({"at_source": "far"}, "own: at_source = 'far' is not allowed"),
        ({"at_source": np.nan}, "own: at_source = nan is not allowed"),
        ({"value": np.uint32, "at_source": -1}, "own: at_source = -1 is not allowed"),
        ({"value": np.uint32, "at_source": NO_OFFER}, "own: at_source = 4294967295 is not allowed"),
        ({"functors": None}, "own: the class has no method functors; it must return Functors(gather, better)"),
        ({"functors": classmethod(lambda cls: (sum_of, smaller))}, "expected Functors(gather, better)"),
        ({"functors": classmethod(lambda cls: 1 // 0)}, "own cannot be made: ZeroDivisionError: "),
        (
            {"gather": lambda value, weight: 1 // 0 if weight == 0.5 else value},
            "own: gather(0.0, 0.5) raises Zero",
        ),
        ({"gather": lambda value: value}, "own: gather(0.0, 1.0) raises TypeError"),
        ({"gather": lambda value, weight: "far"}, "own: gather(0.0, 1.0) offers 'far'; expected a float32"),
        ({"better": lambda new, old: new.smaller(old)}, "own: better(1.0, 0.0) raises AttributeError"),
        ({"gather": lambda value, weight: value - weight}, "own: gather(0.0, 1.0) offers -1.0, which is better"),
    ],
)
def test_a_mistake_in_a_class_is_told_with_its_name(
    register: Callable[..., None], given: dict[str, Any], words: str
) -> None:
    register(**given)
    with pytest.raises(ProgramError, match=re.escape(words)):
        registry.make_program("own", None, {"source": 0})


@pytest.mark.parametrize(("kind", "name"), [(k, n) for k in ("pagerank", "ppr") for n in ("damping", "tolerance")])
def test_bounds_of_a_parameter_are_those_that_its_help_names(kind: str, name: str) -> None:
    (parameter,) = [item for item in registry.program_class(kind).parameters if item.name == name]
    named = re.search(r"from (\S+) to (\S+)$", parameter.help)
    assert named is not None
    low, high = map(float, named.groups())
    assert parameter.parse(low) == low and parameter.parse(high) == high
    for outside in (low / 2, np.nextafter(high, 1)):
        with pytest.raises(ValueError, match="a number from"):
            parameter.parse(float(outside))


def test_a_parameter_without_a_default_must_be_given(register: Callable[..., None]) -> None:
    """None is a default like any other."""
    limits = []

    def functors(cls: type, **parameters: Any) -> Functors:
        limits.append(parameters["limit"])
        return Functors(sum_of, smaller)

    for parameter, required in (
        (Parameter("limit", "the longest", float), True),
        (Parameter("limit", "the longest", float, default=None), False),
    ):
        register(parameters=(SOURCE, parameter), functors=classmethod(functors))
        assert parameter.required == required
        if required:
            with pytest.raises(ProgramError, match="own needs the parameter 'limit': the longest"):
                registry.make_program("own", None, {"source": 0})
        else:
            registry.make_program("own", None, {"source": 0})
    assert limits == [None]


def unknown_attribute(value: Any, weight: Any) -> Any:
    return value + weight.foo() if value > 1e30 else value + weight


def text(value: Any, weight: Any) -> Any:
    return value + "far" if value > 1e30 else value + weight


def failing(value: Any, weight: Any) -> Any:
    if value > 1e30 or weight == 1:
        raise ValueError("no such weight")
    return value + weight


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("gather", "words"),
    [
        (unknown_attribute, r"TypingError: Unknown attribute 'foo' of type float32 \(File .*test_programs.py"),
        (text, r"TypingError: No implementation of function .*add\(float32, .*must be plain arithmetic"),
    ],
)
def test_functors_that_cannot_be_compiled_are_told_before_the_daemon_starts(
    register: Callable[..., None], gather: Callable[..., Any], words: str
) -> None:
    """Trying the rules in plain Python does not find them."""
    register(gather=gather)
    config = Config.model_validate({"program": [{"name": "own", "id": "own", "source": 0}]})
    with pytest.raises(ConfigError, match=f"^program own fails on a small graph: {words}") as raised:
        warm_up(config, threading.Event(), lambda share: None, progress=False)
    assert "\n" not in str(raised.value)


def test_a_mistake_ends_the_daemon_without_a_traceback(own_module: Path) -> None:
    written = own_module / "my_programs.py"
    written.write_text(written.read_text().replace("value + 1 if", "value.more() if"))
    settings = {"compute": {"python_modules": ["my_programs"]}, "program": [{"name": "within", "source": 1}]}
    with Daemon(own_module, settings) as daemon:
        process = daemon.start(ready_s=None).process
        assert process is not None and process.wait(120) == 2
        assert "graphtide: program within: gather(0, 1.0) raises AttributeError: " in daemon.log_tail()
        assert "Traceback" not in daemon.log_tail()


def test_functors_that_fail_at_once_are_told_before_the_daemon_starts(
    register: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(path_form, "_CHECKED_WEIGHTS", (0.5,))
    register(gather=failing)
    with pytest.raises(ProgramError, match=r"^own fails on a small graph: ValueError: no such weight"):
        registry.warm_up(directed=True, weighted=True, programs=[("own", {"source": 0})])


@intrinsics.inner
def only_for_kernels(value):  # type: ignore[no-untyped-def]
    return value


@pytest.mark.parametrize(
    ("gather", "better", "words"),
    [
        (lambda value, weight: value - weight, smaller, "which is better than 0.0 itself"),
        (lambda value, weight: value + weight, lambda new, old: new <= old, "which is better than 0.0 itself"),
        (lambda value, weight: value + weight, lambda new, old: False, "exactly one must be better"),
        (lambda value, weight: 100 if value == 1 else value + weight, smaller, "is better than"),
        (lambda value, weight: only_for_kernels(value), smaller, "can be called by kernels alone"),
        (lambda value, weight: value + weight, smaller, None),
        (lambda value, weight: value + weight if value < 3 else np.nan, smaller, None),
        (lambda value, weight: np.nan if value < 1 else value, smaller, None),
    ],
)
def test_rules_of_functors(gather: Callable[..., Any], better: Callable[..., Any], words: str | None) -> None:
    functors = Functors(gather, better)
    if words is None:
        check(functors, np.float32(0), weighted=True, negative=False)
        return
    with pytest.raises(ProgramError, match=re.escape(words)):
        check(functors, np.float32(0), weighted=True, negative=False)


def test_a_sum_needs_weights_that_are_never_negative() -> None:
    functors = Functors(lambda value, weight: value + weight, smaller)
    with pytest.raises(ProgramError, match=r"gather\(0\.0, -1\.0\) offers -1\.0"):
        check(functors, np.float32(0), weighted=True, negative=True)


def test_no_value_is_better_than_itself() -> None:
    functors = Functors(lambda value, weight: value + 1, lambda new, old: new <= old)
    with pytest.raises(ProgramError, match="0 is better than 0, which is the same"):
        check(functors, np.uint32(0), weighted=False, negative=False)


def test_no_offer_is_the_worst_there_is() -> None:
    def hops(functors: Functors) -> None:
        check(functors, np.uint32(0), weighted=False, negative=False)

    hops(Functors(lambda value, weight: NO_OFFER if value > 2 else value + 1, smaller))
    with pytest.raises(ProgramError, match="offers None against"):
        check(
            Functors(lambda value, weight: NO_OFFER if value == 1 else value + weight, smaller),
            np.uint32(0),
            weighted=True,
            negative=False,
        )


def test_without_weights_values_come_in_the_order_of_numbers() -> None:
    def even_first(new, old):  # type: ignore[no-untyped-def]
        return (new % 2, new) < (old % 2, old)

    functors = Functors(lambda value, weight: value + 2 if value != 6 else 1, even_first)
    check(functors, np.uint32(0), weighted=True, negative=False)
    with pytest.raises(ProgramError, match="must be the order of numbers"):
        check(functors, np.uint32(0), weighted=False, negative=False)
    for better in (lambda new, old: new < old, lambda new, old: new > old):
        check(Functors(lambda value, weight: value, better), np.uint32(0), weighted=False, negative=False)


# -- digests and the cache ------------------------------------------------------------------------------------

FACTOR = 2.0


def captures(value: Any) -> Callable[..., Any]:
    def gather(distance, weight):  # type: ignore[no-untyped-def]
        return distance + weight * value

    return gather


def test_a_digest_tells_functions_apart() -> None:
    def inside(distance, weight):  # type: ignore[no-untyped-def]
        return distance + weight * FACTOR

    def calls(distance, weight):  # type: ignore[no-untyped-def]
        return inside(distance, weight)

    functions = [
        captures(1.0),
        captures(2.0),
        captures(np.float32(2.0)),
        captures(np.arange(3)),
        captures(np.arange(4)),
        captures((1.0, 2.0)),
        lambda distance, weight: distance + weight,
        lambda distance, weight: distance * weight,
        lambda distance, weight: distance + weight + 1,
        lambda distance, weight: distance + weight + 2,
        inside,
        calls,
    ]
    assert len({digest(function) for function in functions}) == len(functions)
    assert digest(captures(2.0)) == digest(captures(2.0))


def test_a_digest_follows_what_a_function_uses(monkeypatch: pytest.MonkeyPatch) -> None:
    def inside(distance, weight):  # type: ignore[no-untyped-def]
        return distance + weight * FACTOR

    def calls(distance, weight):  # type: ignore[no-untyped-def]
        return inside(distance, weight)

    before = digest(calls)
    monkeypatch.setattr(sys.modules[__name__], "FACTOR", 3.0)
    assert digest(calls) != before


def test_a_digest_follows_the_work_that_is_shared() -> None:
    def sharing(work: Any) -> Any:
        def kernel(crew, values):  # type: ignore[no-untyped-def]
            share(crew, work, (values,))

        return kernel

    works = [lambda thread, values: values.sum(), lambda thread, values: values.min()]
    assert len({digest(sharing(nb.njit(work))) for work in works}) == 2


def test_a_step_is_not_kept_as_the_kernel_of_the_same_template() -> None:
    """Which has what Python calls it by: each must find its own compiled form."""

    def made_of(value: Any) -> Any:
        return value + 1

    kernel, part = specialise(made_of, {}), step(made_of, {})
    assert kernel._cache._impl.filename_base != part._cache._impl.filename_base


@pytest.mark.parametrize("captured", [False, True], ids=["global", "captured"])
def test_a_digest_follows_what_is_taken_out_of_modules(monkeypatch: pytest.MonkeyPatch, captured: bool) -> None:
    outer, inner = ModuleType("outer"), ModuleType("inner")
    vars(outer).update(inner=inner, scale=lambda weight: weight * 2)
    vars(inner).update(outer=outer, LIMIT=5.0)
    monkeypatch.setattr(sys.modules[__name__], "global_module", outer, raising=False)
    local = outer

    def from_global(distance, weight):  # type: ignore[no-untyped-def]
        return min(distance + global_module.scale(weight), global_module.inner.LIMIT)  # noqa: F821

    def from_captured(distance, weight):  # type: ignore[no-untyped-def]
        return min(distance + local.scale(weight), local.inner.LIMIT)

    function = from_captured if captured else from_global
    digests = {digest(function)}
    vars(outer)["scale"] = lambda weight: weight * 3
    digests.add(digest(function))
    vars(inner)["LIMIT"] = 6.0
    digests.add(digest(function))
    assert len(digests) == 3


def test_what_cannot_be_told_apart_is_not_captured() -> None:
    with pytest.raises(ProgramError, match=r"captures <object object .*it may capture numbers"):
        digest(captures(object()))


RUN = """
import sys
sys.path.insert(0, {folder!r})
import my_programs, numpy as np
from graphtide.compute.registry import make_program
from graphtide.compute.paths.audit import EVIDENCE, RULES
from graphtide.gpma.rows import RowView
none = {{kind: np.empty(0, kind) for kind in (np.bool_, np.int32, np.uint32, np.uint64, np.float32)}}
of_vertices = none[np.uint32]
rows = RowView(none[np.uint64], none[np.float32], none[np.int32], of_vertices, of_vertices, 0, 0, 0)
found = np.zeros(len(RULES), np.int64), np.empty((len(RULES), EVIDENCE), np.uint32)
for name, given in (("fading", {{"source": 0, "keeps": {keeps}}}), ("sssp", {{"source": 0}})):
    kernel = make_program(name, None, given)._kernels.audit
    kernel(none[np.uint64], rows, 0, 0, 0, none[np.bool_], np.uint64(0), *found)
    print(name, sum(kernel.stats.cache_hits.values()), sum(kernel.stats.cache_misses.values()))
"""


def compiled(folder: Path, keeps: float) -> dict[str, tuple[int, int]]:
    """(hits, misses) of the disk cache for a kernel of either program, which compiles soon, in a new process."""
    done = subprocess.run(
        [sys.executable, "-c", RUN.format(folder=str(folder), keeps=keeps)],
        env={**os.environ, "NUMBA_CACHE_DIR": str(folder / "cache")},
        capture_output=True,
        text=True,
        check=True,
    )
    lines = [line.split() for line in done.stdout.splitlines()]
    return {name: (int(hits), int(misses)) for name, hits, misses in lines}


@pytest.mark.sample(among="all that the cache is for")
def test_kernels_come_from_the_cache_until_a_functor_changes(own_module: Path) -> None:
    hit, missed = (1, 0), (0, 1)
    file = own_module / "my_programs.py"
    assert compiled(own_module, keeps=0.5) == {"fading": missed, "sssp": missed}
    assert compiled(own_module, keeps=0.5) == {"fading": hit, "sssp": hit}
    assert compiled(own_module, keeps=0.25) == {"fading": missed, "sssp": hit}, "another captured value"
    file.write_text(file.read_text().replace("* share", "* (share * share)"))
    assert compiled(own_module, keeps=0.5) == {"fading": missed, "sssp": hit}, "another functor"
