"""The two functions of a path program as CUDA C++ text, which computes bit for bit what Numba does on the host.

A function is taken as Numba has it after type inference: branches and jumps between blocks of assignments, in
which every variable has one type and every operation a signature. Each becomes a line of C++, with the casts that
Numba would insert. What the lines call stands in ``functor.cuh``, and computes as IEEE 754 and Numba's lowering of
Python's operators (``numba/cpython/numbers.py``) say, whatever options the module is compiled with. Captured
values are printed as bit patterns, calls of compiled functions become further functions.

What is not plain arithmetic is refused (``Unprintable``): its program stays on the host.
"""

from __future__ import annotations

import builtins
import math
import operator
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import Any, Final, NamedTuple

import numba as nb
import numpy as np
from numba.core import ir, types
from numba.core.compiler import CompilerBase, DefaultPassBuilder, Flags, compile_extra
from numba.core.compiler_lock import global_compiler_lock
from numba.core.compiler_machinery import FunctionPass, PassManager, register_pass
from numba.core.dispatcher import Dispatcher
from numba.core.errors import NumbaError, UnsupportedBytecodeError
from numba.core.typed_passes import NopythonTypeInference, PreLowerStripPhis

from ...gpma.device import module
from ..paths.form import Form

HEAD: Final = Path(__file__).with_name("functor.cuh")

_CPP: Final[Mapping[types.Type, str]] = {
    types.boolean: "bool",
    types.int8: "i8",
    types.uint8: "u8",
    types.int16: "i16",
    types.uint16: "u16",
    types.int32: "i32",
    types.uint32: "u32",
    types.int64: "i64",
    types.uint64: "u64",
    types.float32: "float",
    types.float64: "double",
}
_ARITHMETIC: Final = {
    operator.add: "add",
    operator.sub: "subtract",
    operator.mul: "multiply",
    operator.truediv: "divide",
    operator.floordiv: "floor_divide",
    operator.mod: "modulo",
}
_DIVISIONS: Final = (operator.truediv, operator.floordiv, operator.mod)
_BITWISE: Final = {operator.and_: "&", operator.or_: "|", operator.xor: "^"}
_SHIFTS: Final = {operator.lshift: "<<", operator.rshift: ">>"}
_POWER_MAX: Final = 8
_COMPARISONS: Final = {
    operator.lt: "<",
    operator.le: "<=",
    operator.gt: ">",
    operator.ge: ">=",
    operator.eq: "==",
    operator.ne: "!=",
}
# Of floats; {0} and {1} are the operands.
_OF_FLOATS: Final = {
    "<": "exact::less({0}, {1})",
    "<=": "exact::less_equal({0}, {1})",
    ">": "exact::less({1}, {0})",
    ">=": "exact::less_equal({1}, {0})",
    "==": "exact::equal({0}, {1})",
    "!=": "!exact::equal({0}, {1})",
}
_ABSOLUTE: Final = (builtins.abs, np.abs, np.fabs, math.fabs)
_ROOTS: Final = (np.sqrt, math.sqrt)
# Of floats: what is asked of {0}; and the answer for a whole number.
_QUESTIONS: Final = {
    math.isnan: ("exact::is_nan({0})", "false"),
    np.isnan: ("exact::is_nan({0})", "false"),
    math.isinf: ("exact::is_inf({0})", "false"),
    np.isinf: ("exact::is_inf({0})", "false"),
    math.isfinite: ("!exact::is_nan({0}) && !exact::is_inf({0})", "true"),
    np.isfinite: ("!exact::is_nan({0}) && !exact::is_inf({0})", "true"),
}
_UNKNOWN: Final = object()


class Unprintable(ValueError):
    """A function cannot be printed: ``file:line: reason``, in the function's own file."""

    def __init__(self, place: ir.Loc, reason: str) -> None:
        super().__init__(f"{place.filename}:{place.line}: {reason}")


