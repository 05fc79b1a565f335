"""A team of threads for compiled work in pieces: those that are free help, none is waited for before it begins.

A kernel shares work by ``share``::

    def sums(thread, values, cursor, out):  # runs on each thread that takes part
        for piece in drawn(cursor, out.size):
            out[piece] = ...

    def kernel(..., crew):
        share(crew, sums, (values, cursor, out))

The caller works, too, and alone it would do everything: what is shared draws its pieces from a counter. So the
work ends when the caller finds no more pieces and those who helped are done with theirs. A thread that the
system has not yet let run, because another process has its core, is not waited for, and finds nothing to do
when it comes. Nor does it matter how many threads there are: what pieces leave is put together in their order.

**How they meet.** There are a few places for jobs in an array, ``words``, that all threads share. A job has a
*gate*, one word that changes by compare-and-swap: how many helpers may still enter, how many are inside, and
whether it is closed. Who waits, waits on a semaphore: free threads on the team's, and a caller on its job's, until
the last helper has left. The caller wakes two helpers and begins; each that enters wakes two more, so that waking
is no burden to anybody, and stops as soon as nothing is left to do. A kernel shares work several times in a row,
and to wake a thread takes as long as some of it: so who has just done something *looks* for a moment whether more
has begun before it waits, and fewer are woken then. That moment is about what a wake costs, and only work that
was done begins another. Work within shared work is shared in the same way. All of it is compiled code that holds
no interpreter lock.
"""

from __future__ import annotations

import ctypes
import platform
import threading
import weakref
from types import SimpleNamespace
from typing import Any, NamedTuple

import numba as nb
import numpy as np
import numpy.typing as npt
from llvmlite import ir
from numba.core import callconv, cgutils, types
from numba.extending import intrinsic

from .atomics import load, ordered_add, ordered_swap
from .intrinsics import inner, uncounted
from .relied_on import lacking
from .threads import start_thread
from .written import record_type

_jit = nb.njit(cache=True, nogil=True, error_model="numpy")
_inner: Any = inner

Words = npt.NDArray[np.int64]

THREADS_MAX = 4096

# Places in the words: the order to stop, whether work is broken off, the semaphore of those who are free, how many
# jobs there were, how many threads look for one, and jobs, each in lines of its own.
_STOP, _BROKEN_OFF, _FREE, _CALLED, _LOOKING, _JOBS = 0, 1, 8, 16, 24, 32
_N_JOBS = 16
# Of a job: whether it is taken, its gate, the addresses of its work and of what that works on, how many helpers it
# asked for, and the semaphore of the caller.
_TAKEN, _GATE, _WORK, _DATA, _WANTED, _DONE, _JOB_WORDS = 0, 1, 2, 3, 4, 8, 16
_N_WORDS = _JOBS + _N_JOBS * _JOB_WORDS
# Of a gate: helpers inside, helpers that may still enter (in units of this), and whether it is closed.
_INSIDE, _TICKET, _CLOSED = 0xFFFF, 1 << 16, 1 << 32
# So many are woken by the caller, and by each helper.
_WAKE = 2
# Who has done something looks so often for more before it waits, which takes 10 to 25 us; and so many do at most.
_LOOKS, _LOOKING_MAX = 500, 15
_LINE_BYTES = 64
# Whether the processor has an instruction for waiting between two looks.
_PAUSES = platform.machine() in ("x86_64", "AMD64")


class Crew(NamedTuple):
    """What a kernel takes of a team: how many ``threads`` may work for it, with the caller's, and the words."""

    threads: int
    words: Words


CREW = record_type(Crew, nb.int64, nb.int64[::1])

ALONE = Crew(1, np.zeros(_N_WORDS, np.int64))
"""No team: the caller's thread does everything."""


class BrokenOff(Exception):
    """Work was broken off, since nobody wants its outcome any more (``Team.break_off``). It is left half done."""


@nb.njit(cache=True, nogil=True, error_model="numpy", inline="always")
def broken_off(crew):  # type: ignore[no-untyped-def]
    """Whether ``Team.break_off`` was called: to be asked between two steps of what takes long."""
    return load(crew.words, _BROKEN_OFF) != 0


@nb.njit(cache=True, nogil=True, error_model="numpy", inline="always")
def at_most(crew, pieces):  # type: ignore[no-untyped-def]
    """The crew for so many pieces: none of its threads is woken for nothing."""
    return Crew(max(min(crew.threads, pieces), 1), crew.words)


