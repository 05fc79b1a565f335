"""Walks: loops that are written once, as generators, and become part of the kernels that go through them.

Numba compiles generators but does not inline them: each step of a walk would be a call. So ``spliced`` takes the
text of the generator, with the loop's body where it yields, before the compiler sees the kernel::

    @nb.njit
    @spliced
    def add_up(rows, u):
        total = 0
        for slot, stop in runs(rows, u):  # ``runs`` is a generator, which plain Python goes through as it is
            for i in range(slot, stop):
                total += rows.keys[i] & LOW
        return total

``break`` ends a walk, ``continue`` goes on with its next step, and a walk may stand within a walk. The kernel
keeps its place in its file: in messages, where all that the walk's text does is at the line of the loop, and for
Numba's disk cache, which knows another text of a walk by what the kernel is made of (``made_of.py``).

**Records.** A parameter of which a walk takes nothing but fields, like ``rows``, must be given by name; the kernel
then takes its fields where the walk does. (Numba counts references to an array that it takes out of a record, with
atomic instructions, unless it is done with the array at once. Fields that are taken before a loop, for all of it,
cost that whenever the loop begins; such a record handed to another name, likewise.)

**What a walk is like.** It yields a tuple, in one place: at the end of a loop, behind which nothing follows. It
does not return. If there is a loop around that loop, ``break`` cannot end it, and is an error.
"""

from __future__ import annotations

import ast
import inspect
import pickle
from collections.abc import Callable, Iterator
from functools import cache
from types import CodeType, FunctionType
from typing import Any, TypeVar

Function = TypeVar("Function", bound=Callable[..., Any])
Placed = TypeVar("Placed", ast.stmt, ast.expr)


def spliced(function: Function) -> Function:
    """The function with the text of walks in place of its loops over them, for a compiler.

    Raises:
        TypeError: a walk is not as this module asks, or is not used so.
    """
    assert isinstance(function, FunctionType)
    definition = _definition(function)
    definition.body = _Splicer(function, definition).body()
    code = _code(definition, function.__code__)
    cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
    closure = tuple(cells[name] for name in code.co_freevars)
    made = FunctionType(code, function.__globals__, function.__name__, function.__defaults__, closure)
    made.__qualname__, made.__module__, made.__doc__ = function.__qualname__, function.__module__, function.__doc__
    made.__kwdefaults__, made.__annotations__ = function.__kwdefaults__, function.__annotations__
    return made  # type: ignore[return-value]


class _Splicer(ast.NodeTransformer):
    """Puts walks into a function."""

    def __init__(self, function: FunctionType, definition: ast.FunctionDef) -> None:
        self._function, self._definition = function, definition
        self._n_walks = 0

    def body(self) -> list[ast.stmt]:
        """The function's statements, with all walks in place."""
        body = self._definition.body
        documented = int(ast.get_docstring(self._definition, clean=False) is not None)
        rest = self.generic_visit(ast.Module(body[documented:], [])).body  # type: ignore[attr-defined]
        return [*body[:documented], *rest]

    def visit(self, node: ast.AST) -> Any:
        return node if isinstance(node, ast.expr) else super().visit(node)  # no loop stands in an expression

    def visit_For(self, loop: ast.For) -> ast.stmt | list[ast.stmt]:
        self.generic_visit(loop)
        walk = self._walk_of(loop)
        if walk is None:
            return loop
        assert isinstance(loop.iter, ast.Call) and isinstance(loop.target, ast.Tuple)
        self._n_walks += 1
        prefix = f"__{walk.name}{self._n_walks}_"
        arguments = dict(zip(walk.parameters, loop.iter.args, strict=True))
        own = {name: prefix + name for name in walk.own}
        own |= {
            name: argument.id
            for name, argument in arguments.items()
            if isinstance(argument, ast.Name) and name in walk.records
        }
        before = [
            _assign(_placed(ast.Name(own[name], ast.Store()), loop), value, loop)
            for name, value in arguments.items()
            if name not in walk.records
        ]
        for name, value in walk.globals.items():
            # Another walk of this name, from another module, may have brought another value here.
            if self._function.__globals__.setdefault(f"__{walk.name}_{name}", value) is not value:
                raise TypeError(f"{self._function.__module__}: two walks are called {walk.name}, with two {name}")
        text = _Text(walk, own, loop)
        return before + [text.visit(statement) for statement in walk.body()]

    def _walk_of(self, loop: ast.For) -> _Walk | None:
        """The walk that this loop goes through; None: it is another loop."""
        call = loop.iter
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
            return None
        function = self._function.__globals__.get(call.func.id)
        if not inspect.isgeneratorfunction(function):
            return None
        walk = _walk(function)
        width = len(walk.yielded.elts)
        complaint = None
        if loop.orelse:
            complaint = "a loop over a walk has no else"
        elif not isinstance(loop.target, ast.Tuple) or len(loop.target.elts) != width:
            complaint = f"{walk.name} yields {width} values, each for a name"
        elif call.keywords or len(call.args) != len(walk.parameters):
            complaint = f"{walk.name} takes {', '.join(walk.parameters)}, all by position"
        elif walk.loops > 1 and any(_breaks(loop.body)):
            complaint = f"break would only end a part of {walk.name}"
        else:
            stored = {node.id for node in _names(loop.body) if isinstance(node.ctx, ast.Store)}
            for parameter, argument in zip(walk.parameters, call.args, strict=True):
                if parameter in walk.records and (not isinstance(argument, ast.Name) or argument.id in stored):
                    complaint = f"{parameter} of {walk.name} is given by a name that the loop leaves as it is"
        if complaint is not None:
            code = self._function.__code__
            raise TypeError(f"{code.co_filename}, line {loop.lineno}, {code.co_name}: {complaint}")
        return walk