@lru_cache(maxsize=64)
def cuda_text(form: Form) -> str:
    """The head of a CUDA module for programs of this form; it stands before everything else, and includes nothing.

    ::

        typedef ... Value;                                       // float or u32
        constexpr bool READS_WEIGHTS = ...;                      // else gather gets 1
        __device__ Value gather(Value value, float weight);      // what an edge offers; of floats NaN: nothing
        __device__ bool better(Value one, Value other);          // whether one is strictly better
        constexpr u32 NOTHING = 0xffffffff;                      // the bits of no value, and of no offer
        __device__ u32 encode(Value value);                      // the bits of a value or of an offer
        __device__ Value decode(u32 bits);                       // the value that has these bits

    Bits are those of the upper half of a program's words, on the host and here. The same form gives the same text
    in every process.

    Raises:
        Unprintable: one of the functions is more than plain arithmetic.
    """
    value = types.float32 if form.value is np.float32 else types.uint32
    functions = _Functions()
    functions.print("gather", form.functors.gather, (value, types.float32), value)
    functions.print("better", form.functors.better, (value, value), types.boolean)
    decoded = "exact::float_of(bits)" if value == types.float32 else "bits"
    return (
        f"{module.source(HEAD)}"
        '#line 1 "functions of a program"\n'
        f"typedef {_CPP[value]} Value;\n"
        f"constexpr bool READS_WEIGHTS = {str(form.weighted).lower()};\n"
        f"__device__ __forceinline__ Value decode(u32 bits) {{ return {decoded}; }}\n\n{functions.text()}"
    )


# -- what Numba knows of a function ------------------------------------------------------------------------------


class _Typed(NamedTuple):
    """A function for arguments of certain types; ``raises``: whether a division by zero is an error."""

    ir: ir.FunctionIR
    types: Mapping[str, types.Type]
    calls: Mapping[ir.Expr, Any]
    raises: bool


@register_pass(mutates_CFG=False, analysis_only=True)
class _Keep(FunctionPass):  # type: ignore[misc]
    """Ends a compilation with what is known of the function."""

    _name = "graphtide_keep_types"

    def __init__(self) -> None:
        FunctionPass.__init__(self)

    def run_pass(self, state: Any) -> bool:
        state.cr = _Typed(state.func_ir, state.typemap, state.calltypes, raises=False)
        return False


class _Inference(CompilerBase):  # type: ignore[misc]
    """Numba's compiler as far as types are known, and variables joined where branches meet."""

    def define_pipelines(self) -> list[PassManager]:
        passes = PassManager("types")
        passes.passes.extend(DefaultPassBuilder.define_untyped_pipeline(self.state).passes)
        passes.add_pass(NopythonTypeInference, "types of variables")
        passes.add_pass(PreLowerStripPhis, "joined variables")
        passes.add_pass(_Keep, "the end")
        passes.finalize()
        return [passes]


def _typed(function: Any, arguments: tuple[types.Type, ...]) -> _Typed:
    """Raises Unprintable: Numba does not understand the function."""
    target = function.targetdescr
    options = function.targetoptions
    place = ir.Loc.from_function_id(nb.core.bytecode.FunctionIdentity.from_function(function.py_func))
    if options.get("fastmath"):
        raise Unprintable(place, "compiled with fastmath, which computes otherwise on every processor")
    _, arguments = function._compiler.fold_argument_types(arguments, {})
    contexts = target.typing_context, target.target_context
    try:
        with global_compiler_lock:
            found: _Typed = compile_extra(
                *contexts, function.py_func, arguments, None, Flags(), {}, pipeline_class=_Inference
            )
    except (NumbaError, UnsupportedBytecodeError) as error:
        lines = (line.strip() for line in str(error).splitlines() if not line.startswith("Failed in "))
        reason = next(filter(None, lines), type(error).__name__)
        raise Unprintable(getattr(error, "loc", None) or place, f"Numba cannot compile it: {reason}") from error
    return found._replace(raises=options.get("error_model", "python") == "python")


# -- printing ----------------------------------------------------------------------------------------------------


