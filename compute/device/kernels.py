"""Cooperative kernels of programs: each is one launch of as many blocks as fit on the device side by side.

Small jobs do not fill a device: most of their time they wait for memory and at barriers. So several of a kind may
share a launch, each in a part of its blocks with barriers of its own. What a kernel makes of a job does not depend
on the number of blocks.
"""

from __future__ import annotations

import struct
from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from ...gpma.device.calling import Caller, Then
from ...gpma.device.constants import BLOCK_THREADS
from ...gpma.device.launching import Parameters
from ...gpma.device.module import import_cupy, load_cooperative_text, source, use_device
from ...gpma.device.state import THREADS_MAX, pinned
from ...partition.device_side import DeviceSide, States

_FOLDER = Path(__file__).parent

REMOTE = ("-DREMOTE=1",)
"""The option for a kernel that reads rows on the host, too (``gpma/device/leaves.cuh``)."""


class Source(NamedTuple):
    """Where a kernel comes from, and how many of its blocks a multiprocessor gets at most: more of them wait for
    each other longer, but a search is bound by memory and wants them. It has the name of its file.

    ``takes_several``: the file has another one for several jobs, of that name and ``_several``.
    """

    file: str
    macros: tuple[str, ...] = ()
    blocks: int = 1
    takes_several: bool = False


def whole_words(halves: Sequence[int], form: struct.Struct) -> tuple[Any, ...]:
    """What words of 64 bits say that were told in halves, the lower one first. ``form``: of each of them."""
    return form.unpack(struct.pack(f"={len(halves)}I", *halves))


class Variant(NamedTuple):
    """``handle``: the driver's, which ``function`` keeps alive. ``blocks``: of a launch, of ``threads`` each.

    ``several``: the variant for several jobs; None: there is none.
    """

    function: Any
    handle: Any
    blocks: int
    threads: int
    several: Variant | None = None


class Kernel:
    """A kernel in two variants: for rows that are all on the device, and for those on the host, too."""

    def __init__(self, origin: Source, head: str, *, weighted: bool) -> None:
        self._origin, self._head, self._weighted = origin, head, weighted
        self._variants: dict[bool, Variant] = {}

    def variant(self, *, remote: bool) -> Variant:
        """Compiled on first use. ``remote``: the one that also reads rows on the host.

        Raises:
            RuntimeError: it does not compile, or the device fails (as CuPy says it).
        """
        if remote not in self._variants:
            self._variants[remote] = self._compiled((*self._origin.macros, *(REMOTE if remote else ())))
        return self._variants[remote]

    def _compiled(self, macros: tuple[str, ...]) -> Variant:
        cuda = import_cupy().cuda
        origin = self._origin
        text = self._head + source(_FOLDER / origin.file)
        module = load_cooperative_text(text, weighted=self._weighted, macros=macros)
        multiprocessors = int(cuda.Device().attributes["MultiProcessorCount"])

        def variant(name: str, most: int | None) -> Variant:
            function = module.get_function(name)
            handle = function.kernel.ptr
            fit = cuda.driver.occupancyMaxActiveBlocksPerMultiprocessor(handle, BLOCK_THREADS, 0)
            blocks = multiprocessors * (fit if most is None else min(fit, most))
            assert blocks * BLOCK_THREADS <= THREADS_MAX
            return Variant(function, handle, blocks, BLOCK_THREADS)

        name = Path(origin.file).stem
        made = variant(name, origin.blocks)
        if not origin.takes_several or REMOTE[0] in macros:
            return made
        return made._replace(several=variant(f"{name}_several", None))


class Kernels:
    """The kernels of a program by name, each compiled on first use, or all before it.

    What is compiled is kept for the life of the process (``gpma/device/module.py``): for others of the same text.
    """

    def __init__(self, sources: Mapping[str, Source], *, head: str = "", weighted: bool) -> None:
        """``head`` stands before each text."""
        self._kernels = {name: Kernel(origin, head, weighted=weighted) for name, origin in sources.items()}

    def __getitem__(self, name: str) -> Kernel:
        return self._kernels[name]

    def compile(self, device: DeviceSide) -> None:
        """Compile every variant that the device may need, or load it from CuPy's cache. Any thread may call.

        Raises:
            RuntimeError: one does not compile, or the device fails (as CuPy says it).
        """
        use_device()
        for kernel in self._kernels.values():
            kernel.variant(remote=False)
            if device.reads_remote:
                kernel.variant(remote=True)


JOBS: Final = np.dtype([("jobs", np.uint64), ("blocks", np.uint32), ("unused", np.uint32)])
"""struct Jobs of ``frontier.cuh``."""


class _Several:
    """Jobs of one kind that are launched together; ``room`` of them at most."""

    def __init__(self, stream: Any, job: np.dtype[np.void], room: int) -> None:
        self.room = room
        n_bytes = room * job.itemsize
        self._jobs: npt.NDArray[np.void] = pinned(n_bytes, np.uint8)[:n_bytes].view(f"V{job.itemsize}")
        own = np.zeros(1, np.dtype(f"V{JOBS.itemsize}"))
        self._fields: Any = own.view(JOBS)
        self._parameters = RowParameters(own)
        self._caller = Caller(1, stream)

    def launch(self, variant: Variant, jobs: Sequence[npt.NDArray[np.void]], states: States) -> None:
        """Launch a kernel of several jobs on these, as often as it takes: a job has a block at least.

        What was launched so before has ended.
        """
        for place, job in enumerate(jobs):
            self._jobs[place] = job[0]
        self._parameters.take(states)
        for begin in range(0, len(jobs), variant.blocks):
            self._launch(variant, begin, min(len(jobs) - begin, variant.blocks))

    def _launch(self, variant: Variant, begin: int, n: int) -> None:
        """Launch a kernel on ``n`` jobs from ``begin`` on."""
        blocks = variant.blocks // n
        self._fields["jobs"], self._fields["blocks"] = self._jobs[begin:].ctypes.data, blocks
        self._caller.aim(variant.handle, n * blocks, variant.threads, self._parameters)
        self._caller.launch()