class _Walk:
    """The text of a generator, and what its names stand for."""

    def __init__(self, function: FunctionType) -> None:
        definition = _definition(function)
        self.name = function.__name__
        self.parameters = [argument.arg for argument in definition.args.args]
        body = _Splicer(function, definition).body()
        body = body[1:] if ast.get_docstring(definition) is not None else body
        self._body = pickle.dumps(body)
        ends = [node for statement in body for node in ast.walk(statement) if isinstance(node, _ENDS)]
        self.loops, last = _innermost(body)
        value = getattr(last, "value", None)
        if self.loops == 0 or ends != [value] or not isinstance(value, ast.Yield):
            raise TypeError(f"{self.name} is no walk: it does not yield once, at the end of its last loop")
        if not isinstance(value.value, ast.Tuple):
            raise TypeError(f"{self.name} is no walk: it does not yield a tuple")
        self.yielded = value.value
        names = _names(body)
        self.own = {node.id for node in names if isinstance(node.ctx, ast.Store)} | set(self.parameters)
        self.globals = {
            node.id: function.__globals__[node.id]
            for node in names
            if node.id not in self.own and node.id in function.__globals__
        }
        nodes = [node for statement in body for node in ast.walk(statement)]
        in_fields = {id(node.value) for node in nodes if isinstance(node, ast.Attribute)}
        whole = {node.id for node in names if id(node) not in in_fields}
        self.records = {name for name in self.parameters if name not in whole}

    def body(self) -> list[ast.stmt]:
        """The text, anew for each loop that it becomes a part of."""
        return pickle.loads(self._body)  # type: ignore[no-any-return]  # a tenth of the time of ``copy.deepcopy``


_ENDS = (ast.Yield, ast.YieldFrom, ast.Return)


@cache
def _walk(function: FunctionType) -> _Walk:
    return _Walk(function)


class _Text(ast.NodeTransformer):
    """Makes the text of a walk a part of a kernel: its names are the walk's alone, and it has the loop's body."""

    def __init__(self, walk: _Walk, own: dict[str, str], loop: ast.For) -> None:
        self._walk, self._own, self._loop = walk, own, loop

    def visit(self, node: ast.AST) -> Any:
        if "lineno" in node._attributes:
            ast.copy_location(node, self._loop.iter)
        return super().visit(node)

    def visit_Name(self, name: ast.Name) -> ast.Name:
        if name.id in self._own:
            name.id = self._own[name.id]
        elif name.id in self._walk.globals:
            name.id = f"__{self._walk.name}_{name.id}"
        return name

    def visit_Expr(self, statement: ast.Expr) -> ast.stmt | list[ast.stmt]:
        if not isinstance(statement.value, ast.Yield):
            return self.generic_visit(statement)  # type: ignore[return-value]
        yielded = self.generic_visit(statement.value).value  # type: ignore[attr-defined]
        assert isinstance(self._loop.target, ast.Tuple)
        pairs = zip(self._loop.target.elts, yielded.elts, strict=True)
        return [_assign(name, value, self._loop) for name, value in pairs] + self._loop.body


def _definition(function: FunctionType) -> ast.FunctionDef:
    """The function as its file has it, with the line numbers of the file."""
    lines, first = inspect.getsourcelines(function)
    # What is indented needs something to stand in, for its columns to stay.
    above = "if True:\n" if lines[0][0].isspace() else ""
    tree = ast.parse("\n" * (first - 1 - bool(above)) + above + "".join(lines))
    definition = next(node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))
    assert definition.name == function.__name__
    return definition


def _code(definition: ast.FunctionDef, old: CodeType) -> CodeType:
    """The code of a changed definition, under the names that it had."""
    outer = ast.parse(f"def outer({', '.join(old.co_freevars)}): pass")
    function = outer.body[0]
    assert isinstance(function, ast.FunctionDef)
    function.body = [definition]
    code = compile(outer, old.co_filename, "exec", dont_inherit=True)
    for name in ("outer", old.co_name):
        code = next(part for part in code.co_consts if isinstance(part, CodeType) and part.co_name == name)
    return code.replace(co_qualname=old.co_qualname)


def _names(body: list[ast.stmt]) -> list[ast.Name]:
    return [node for statement in body for node in ast.walk(statement) if isinstance(node, ast.Name)]


def _innermost(body: list[ast.stmt]) -> tuple[int, ast.stmt]:
    """How many loops end with the last statement of all, and that statement."""
    loops = 0
    while isinstance(body[-1], ast.For | ast.While | ast.If) and not body[-1].orelse:
        loops += not isinstance(body[-1], ast.If)
        body = body[-1].body
    return loops, body[-1]


def _breaks(body: list[ast.stmt]) -> Iterator[ast.Break]:
    """Every ``break`` that ends the loop with this body."""
    for node in body:
        if isinstance(node, ast.Break):
            yield node
        elif not isinstance(node, ast.For | ast.While):
            yield from _breaks(list(ast.iter_child_nodes(node)))  # type: ignore[arg-type]
        else:
            yield from _breaks(node.orelse)


def _assign(target: ast.expr, value: ast.expr, at: ast.For) -> ast.stmt:
    return _placed(ast.Assign([target], value), at)


def _placed(node: Placed, at: ast.For) -> Placed:
    """The node, where another one begins."""
    node.lineno, node.col_offset = at.lineno, at.col_offset
    node.end_lineno, node.end_col_offset = at.lineno, at.col_offset
    return node
