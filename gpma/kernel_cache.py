"""Numba's disk cache, shared by processes that compile side by side: no kernel is compiled twice.

By itself that cache loses entries when two processes save forms of one kernel at the same time (its index is read,
changed and written), and both would compile what both need. Here a process that does not find a kernel takes the
kernel's *turn*: a lock on one byte of a file in that folder of the cache. All of it happens under Numba's own lock
of compiling, so that the threads of a process take turns anyway. Who finds the turn taken waits and then loads
what the other has saved. The system frees the turns of a process that ends, however it ends. Kernels wait only for
those that they call, so that turns cannot be waited for in a circle.

By itself it also goes by the text of a kernel's own file alone. Functions and constants of other modules become
part of a kernel, too: here it is another kernel where any of them is another (``made_of.py``). Since that says all
there is to say, it makes no difference where graphtide is installed: an upgrade, another virtual environment and
another checkout find what they have in common with those before, and leave what others have.

What came compiled with graphtide (``shipped.py``) is taken before any of that. Kernels of other packages, such as
those of users' programs, are kept and loaded as Numba does it, so that it can read them where graphtide is not,
unless they use functions of several files.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import hashlib
import os
import pickle
import time
from collections.abc import Callable, Iterator
from typing import Any

import numba.core.dispatcher
from numba.core import event
from numba.core.caching import FunctionCache, NullCache
from numba.core.runtime.nrt import rtsys

from . import made_of, shipped, unused_kernels
from .relied_on import lacking

MISSING = "graphtide:missing"
"""Numba's event (``numba.core.event``) that a kernel is not in the cache: before it is compiled, and again and
again while another process does that. A listener that raises ends the wait."""


class Missing(BaseException):
    """A kernel is not in the cache."""


@contextlib.contextmanager
def listening(kind: str, hears: Callable[[], None]) -> Iterator[None]:
    """Calls the function whenever one of Numba's events of this kind begins."""

    class Listener(event.Listener):  # type: ignore[misc]
        def on_start(self, begun: Any) -> None:
            hears()

        def on_end(self, ended: Any) -> None: ...

    listener = Listener()
    event.register(kind, listener)  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        event.unregister(kind, listener)  # type: ignore[no-untyped-call]


def only_from_cache() -> contextlib.AbstractContextManager[None]:
    """In here kernels are loaded, and nothing is compiled.

    Raises:
        Missing: a kernel that is called is not in the cache.
    """
    return listening(MISSING, _refuse)


def _refuse() -> None:
    raise Missing


_FILE = "turns.lock"
_LOOK_SECONDS = 0.02
_FORM = "apart"
"""What is kept in another form, which other versions may not be able to read, has another name here."""


FORMS_MAX = 4
"""How many versions of a kernel are kept of one form: those of checkouts that are used in turns, say."""


class _Turns:
    """The turns that this process holds. One may be taken again while it is held."""

    def __init__(self) -> None:
        self._held: dict[tuple[str, str], int] = {}
        self._files: dict[str, int | None] = {}

    def take(self, folder: str, name: str) -> bool:
        """Whether nobody else has it; where no locks can be had nobody waits, and work may be done twice."""
        file = self._file(folder)
        if file is None:
            return True
        if (folder, name) not in self._held:
            try:
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, _place(name))
            except (BlockingIOError, PermissionError):  # which of them is the system's choice
                return False
            except OSError:
                return True
        self._held[folder, name] = self._held.get((folder, name), 0) + 1
        return True

    def give(self, folder: str, name: str) -> None:
        """Let others have the turn; harmless where it is not held."""
        held = self._held.pop((folder, name), 0) - 1
        if held > 0:
            self._held[folder, name] = held
        elif held == 0 and (file := self._file(folder)) is not None:
            fcntl.lockf(file, fcntl.LOCK_UN, 1, _place(name))

    def holds(self, folder: str, name: str) -> bool:
        return (folder, name) in self._held

    def _file(self, folder: str) -> int | None:
        # Kept open for good: closing any descriptor of the file would free all turns of this process.
        if folder not in self._files:
            try:
                flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
                self._files[folder] = os.open(os.path.join(folder, _FILE), flags, 0o600)
            except OSError:
                self._files[folder] = None
        return self._files[folder]