class RowParameters(Parameters):
    """What a kernel takes: out-rows, in-rows, and then these structures."""

    def __init__(self, *structures: npt.NDArray[np.void]) -> None:
        nothing = np.zeros(0, np.dtype("V1"))
        super().__init__((nothing, nothing, *structures))

    def take(self, states: States) -> None:
        """Have out-rows and in-rows read by these structures."""
        self.places[0], self.places[1], _ = states


class Calls:
    """Calls of kernels that take out-rows, in-rows and a job, and say in words how they ended; one at a time.

    ``job``: its fields; ``packed``: its bytes, into which goes what differs from call to call. ``address``:
    where these are. ``caller``: who carries them out.
    """

    def __init__(self, job: np.dtype[np.void], n_words: int, stream: Any, then: Then | None = None) -> None:
        """``job`` has the field ``status``, where kernels find the words. ``then``: what calls do besides."""
        self._stream = stream
        self._several: _Several | None = None
        self._bytes = np.zeros(1, np.dtype(f"V{job.itemsize}"))
        self.job: Any = self._bytes.view(job)
        self.packed = memoryview(self._bytes.view(np.uint8))
        self.address: int = self._bytes.ctypes.data
        self._parameters = self.parameters()
        self._n_words = n_words
        self.caller = Caller(n_words, stream, then)
        self.job["status"] = self.caller.address
        # What comes next is most often what came last.
        self._aimed: tuple[Kernel, States, RowParameters] | None = None

    def parameters(self, *further: npt.NDArray[np.void]) -> RowParameters:
        """Of kernels that take these structures, too, behind the job."""
        return RowParameters(self._bytes, *further)

    @property
    def aimed(self) -> object:
        """What stands for the kernel that was launched last, the rows that it read and its parameters: with any
        other of them it is another object."""
        return self._aimed

    def next_number(self) -> int:
        """The number of the next call: it goes into the job, and comes back with the words."""
        return self.caller.next_number()

    def launch(self, kernel: Kernel, device: DeviceSide, parameters: RowParameters | None = None) -> None:
        """Launch a kernel with the job as it is; waits for nothing. ``parameters``: others than the job's own.

        Raises:
            RuntimeError: the device, as CuPy says it, or it cannot read the rows on the host.
        """
        self.aim(kernel, device, parameters)
        self.caller.launch()

    def launch_with(self, others: Sequence[Calls], kernel: Kernel, device: DeviceSide) -> None:
        """Launch a kernel with the jobs of this and of others as they are; waits for nothing.

        ``others``: on the same stream.

        Raises:
            MemoryError: there is not enough for so many jobs.
            RuntimeError: as ``launch``.
        """
        variant = kernel.variant(remote=device.remote is not None)
        if not others or variant.several is None:
            for calls in (self, *others):
                calls.launch(kernel, device)
            return
        jobs = [calls._bytes for calls in (self, *others)]
        if self._several is None or self._several.room < len(jobs):
            self._several = _Several(self._stream, self.job.dtype, len(jobs))
        for calls in others:
            calls.caller.expect()
        self.caller.expect()
        self._several.launch(variant.several, jobs, device.states())

    def call(self, kernel: Kernel, device: DeviceSide, parameters: RowParameters | None = None) -> None:
        """``launch``, and wait for the call that has the last number.

        Raises:
            RuntimeError: as ``launch`` and ``wait``.
        """
        self.aim(kernel, device, parameters)
        self.caller.call()

    def wait(self) -> list[int]:
        """The words of the call that has the last number: waits for it, if nobody has.

        Raises:
            RuntimeError: the kernel failed (as CuPy says it), or ended without a word.
        """
        self.caller.wait()
        words: list[int] = self.caller.said[: self._n_words].tolist()
        return words

    def aim(self, kernel: Kernel, device: DeviceSide, parameters: RowParameters | None = None) -> None:
        """Have ``caller`` launch this from now on.

        Raises:
            RuntimeError: as ``launch``.
        """
        states, parameters = device.states(), parameters or self._parameters
        aimed = self._aimed
        if aimed is not None and aimed[0] is kernel and aimed[1] is states and aimed[2] is parameters:
            return
        variant = kernel.variant(remote=states.reads_remote)
        parameters.take(states)
        self._aimed = kernel, states, parameters
        self.caller.aim(variant.handle, variant.blocks, variant.threads, parameters)


class KernelCall(NamedTuple):
    """A call that a run by steps asks for (``compute/steps.py``): a kernel, with the job of ``calls`` as it is."""

    calls: Calls
    kernel: Kernel
    device: DeviceSide

    @property
    def kind(self) -> Hashable:
        return self.kernel

    @property
    def crowd(self) -> None:
        return None

    def begin(self, others: Sequence[Self]) -> None:
        self.calls.launch_with([other.calls for other in others], self.kernel, self.device)

    def carry_out(self) -> None:
        self.calls.call(self.kernel, self.device)
