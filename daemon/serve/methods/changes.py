"""Requests to hear of what epochs change."""

from __future__ import annotations

from dataclasses import dataclass

from ....compute.program import ExternalId
from ....gpma.edges import distinct
from ....gpma.index.ids import MAX_STRING_ID_BYTES, IdColumn, StringColumn
from ..asker import Asker
from ..largest import Largest
from ..params import Outcome, Params, wrong
from ..results import Snapshot
from ..scopes import Chosen, Everyone, Look, Scope, check_told
from ..serving import SCAN_CHUNK, VERTICES_INLINE_MAX, Reply, Serving
from ..values import no_order
from .named import program_of
from .registry import method


@dataclass(frozen=True, slots=True)
class _Wish:
    """What a subscriber asks to hear of."""

    serving: Serving
    asker: Asker
    program: str
    ids: IdColumn | None
    """Of these vertices; None: of all."""
    threshold: float
    whole: bool
    """Whether it begins with the values that there are."""
    since: tuple[int, int] | None
    top: int
    """So many of the largest or smallest values, all the time; 0: changes."""
    descending: bool

    @staticmethod
    def of(serving: Serving, params: Params) -> _Wish:
        """That of a request.

        Raises:
            RequestError: its parameters are wrong, or do not go together.
        """
        id = params.program()
        ids = params.vertices_or_all("vertices", serving)
        threshold = params.number("threshold", 0.0)
        whole = params.flag("snapshot", default=True)
        since = params.epoch("since")
        top = params.limited("top", serving.limits, "top_k_max", default=0)
        order = params.choice("order", ("desc", "asc"))
        params.end()
        if order == "asc" and not top:
            raise wrong("order", "goes with top")
        if top and (ids is not None or threshold or not whole):
            raise wrong("top", "goes with no vertices and no threshold, and begins with a snapshot")
        return _Wish(serving, params.asker, id, ids, threshold, whole, since, top, order == "desc")

    def is_long(self) -> bool:
        """Whether it takes too long to prepare for the other requests to wait."""
        if self.ids is not None:
            return len(self.ids) > VERTICES_INLINE_MAX
        return not self.top and self.serving.snapshot().n_vertices > SCAN_CHUNK

    def prepared(self) -> tuple[Scope, Snapshot]:
        """Where to look for changes, and the epoch to begin at."""
        scope = self._scope()
        return scope, self._beginning(scope)

    def _scope(self) -> Scope:
        if self.top:
            return Largest(self.top, descending=self.descending)
        if self.ids is not None:
            return Chosen(_distinct(self.ids), self.threshold)
        if self.whole and self.since is None:
            self.serving.read(self._check_all)
        return Everyone(self.threshold)

    def _check_all(self, snapshot: Snapshot) -> None:
        limit = self.serving.limits.vertices_max
        if snapshot.n_vertices > limit:
            check_told(snapshot.n_alive, limit, "exist")

    def _beginning(self, scope: Scope) -> Snapshot:
        """Whoever chose vertices knows the epoch, and needs none of what it changed later."""
        if self.whole or self.since is not None or not isinstance(scope, Chosen):
            return self.serving.snapshot()
        limit = self.serving.limits.vertices_max

        def know(snapshot: Snapshot) -> Snapshot:
            scope.know(Look(self.serving, snapshot, program_of(snapshot, self.program), None, None, limit))
            return snapshot

        return self.serving.read(know)

    def begin(self, scope: Scope, snapshot: Snapshot) -> Reply:
        """Subscribe.

        Raises:
            RequestError: the program's values are not such that what is asked for makes sense.
        """
        kind = self.serving.program_class(program_of(snapshot, self.program).kind)
        if self.threshold and kind.value is ExternalId:
            raise wrong("threshold", f"is for numbers: the values of {kind.kind} are vertices")
        if self.top and kind.value is ExternalId:
            raise no_order(kind.kind)
        number, resumed = self.serving.subscriptions.add(
            self.asker.connection, self.program, scope, snapshot, since=self.since, from_now=not self.whole
        )
        return Reply(self.serving.stamp(snapshot), {"subscription": number, "resumed": resumed})


@method("subscribe")
def subscribe(serving: Serving, params: Params) -> Outcome:
    """Hear of what each epoch changes, of all vertices or of some, in notifications after the answer."""
    wish = _Wish.of(serving, params)

    async def begin_long() -> Reply:
        return wish.begin(*await serving.in_thread(params.asker, wish.prepared))

    def begin() -> Outcome:
        return begin_long() if wish.is_long() else wish.begin(*wish.prepared())

    return params.once_covered(serving, begin)


def _distinct(ids: IdColumn) -> IdColumn:
    if isinstance(ids, StringColumn) and ids.lengths.max(initial=0) > MAX_STRING_ID_BYTES:
        raise wrong("vertices", f"holds an id of more than {MAX_STRING_ID_BYTES} bytes: no vertex has one")
    return StringColumn.of(dict.fromkeys(ids.to_list())) if isinstance(ids, StringColumn) else distinct(ids)


@method("unsubscribe")
def unsubscribe(serving: Serving, params: Params) -> Outcome:
    """Hear no more."""
    number = params.whole("subscription", 0, 2**63 - 1)
    params.end()

    def end() -> Reply:
        if not serving.subscriptions.end(params.asker.connection, number):
            raise wrong("subscription", f"{number} is none of this connection's")
        return Reply(serving.stamp(serving.snapshot()), {})

    return params.once_covered(serving, end)