def _place(name: str) -> int:
    """The byte of the file that stands for a kernel; of 2^48, so that no two kernels share one."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:6], "little")


_turns = _Turns()


class SharedCache(FunctionCache):
    """A kernel's cache that waits for whoever is compiling the same kernel, and knows what it is made of.

    ``options`` are those by which it is compiled.
    """

    def __init__(self, function: Any) -> None:
        self.options: tuple[str, ...] = ()
        self._made_of: str | None = None
        self._lazy = lacking() is None and shipped.is_ours(function)
        if self._lazy:
            from .lazy_linking import LazyCacheImpl

            self._impl_class = LazyCacheImpl
        super().__init__(function)  # type: ignore[no-untyped-call]

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """The compiled form, or None: then the caller compiles it, and all others wait for that."""
        found = shipped.load(self._py_func, sig, target_context)
        if found is None:
            found = self._load(sig, target_context)
        if found is None:
            self._take_turn()
            found = self._load(sig, target_context)
            if found is not None:
                self.give_turn()
        return found

    def _load(self, sig: Any, target_context: Any) -> Any:
        found = self._found(sig, target_context)
        if found is not None:
            unused_kernels.note_use(self._cache_file._index_path)
        return found

    def _found(self, sig: Any, target_context: Any) -> Any:
        try:
            if self._lazy:
                # Numba would first load all that its compiler needs, for as long as our kernels take.
                rtsys.initialize(target_context)
                return self._load_overload(sig, target_context)  # type: ignore[no-untyped-call]
            return super().load_overload(sig, target_context)  # type: ignore[no-untyped-call]
        except (AttributeError, ImportError, EOFError, OSError, pickle.UnpicklingError):
            # Of another version, whose types are no longer there, or cut, or another user's: no guide to anything.
            with contextlib.suppress(OSError):
                os.unlink(self._cache_file._index_path)
            return None

    def save_overload(self, sig: Any, data: Any) -> None:
        """Save the compiled form, and let the next one have its turn."""
        try:
            if lacking() is None:
                key = self._index_key(sig, data.codegen)
                self._forget_oldest(key)
                # No file is written anew for another kernel: who has just read the index would take that.
                digest = hashlib.sha256(repr(key).encode()).hexdigest()[:16]
                self._cache_file._data_name_pattern = f"{self._impl.filename_base}.{digest}-{{number:d}}.nbc"
            super().save_overload(sig, data)  # type: ignore[no-untyped-call]
            unused_kernels.note_use(self._cache_file._index_path)
        except OSError:  # a full disk, say: the kernel is there all the same, for this process
            pass
        finally:
            self.give_turn()

    def _index_key(self, sig: Any, *others: Any) -> tuple[Any, ...]:
        """By what the index knows a form: Numba's key, and what the form is made of beside that."""
        key: tuple[Any, ...] = super()._index_key(sig, *others)  # type: ignore[no-untyped-call]
        if self._made_of is None:  # not before: when it is defined, what it calls need not be there
            whole = made_of.whole(self._py_func)
            by_numba = not shipped.is_ours(self._py_func) and whole.files == {self._py_func.__code__.co_filename}
            self._made_of = "" if by_numba else f"{whole.digest} {self.options} {_FORM}"
        if not self._made_of:
            return key
        types = getattr(sig, "args", sig)  # a tuple, or a signature where the result's type was given, too
        return *key, hashlib.sha256(f"{self._made_of} {[*made_of.fields(types)]}".encode()).hexdigest()

    def _forget_oldest(self, key: tuple[Any, ...]) -> None:
        """Leave room for this form among those that differ only in what they are made of, the oldest first."""
        forms = self._cache_file._load_index()
        others = [other for other in forms if other != key and other[:3] == key[:3]]
        for other in others[: max(0, len(others) + 1 - FORMS_MAX)]:
            with contextlib.suppress(OSError):
                os.unlink(self._cache_file._data_path(forms.pop(other)))
            self._cache_file._save_index(forms)

    def _take_turn(self) -> None:
        event.start_event(MISSING)  # type: ignore[no-untyped-call]
        while not _turns.take(self.cache_path, self._impl.filename_base):
            time.sleep(_LOOK_SECONDS)
            event.start_event(MISSING)  # type: ignore[no-untyped-call]

    @property
    def holds_turn(self) -> bool:
        """Whether others wait for this process to compile this kernel."""
        return _turns.holds(self.cache_path, self._impl.filename_base)

    def give_turn(self) -> None:
        """Let others compile this kernel."""
        _turns.give(self.cache_path, self._impl.filename_base)


class _GiveUp(event.Listener):  # type: ignore[misc]
    """A kernel that cannot be compiled is never saved: its turn ends here."""

    def on_start(self, compiling: Any) -> None: ...

    def on_end(self, compiling: Any) -> None:
        dispatcher, args = compiling.data["dispatcher"], tuple(compiling.data["args"])
        if args not in dispatcher.overloads and isinstance(dispatcher._cache, SharedCache):
            dispatcher._cache.give_turn()


class _Unwritten(NullCache):  # type: ignore[misc]
    """A kernel's cache where no folder can be written: what did not come compiled each process compiles."""

    def __init__(self, function: Any) -> None:
        self._function = function

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """The compiled form that came with graphtide, or None."""
        found = shipped.load(self._function, sig, target_context)
        if found is None:
            event.start_event(MISSING)  # type: ignore[no-untyped-call]
        return found


def _cache_of(function: Any) -> SharedCache | _Unwritten:
    try:
        return SharedCache(function)  # type: ignore[no-untyped-call]
    except RuntimeError:  # no folder will do
        return _Unwritten(function)


def _telling_options(enable_caching: Callable[[Any], None]) -> Callable[[Any], None]:
    """Numba tells a cache which function it is for, and nothing of how that is compiled."""

    @functools.wraps(enable_caching)
    def enable(dispatcher: Any) -> None:
        enable_caching(dispatcher)
        cache: Any = dispatcher._cache
        if hasattr(cache, "options"):  # one of ours
            cache.options = tuple(map(str, made_of.options(dispatcher)))

    return enable


def install() -> None:
    """Let all kernels that are defined from now on use it."""
    if numba.core.dispatcher.FunctionCache is not _cache_of:  # type: ignore[attr-defined]
        numba.core.dispatcher.FunctionCache = _cache_of  # type: ignore[attr-defined]
        dispatchers: Any = numba.core.dispatcher.Dispatcher
        dispatchers.enable_caching = _telling_options(dispatchers.enable_caching)
        event.register("numba:compile", _GiveUp())  # type: ignore[no-untyped-call]
        if lacking() is None:
            from . import lazy_linking  # noqa: F401 - which installs itself


install()  # here, not by who imports it: when Numba has it imported, it may be half done itself