class _Functions:
    """The functions of one module, each printed once, those that are called before those that call them."""

    def __init__(self) -> None:
        self._texts: list[str] = []
        self._names: dict[Any, str] = {}
        self._open: list[Any] = []

    def print(
        self, name: str, function: Callable[..., Any], arguments: tuple[types.Type, ...], returns: types.Type
    ) -> None:
        """Print a plain function as compiled path kernels call it, its result cast to the type ``returns``."""
        self._print(name, nb.njit(error_model="numpy")(function), arguments, returns)

    def called(self, function: Any, arguments: tuple[types.Type, ...], returns: types.Type, place: ir.Loc) -> str:
        """The name of a function that a printed one calls."""
        key = function, arguments, returns
        if key in self._open:
            raise Unprintable(place, f"{function.__name__} calls itself")
        if key not in self._names:
            self._open.append(key)
            name = f"called_{len(self._names)}"
            self._print(name, function, arguments, returns)
            self._names[key] = name
            self._open.pop()
        return self._names[key]

    def text(self) -> str:
        return "\n".join(self._texts)

    def _print(self, name: str, function: Any, arguments: tuple[types.Type, ...], returns: types.Type) -> None:
        lines = _Body(self, _typed(function, arguments), returns).lines()
        parameters = ", ".join(f"{_CPP[given]} a{k}" for k, given in enumerate(arguments))
        opening = f"__device__ __forceinline__ {_CPP[returns]} {name}({parameters})\n{{\n"
        self._texts.append(opening + "".join(f"{line}\n" for line in lines) + "}\n")


class _Line(NamedTuple):
    """A statement, the variables that it reads, and the one that it sets."""

    text: str
    reads: frozenset[str]
    sets: str | None = None