@nb.njit(cache=True, nogil=True, error_model="numpy", inline="always")
def for_much(crew, is_much):  # type: ignore[no-untyped-def]
    """The crew for much work; for little, which is not worth a wake, the caller's thread alone."""
    return Crew(crew.threads if is_much else 1, crew.words)


@uncounted
def begin_behind(counts: Words) -> Any:
    """Have each entry be the sum of those before it: where what a piece has counted will begin. The sum of all."""
    before = np.int64(0)
    for piece in range(counts.size):
        count = counts[piece]
        counts[piece] = before
        before += count
    return before


class Team:
    """So many threads, the caller's included, which end with ``close`` or with this object."""

    def __init__(self, threads: int) -> None:
        """Where the system grants fewer threads, these do."""
        if not 1 <= threads <= THREADS_MAX:
            raise ValueError(f"a team has 1 to {THREADS_MAX} threads, not {threads}")
        self._words = _new_words()
        self.threads = threads
        self._all = Crew(threads, self._words)
        self._helpers: list[threading.Thread] = []
        serve.compile(_SERVE)
        _stop.compile(_SERVE[:1])
        for number in range(threads - 1):
            helper = threading.Thread(
                target=serve, args=(self._words, number), name=f"team-{number + 1}", daemon=True
            )
            try:
                start_thread(helper)
            except RuntimeError:  # no more threads, or the process ends
                break
            self._helpers.append(helper)
        self._end = weakref.finalize(self, _stop, self._words)

    def crew(self, threads: int | None = None) -> Crew:
        """For a kernel that may use so many of the threads; None: all."""
        return self._all if threads is None else Crew(max(1, min(threads, self.threads)), self._words)

    def break_off(self) -> None:
        """Have what takes long end soon, by ``BrokenOff``, now and from now on; any thread may call."""
        self._words[_BROKEN_OFF] = 1

    def require_wanted(self) -> None:
        """
        Raises:
            BrokenOff: ``break_off`` was called.
        """
        if self._words[_BROKEN_OFF]:
            raise BrokenOff("nobody wants this any more")

    def close(self) -> None:
        """End the threads; later work is done by the caller's alone."""
        self._end()
        for helper in self._helpers:
            helper.join()
        self._helpers.clear()


