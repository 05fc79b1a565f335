"""Requests to hear of what epochs change."""

from __future__ import annotations

from ....compute.program import ExternalId
from ....gpma.edges import distinct
from ....gpma.index.ids import MAX_STRING_ID_BYTES, IdColumn, StringColumn
from ..largest import Largest
from ..params import Outcome, Params, wrong
from ..results import Snapshot
from ..scopes import Chosen, Everyone, Look, Scope, check_told
from ..serving import SCAN_CHUNK, VERTICES_INLINE_MAX, Reply, Serving
from ..values import no_order
from .named import program_of
from .registry import method


@method("subscribe")
def subscribe(serving: Serving, params: Params) -> Outcome:
    """Hear of what each epoch changes, of all vertices or of some, in notifications after the answer."""
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

    def make_scope() -> Scope:
        if top:
            return Largest(top, descending=order == "desc")
        if ids is not None:
            return Chosen(_distinct(ids), threshold)
        if whole and since is None:
            serving.read(check_all)
        return Everyone(threshold)

    def check_all(snapshot: Snapshot) -> None:
        limit = serving.limits.vertices_max
        if snapshot.n_vertices > limit:
            check_told(snapshot.n_alive, limit, "exist")

    def beginning(scope: Scope) -> Snapshot:
        """The epoch to begin at. Whoever chose vertices knows it, and needs none of what it changed later."""
        if whole or since is not None or not isinstance(scope, Chosen):
            return serving.snapshot()
        limit = serving.limits.vertices_max

        def know(snapshot: Snapshot) -> Snapshot:
            scope.know(Look(serving, snapshot, program_of(snapshot, id), None, None, limit))
            return snapshot

        return serving.read(know)

    def begin(scope: Scope, snapshot: Snapshot) -> Reply:
        kind = serving.program_class(program_of(snapshot, id).kind)
        if threshold and kind.value is ExternalId:
            raise wrong("threshold", f"is for numbers: the values of {kind.kind} are vertices")
        if top and kind.value is ExternalId:
            raise no_order(kind.kind)
        number, resumed = serving.subscriptions.add(
            params.asker.connection, id, scope, snapshot, since=since, from_now=not whole
        )
        return Reply(serving.stamp(snapshot), {"subscription": number, "resumed": resumed})

    def prepared() -> tuple[Scope, Snapshot]:
        scope = make_scope()
        return scope, beginning(scope)

    async def begin_long() -> Reply:
        return begin(*await serving.in_thread(params.asker, prepared))

    def begin_somehow() -> Outcome:
        is_long = not top and serving.snapshot().n_vertices > SCAN_CHUNK
        if ids is not None:
            is_long = len(ids) > VERTICES_INLINE_MAX
        return begin_long() if is_long else begin(*prepared())

    return params.once_covered(serving, begin_somehow)


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