class _Body:
    """Prints what one function does."""

    def __init__(self, functions: _Functions, typed: _Typed, returns: types.Type) -> None:
        self._functions = functions
        self._typed = typed
        self._returns = returns
        self._names: dict[str, str] = {}
        self._read: set[str] = set()
        self._place = typed.ir.loc
        self._constants, self._copies = self._captured()

    def lines(self) -> Iterator[str]:
        blocks = sorted(self._typed.ir.blocks.items())
        following = [label for label, _ in blocks[1:]] + [None]
        printed = {
            label: [*self._block(block.body, next_label)]
            for (label, block), next_label in zip(blocks, following, strict=True)
        }
        kept = _without_what_nobody_reads(printed)
        text = "".join(line.text for lines in kept.values() for line in lines)
        declared: dict[str, list[str]] = {}
        for name in sorted({line.sets for lines in kept.values() for line in lines if line.sets}, key=_number):
            declared.setdefault(self._declared[name], []).append(name)
        yield from (f"    {cpp} {', '.join(names)};" for cpp, names in declared.items())
        for label, lines in kept.items():
            if f"goto L{label};" in text:
                yield f"L{label}:"
            yield from (f"    {line.text}" for line in lines)

    # -- statements ---------------------------------------------------------------------------------------------

    def _block(self, body: list[Any], following: int | None) -> Iterator[_Line]:
        for statement in body:
            self._place = statement.loc
            self._read = set()
            match statement:
                case ir.Assign():
                    if statement.target.name not in self._constants and statement.target.name not in self._copies:
                        yield self._assign(statement)
                case ir.Branch():
                    yield self._branch(statement, following)
                case ir.Jump():
                    if statement.target != following:
                        yield _Line(f"goto L{statement.target};", frozenset())
                case ir.Return():
                    yield self._line(f"return {self._operand(statement.value, self._returns)};")
                case ir.Del():
                    pass
                case ir.Raise() | ir.StaticRaise() | ir.DynamicRaise() | ir.TryRaise() | ir.StaticTryRaise():
                    raise self._refused(_RAISES)
                case _:
                    raise self._refused(f"a statement {type(statement).__name__}")

    def _assign(self, statement: ir.Assign) -> _Line:
        value, computed = self._value(statement.value, statement.target)
        name = self._name(statement.target.name)
        return self._line(f"{name} = {self._cast(value, computed, self._type(statement.target))};", name)

    def _branch(self, branch: ir.Branch, following: int | None) -> _Line:
        condition = self._operand(branch.cond, types.boolean)
        if branch.falsebr == following:
            return self._line(f"if ({condition}) goto L{branch.truebr};")
        if branch.truebr == following:
            return self._line(f"if (!({condition})) goto L{branch.falsebr};")
        return self._line(f"if ({condition}) goto L{branch.truebr}; else goto L{branch.falsebr};")

    def _line(self, text: str, sets: str | None = None) -> _Line:
        return _Line(text, frozenset(self._read), sets)

    # -- values, as (text, type) --------------------------------------------------------------------------------

    def _value(self, value: Any, target: ir.Var) -> tuple[str, types.Type]:
        match value:
            case ir.Arg():
                given = self._typed.types[f"arg.{value.name}"]
                if isinstance(given, types.Omitted):
                    return self._literal(given.value, nb.typeof(given.value)), nb.typeof(given.value)
                return f"a{value.index}", given
            case ir.Var():
                return self._operand(value), self._type(value)
            case ir.Const() | ir.Global() | ir.FreeVar():
                return self._literal(value.value, self._type(target)), self._type(target)
            case ir.Expr():
                return self._expression(value)
            case _:
                raise self._refused(f"a value {value}")

    def _expression(self, expression: ir.Expr) -> tuple[str, types.Type]:
        match expression.op:
            case "cast":
                return self._operand(expression.value), self._type(expression.value)
            case "binop":
                return self._binary(expression, expression.fn)
            case "inplace_binop":
                return self._binary(expression, expression.immutable_fn)
            case "unary":
                return self._unary(expression)
            case "call":
                return self._call(expression)
            case other:
                raise self._refused(f"{_OPERATIONS.get(other, other)}")

    def _binary(self, expression: ir.Expr, function: Any) -> tuple[str, types.Type]:
        signature = self._typed.calls[expression]
        returns = self._plain(signature.return_type)
        first, second = (self._plain(given) for given in signature.args)
        if function in _COMPARISONS:
            return self._comparison(expression, _COMPARISONS[function], first, second), types.boolean
        if function in _DIVISIONS and self._typed.raises:
            raise self._refused("a division that raises an error where it divides by zero (error_model='python')")
        left = self._cast(self._operand(expression.lhs, first), first, returns)
        right = self._cast(self._operand(expression.rhs, second), second, returns)
        if function in _ARITHMETIC and returns in (types.int64, types.uint64, types.float32, types.float64):
            return f"exact::{_ARITHMETIC[function]}({left}, {right})", returns
        if function in _BITWISE:
            return f"{_CPP[returns]}({left} {_BITWISE[function]} {right})", returns
        known = self._constant(expression.rhs)
        if isinstance(known, int | np.integer):
            if function in _SHIFTS and 0 <= known < getattr(returns, "bitwidth", 0):
                return f"{_CPP[returns]}({left} {_SHIFTS[function]} {int(known)})", returns
            if function is operator.pow and 1 <= known <= _POWER_MAX:
                return _power(left, int(known)), returns
        raise self._refused(f"the operator {function.__name__} of {first} and {second}")

    def _comparison(self, expression: ir.Expr, sign: str, first: types.Type, second: types.Type) -> str:
        if first != second:
            raise self._refused(f"a comparison of {first} with {second}")
        operands = self._operand(expression.lhs, first), self._operand(expression.rhs, first)
        return _compared(sign, first, *operands)

    def _unary(self, expression: ir.Expr) -> tuple[str, types.Type]:
        signature = self._typed.calls[expression]
        given = self._plain(signature.args[0])
        value = self._operand(expression.value, given)
        if expression.fn is operator.not_:
            return f"!{self._cast(value, given, types.boolean)}", types.boolean
        if expression.fn is operator.pos:
            return value, given
        if expression.fn is operator.neg and isinstance(given, types.Float):
            return f"exact::negate({value})", given
        # In the operand's own type, and only then in the result's.
        if expression.fn is operator.neg and isinstance(given, types.Integer):
            return f"{_CPP[given]}(0ull - u64({value}))", given
        if expression.fn is operator.invert and isinstance(given, types.Integer):
            return f"{_CPP[given]}(~u64({value}))", given
        raise self._refused(f"the operator {expression.fn.__name__} of {given}")

    def _call(self, call: ir.Expr) -> tuple[str, types.Type]:
        function = self._constant(call.func)
        signature = self._typed.calls[call]
        if call.kws or call.vararg or call.varkwarg:
            raise self._refused("a call with named arguments or *arguments")
        if isinstance(function, Dispatcher):
            return self._call_of_own(call, function, signature)
        if function in _MINMAX and len(call.args) > 1:
            return self._extreme(call, _MINMAX[function])
        if len(call.args) != 1 or not (_is_cast(function) or function in (*_ABSOLUTE, *_ROOTS, *_QUESTIONS)):
            is_error = isinstance(function, type) and issubclass(function, BaseException)
            raise self._refused(_RAISES if is_error else f"a call of {_called(function, call.func)}")
        given, returns = self._plain(signature.args[0]), self._plain(signature.return_type)
        value = self._operand(call.args[0], given)
        if function in _ABSOLUTE:
            value = self._cast(value, given, returns)
            return value if returns in types.unsigned_domain else f"exact::absolute({value})", returns
        if function in _ROOTS:
            return f"exact::square_root({self._cast(value, given, returns)})", returns
        if function in _QUESTIONS:
            of_float, of_whole = _QUESTIONS[function]
            return of_float.format(value) if isinstance(given, types.Float) else of_whole, types.boolean
        return self._cast(value, given, returns), returns

    def _call_of_own(self, call: ir.Expr, function: Dispatcher, signature: Any) -> tuple[str, types.Type]:
        given = tuple(self._plain(argument) for argument in signature.args[: len(call.args)])
        returns = self._plain(signature.return_type)
        name = self._functions.called(function, given, returns, self._place)
        values = (self._operand(value, type_) for value, type_ in zip(call.args, given, strict=True))
        return f"{name}({', '.join(values)})", returns

    def _extreme(self, call: ir.Expr, sign: str) -> tuple[str, types.Type]:
        """Of several values the first that no later one is strictly beyond, as Python has it with NaNs, too."""
        context = nb.core.registry.cpu_target.typing_context
        found, type_ = self._operand(call.args[0]), self._type(call.args[0])
        for argument in call.args[1:]:
            joined = context.unify_types(type_, self._type(argument))
            found, other = self._cast(found, type_, joined), self._operand(argument, joined)
            type_ = joined
            found = f"({_compared(sign, joined, other, found)} ? {other} : {found})"
        return found, type_

    # -- variables ----------------------------------------------------------------------------------------------

    def _captured(self) -> tuple[dict[str, Any], dict[str, str]]:
        """Of variables that are set once: constants, and (by name) what is only another name of a variable.

        That one is set once, too, or an argument, which is its place in the list of them.
        """
        body = [statement for _, block in sorted(self._typed.ir.blocks.items()) for statement in block.body]
        assigned = [statement for statement in body if isinstance(statement, ir.Assign)]
        times = Counter(statement.target.name for statement in assigned)
        known: dict[str, Any] = {}
        copies: dict[str, str] = {}
        for name, value in ((statement.target.name, statement.value) for statement in assigned):
            if times[name] > 1:
                continue
            if (found := _known(value, known)) is not _UNKNOWN:
                known[name] = found
                continue
            source = value.value if isinstance(value, ir.Expr) and value.op == "cast" else value
            if isinstance(source, ir.Arg) and self._have_one_type(name, f"arg.{source.name}"):
                copies[name] = f"a{source.index}"
            elif isinstance(source, ir.Var) and self._have_one_type(name, source.name) and times[source.name] == 1:
                if source.name in known:
                    known[name] = known[source.name]
                else:
                    copies[name] = source.name
        return known, copies

    def _have_one_type(self, one: str, other: str) -> bool:
        first, second = (types.unliteral(self._typed.types[name]) for name in (one, other))
        return bool(first == second)

    def _constant(self, variable: ir.Var) -> Any:
        return self._constants.get(variable.name, _UNKNOWN)

    def _type(self, variable: ir.Var) -> types.Type:
        return self._plain(self._typed.types[variable.name])

    def _plain(self, type_: types.Type) -> types.Type:
        """The type without what is known of the value; only numbers have one."""
        plain: types.Type = types.unliteral(type_)
        if plain not in _CPP:
            raise self._refused(f"a value of the type {_shown(type_)}")
        return plain

    def _operand(self, variable: ir.Var, wanted: types.Type | None = None) -> str:
        type_ = self._type(variable)
        constant = self._constant(variable)
        if constant is _UNKNOWN:
            text = self._name(variable.name)
            self._read.add(text)
        else:
            text = self._literal(constant, type_)
        return text if wanted is None else self._cast(text, type_, wanted)

    def _name(self, variable: str) -> str:
        """Numba's names carry numbers that differ between processes; the text must not."""
        while variable in self._copies:
            variable = self._copies[variable]
            if variable not in self._typed.types:
                return variable
        return self._names.setdefault(variable, f"v{len(self._names)}")

    @property
    def _declared(self) -> dict[str, str]:
        """Every variable with its type in C++."""
        return {name: _CPP[types.unliteral(self._typed.types[of])] for of, name in self._names.items()}

    # -- casts and constants ------------------------------------------------------------------------------------

    def _cast(self, text: str, given: types.Type, wanted: types.Type) -> str:
        if given == wanted:
            return text
        if wanted == types.boolean:
            return f"({_compared('!=', given, text, f'{_CPP[given]}(0)')})"
        if isinstance(given, types.Float):
            if isinstance(wanted, types.Float):
                return f"exact::{'widen' if wanted == types.float64 else 'narrow'}({text})"
            return f"exact::whole<{_CPP[wanted]}>({text})"
        return f"{_CPP[wanted]}({text})"

    def _literal(self, value: Any, type_: types.Type) -> str:
        if type_ == types.boolean:
            return "true" if value else "false"
        if type_ == types.float32:
            return f"exact::float_of(0x{np.float32(value).view(np.uint32):08x}u)"
        if type_ == types.float64:
            return f"exact::double_of(0x{np.float64(value).view(np.uint64):016x}ull)"
        return f"{_CPP[type_]}(0x{int(value) % 2**64:x}ull)"

    def _refused(self, reason: str) -> Unprintable:
        return Unprintable(self._place, reason)