def _new_words() -> Words:
    """Words that begin a line of the cache, with their semaphores."""
    room = np.zeros(_N_WORDS + _LINE_BYTES // 8, np.int64)
    begin = -room.ctypes.data % _LINE_BYTES // 8
    words = room[begin : begin + _N_WORDS]
    libc = ctypes.CDLL(None, use_errno=True)
    for at in (_FREE, *range(_JOBS + _DONE, _N_WORDS, _JOB_WORDS)):
        if libc.sem_init(ctypes.c_void_p(words.ctypes.data + 8 * at), 0, 0) != 0:
            raise OSError(ctypes.get_errno(), "no semaphore for a team of threads")
    return words


def _calling(name: str) -> Any:
    """An intrinsic that calls a function of the C library on the address of an element: (array, index)."""

    def typed(typing_context: Any, array: Any, index: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            made = context.make_array(signature.args[0])(context, builder, arguments[0])
            place = builder.bitcast(builder.gep(made.data, [arguments[1]]), _ADDRESS)
            kind = ir.FunctionType(ir.IntType(32), [_ADDRESS])
            function: Any = cgutils.get_or_insert_function(builder.module, kind, name)  # type: ignore[no-untyped-call]
            return builder.sext(builder.call(function, [place]), _INT64)

        return types.int64(array, types.intp), generate

    return intrinsic(typed)


_ADDRESS, _INT64 = ir.IntType(8).as_pointer(), ir.IntType(64)
# Work as a job has it: called with the address of its arguments, and the number of the thread.
_WORK_TYPE = ir.FunctionType(ir.VoidType(), [_ADDRESS, _INT64])


def _call(typing_context: Any, work: Any, data: Any, thread: Any) -> Any:
    """call(work, data, thread): do the work at this address."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        work_address, data_address, number = arguments
        function = builder.inttoptr(work_address, _WORK_TYPE.as_pointer())
        builder.call(function, [builder.inttoptr(data_address, _ADDRESS), number])
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), generate


def _pause(typing_context: Any) -> Any:
    """pause(): let a processor wait a moment between two looks at a word, where it has an instruction for that."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        if _PAUSES:
            kind = ir.FunctionType(ir.VoidType(), [])
            builder.call(cgutils.get_or_insert_function(builder.module, kind, "llvm.x86.sse2.pause"), [])  # type: ignore[no-untyped-call]
        return context.get_dummy_value()

    return types.void(), generate


_pause_a_moment: Any = intrinsic(_pause)
_sem_post: Any = _calling("sem_post")
_sem_wait: Any = _calling("sem_wait")
_call_work: Any = intrinsic(_call)


@_inner
def _wait(words, at):  # type: ignore[no-untyped-def]
    while _sem_wait(words, at) != 0:  # a signal came in between
        pass


@_inner
def _wake(words, wanted):  # type: ignore[no-untyped-def]
    """Wake some who wait, where so many are wanted and too few look by themselves."""
    # In one order with what was told before, for all threads: a plain load comes too early on some processors.
    for _ in range(min(wanted - ordered_add(words, _LOOKING, np.int64(0)), _WAKE)):
        _sem_post(words, _FREE)


@_inner
def _look(words, called, looks):  # type: ignore[no-untyped-def]
    """Look whether more jobs were begun than so many, so often at most; how often it may look after that, 0: it is
    time to wait."""
    if ordered_add(words, _LOOKING, np.int64(1)) >= _LOOKING_MAX:
        looks = np.int64(0)
    while looks > 0 and load(words, _CALLED) == called:
        _pause_a_moment()
        looks -= 1
    ordered_add(words, _LOOKING, np.int64(-1))
    # Whoever begins one tells first, and then sees who looks: it counts on those.
    return max(looks, np.int64(1)) if ordered_add(words, _CALLED, np.int64(0)) != called else np.int64(0)


@_inner
def _help(words, first):  # type: ignore[no-untyped-def]
    """Enter a job that wants help and do what is to be done there; false: there is none."""
    for k in range(_N_JOBS):
        job = np.int64(_JOBS + (first + k) % _N_JOBS * _JOB_WORDS)
        gate = load(words, job + _GATE)
        while gate >= _TICKET and gate < _CLOSED:
            seen = ordered_swap(words, job + _GATE, gate, gate - _TICKET + 1)
            if seen == gate:
                more = (gate >> 16) - 1
                thread = words[job + _WANTED] - more
                _wake(words, more)
                _call_work(words[job + _WORK], words[job + _DATA], thread)
                if ordered_add(words, job + _GATE, np.int64(-1)) == _CLOSED + 1:
                    _sem_post(words, job + _DONE)
                return True
            gate = seen
    return False


@_jit
def serve(words, first):  # type: ignore[no-untyped-def]
    """What a thread of the team does until it is told to stop; ``first``: the job that it looks at first."""
    while True:
        _wait(words, np.int64(_FREE))
        if load(words, _STOP) != 0:
            _sem_post(words, _FREE)
            return
        looks = np.int64(0)  # one is often woken for what others have done by then: that is no reason to look
        while True:
            called = load(words, _CALLED)
            if _help(words, first):
                looks = np.int64(_LOOKS)
            elif looks > 0:
                looks = _look(words, called, looks)
            if looks == 0:
                break


_SERVE = (nb.types.Array(nb.types.int64, 1, "C"), nb.types.int64)


@_jit
def _stop(words):  # type: ignore[no-untyped-def]
    ordered_swap(words, _STOP, np.int64(0), np.int64(1))
    _sem_post(words, _FREE)


@_jit
def _run(threads, words, work, data):  # type: ignore[no-untyped-def]
    """Do the work at this address on the caller's thread, and let free ones help."""
    job = np.int64(-1)
    if threads > 1 and load(words, _STOP) == 0:
        for k in range(_N_JOBS):
            at = np.int64(_JOBS + k * _JOB_WORDS)
            free = load(words, at + _TAKEN) == 0
            if free and ordered_swap(words, at + _TAKEN, np.int64(0), np.int64(1)) == 0:
                job = at
                break
    if job < 0:
        _call_work(work, data, np.int64(0))
        return
    words[job + _WORK] = work
    words[job + _DATA] = data
    words[job + _WANTED] = threads - 1
    ordered_swap(words, job + _GATE, np.int64(0), (threads - 1) * np.int64(_TICKET))
    ordered_add(words, _CALLED, np.int64(1))
    _wake(words, threads - 1)
    _call_work(work, data, np.int64(0))
    gate = load(words, job + _GATE)
    seen = ordered_swap(words, job + _GATE, gate, gate & _INSIDE | _CLOSED)
    while seen != gate:
        gate = seen
        seen = ordered_swap(words, job + _GATE, gate, gate & _INSIDE | _CLOSED)
    if gate & _INSIDE:
        looks = np.int64(_LOOKS)
        while looks > 0 and load(words, job + _GATE) & _INSIDE:
            _pause_a_moment()
            looks -= 1
        _wait(words, job + _DONE)
    ordered_swap(words, job + _GATE, np.int64(_CLOSED), np.int64(0))
    ordered_swap(words, job + _TAKEN, np.int64(1), np.int64(0))


def _share(typing_context: Any, crew: Any, work: Any, arguments: Any) -> Any:
    """share(crew, work, arguments): ``work(thread, *arguments)`` on the caller's thread and on others.

    The caller's is number 0; others have numbers below ``crew.threads``, each its own. ``work`` is a compiled
    function; what it returns is dropped.

    Raises:
        what the work raised, on any thread; where several did, what one of them raised.
    """
    called = typing_context.resolve_function_type(work, (types.int64, *arguments.types), {})
    words = crew.types[1]
    run = typing_context.resolve_function_type(
        types.Dispatcher(_run), (types.int64, words, types.int64, types.int64), {}
    )

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        crew_value, _, arguments_value = values
        box_type = ir.LiteralStructType([context.get_value_type(arguments), _INT64])
        box = cgutils.alloca_once(builder, box_type)  # type: ignore[no-untyped-call]
        builder.store(arguments_value, _field(builder, box, 0))
        builder.store(_INT64(0), _field(builder, box, 1))
        function = _boxed(context, builder.module, work.dispatcher, called, box_type)
        thread_count, words_value = builder.extract_value(crew_value, 0), builder.extract_value(crew_value, 1)
        addresses = [builder.ptrtoint(place, _INT64) for place in (function, box)]
        own = _linked(context, _run, run)
        context.call_internal(builder, own, run, [thread_count, words_value, *addresses])
        raised = builder.load(_field(builder, box, 1))
        with builder.if_then(builder.icmp_signed("!=", raised, _INT64(0)), likely=False):
            what = builder.inttoptr(raised, callconv.excinfo_ptr_t)
            status = SimpleNamespace(code=callconv.RETCODE_USEREXC, excinfoptr=what)
            context.call_conv.return_status_propagate(builder, status)
        return context.get_dummy_value()

    return types.void(crew, work, arguments), generate


def _boxed(context: Any, module: Any, dispatcher: Any, signature: Any, box_type: Any) -> Any:
    """The work as a function of the address of its arguments; behind them it leaves where its exception is."""
    function = ir.Function(module, _WORK_TYPE, module.get_unique_name("shared_work"))
    function.linkage = "internal"
    builder = ir.IRBuilder(function.append_basic_block("entry"))
    address, thread = function.args
    box = builder.bitcast(address, box_type.as_pointer())
    arguments = builder.load(_field(builder, box, 0))
    values = [builder.extract_value(arguments, k) for k in range(len(signature.args) - 1)]
    work = _apart(context, dispatcher, signature)
    status, _ = context.call_internal_no_propagate(builder, work, signature, [thread, *values])
    with builder.if_then(status.is_error, likely=False):
        builder.store(builder.ptrtoint(status.excinfoptr, _INT64), _field(builder, box, 1))
    builder.ret_void()
    return function


def _apart(context: Any, dispatcher: Any, signature: Any) -> Any:
    """What a compiled function is called by where it lies: it is called by its address in any case."""
    compiled = dispatcher.get_compile_result(signature)
    library = context.active_code_library
    if lacking() is None:
        library.call(compiled)
    else:
        library.add_linking_library(compiled.library)
    return compiled.fndesc


def _linked(context: Any, dispatcher: Any, signature: Any) -> Any:
    """What a compiled function is called by; it becomes part of the code that is being made."""
    compiled = dispatcher.get_compile_result(signature)
    context.active_code_library.add_linking_library(compiled.library)
    return compiled.fndesc


def _field(builder: Any, box: Any, index: int) -> Any:
    return cgutils.gep_inbounds(builder, box, 0, index)  # type: ignore[no-untyped-call]


# Type checkers see the typing context as a parameter, which callers do not pass.
share: Any = intrinsic(_share)
