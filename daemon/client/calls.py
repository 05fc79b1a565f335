"""Requests described as calls, and methods of both clients made of such descriptions.

``@ClientMethod`` over a function that describes a request makes it a method which, on a client that blocks,
returns what the answer means, and on an asynchronous one a coroutine of the same.
"""

from __future__ import annotations

import functools
import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from types import MethodType
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, TypeVar, overload

from .wire import Response

P = ParamSpec("P")
Q = ParamSpec("Q")
T = TypeVar("T")
U = TypeVar("U")
T_co = TypeVar("T_co", covariant=True)
U_co = TypeVar("U_co", covariant=True)

WAIT_MARGIN_S = 5.0
"""How much longer than the server the client waits, so that the server's own timeout is the one that is seen."""


@dataclass(frozen=True, slots=True)
class Call(Generic[T]):
    """A request, and how to read its result. ``wait_s``: how long the server may take on purpose.

    ``reads``: it changes nothing, so that one whose answer was lost may be put once more, to another replica, too.
    """

    method: str
    params: Mapping[str, Any]
    decode: Callable[[Mapping[str, Any]], T]
    wait_s: float = 0.0
    reads: bool = True

    def timeout_s(self, usual_s: float) -> float:
        """How long the client waits for the answer."""
        return max(usual_s, self.wait_s + WAIT_MARGIN_S) if self.wait_s else usual_s

    def result(self, response: Response) -> T:
        """What the response means; an error is raised."""
        if response.error is not None:
            raise response.error
        return self.decode(response.result)


# -- the two kinds of clients -------------------------------------------------------------------------------


class Blocking(ABC):
    """A client whose methods return results."""

    @abstractmethod
    def _call(self, call: Call[T]) -> T:
        """Make the request."""

    @staticmethod
    def _method(describe: Callable[..., Call[T]]) -> Callable[..., T]:
        @functools.wraps(describe)
        def method(self: Blocking, *args: Any, **kwargs: Any) -> T:
            return self._call(describe(self, *args, **kwargs))

        return method


class Asynchronous(ABC):
    """A client whose methods return coroutines of results."""

    @abstractmethod
    async def _call(self, call: Call[T]) -> T:
        """Make the request."""

    @staticmethod
    def _method(describe: Callable[..., Call[T]]) -> Callable[..., Coroutine[Any, Any, T]]:
        @functools.wraps(describe)
        async def method(self: Asynchronous, *args: Any, **kwargs: Any) -> T:
            return await self._call(describe(self, *args, **kwargs))

        return method


# -- methods made of descriptions ---------------------------------------------------------------------------


class _Method:
    """The common part of ``ClientMethod`` and ``ClientMethodOfTwoForms``: a function for each class of clients.

    ``signature``: what people are shown.
    """

    def __init__(self, describe: Callable[..., Call[Any]], signature: inspect.Signature) -> None:
        self._describe = describe
        self._signature = signature
        self._name = describe.__name__
        self._made: dict[type, Any] = {}

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def _of(self, client: Any, owner: Any) -> Any:
        method = self._made.get(owner)
        if method is None:
            method = owner._method(self._describe)
            method.__name__, method.__qualname__ = self._name, f"{owner.__qualname__}.{self._name}"
            method.__signature__ = self._signature
            self._made[owner] = method
        return method if client is None else MethodType(method, client)


class ClientMethod(_Method, Generic[P, T]):
    """A method that makes the request which the decorated function describes."""

    def __init__(self, describe: Callable[Concatenate[Any, P], Call[T]]) -> None:
        super().__init__(describe, _without_call(inspect.signature(describe)))

    @overload
    def __get__(self, client: None, owner: type) -> Callable[..., Any]: ...
    @overload
    def __get__(self, client: Blocking, owner: type) -> Callable[P, T]: ...
    @overload
    def __get__(self, client: Asynchronous, owner: type) -> Callable[P, Coroutine[Any, Any, T]]: ...
    def __get__(self, client: Any, owner: type) -> Any:
        return self._of(client, owner)


class TwoForms(Protocol[P, T_co, Q, U_co]):
    """A function of two forms."""

    @overload
    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> T_co: ...
    @overload
    def __call__(self, *args: Q.args, **kwargs: Q.kwargs) -> U_co: ...


class ClientMethodOfTwoForms(_Method, Generic[P, T, Q, U]):
    """A method that makes one request where its first argument is a string, and another where it is several.

    The names of the parameters and the documentation are the first one's.
    """

    def __init__(
        self,
        one: Callable[Concatenate[Any, P], Call[T]],
        several: Callable[Concatenate[Any, Q], Call[U]],
    ) -> None:
        signature, other = _without_call(inspect.signature(one)), _without_call(inspect.signature(several))
        client, first, *rest = signature.parameters.values()
        either = f"{first.annotation} | {other.parameters[first.name].annotation}"

        @functools.wraps(one)
        def describe(client: Any, *args: Any, **kwargs: Any) -> Call[Any]:
            form: Any = one if isinstance(args[0] if args else kwargs.get(first.name, ""), str) else several
            call: Call[Any] = form(client, *args, **kwargs)
            return call

        self._forms = one, several
        super().__init__(
            describe,
            signature.replace(
                parameters=[client, first.replace(annotation=either), *rest],
                return_annotation=f"{signature.return_annotation} | {other.return_annotation}",
            ),
        )

    def __set_name__(self, owner: type, name: str) -> None:
        super().__set_name__(owner, name)
        for form in self._forms:  # what Python says of arguments that are missing names the function
            form.__qualname__ = f"{owner.__qualname__}.{name}"

    @overload
    def __get__(self, client: None, owner: type) -> Callable[..., Any]: ...
    @overload
    def __get__(self, client: Blocking, owner: type) -> TwoForms[P, T, Q, U]: ...
    @overload
    def __get__(
        self, client: Asynchronous, owner: type
    ) -> TwoForms[P, Coroutine[Any, Any, T], Q, Coroutine[Any, Any, U]]: ...
    def __get__(self, client: Any, owner: type) -> Any:
        return self._of(client, owner)


def _without_call(signature: inspect.Signature) -> inspect.Signature:
    """As a caller sees it: what the answer means instead of ``Call`` of it."""
    inner = str(signature.return_annotation).removeprefix("Call[").removesuffix("]")
    return signature.replace(return_annotation=inner)