_RAISES: Final = "it may raise an error"
_MINMAX: Final = {builtins.min: "<", builtins.max: ">"}
_OPERATIONS: Final = {
    "getiter": "a loop over a collection",
    "iternext": "a loop over a collection",
    "getitem": "an element of a collection",
    "static_getitem": "an element of a collection",
    "build_tuple": "a tuple",
    "build_list": "a list",
    "getattr": "an attribute of a value",
}


def _compared(sign: str, type_: types.Type, left: str, right: str) -> str:
    """The text of a comparison of two values of one type."""
    return _OF_FLOATS[sign].format(left, right) if isinstance(type_, types.Float) else f"{left} {sign} {right}"


def _power(base: str, exponent: int) -> str:
    """A power by squaring, in Numba's order of multiplications."""
    found = ""
    while exponent:
        if exponent & 1:
            found = f"exact::multiply({found}, {base})" if found else base
        exponent >>= 1
        base = f"exact::multiply({base}, {base})"
    return found


def _known(value: Any, known: Mapping[str, Any]) -> Any:
    """What a variable is set to, if it is a captured value, part of one, or a constant."""
    match value:
        case ir.Const() | ir.Global() | ir.FreeVar():
            return value.value
        case ir.Var():
            return known.get(value.name, _UNKNOWN)
        case ir.Expr(op="getattr"):
            owner = known.get(value.value.name, _UNKNOWN)
            return getattr(owner, value.attr, _UNKNOWN) if isinstance(owner, ModuleType) else _UNKNOWN
        case ir.Expr(op="static_getitem"):
            owner = known.get(value.value.name, _UNKNOWN)
            return owner[value.index] if isinstance(owner, tuple) else _UNKNOWN
    return _UNKNOWN


def _without_what_nobody_reads(blocks: dict[int, list[_Line]]) -> dict[int, list[_Line]]:
    """No line has an effect but on what it sets."""
    while True:
        read = {name for lines in blocks.values() for line in lines for name in line.reads}
        kept = {
            label: [line for line in lines if line.sets is None or line.sets in read]
            for label, lines in blocks.items()
        }
        if kept == blocks:
            return kept
        blocks = kept


def _number(name: str) -> int:
    return int(name[1:])


def _is_cast(function: Any) -> bool:
    return isinstance(function, type) and issubclass(function, int | float | np.number | np.bool_)


def _called(function: Any, variable: ir.Var) -> str:
    """A called function by its name."""
    name = getattr(function, "__qualname__", None) or getattr(function, "__name__", None)
    if name is None:
        return variable.name
    owner = getattr(function, "__module__", None) or ("numpy" if isinstance(function, np.ufunc) else "builtins")
    return name if owner == "builtins" else f"{owner}.{name}"


def _shown(type_: types.Type) -> str:
    return str(types.unliteral(type_))
