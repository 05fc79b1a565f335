"""Requests to begin a connection, and to wait."""

from __future__ import annotations

from ...client.wire import PROTOCOL_VERSIONS
from ...errors import NotSupported
from ..admission import HELLO_BYTES_MAX
from ..params import Params, wrong
from ..serving import Reply, Serving
from .registry import METHODS, method

TOKEN_CHARACTERS_MAX = HELLO_BYTES_MAX


@method("hello")
def hello(serving: Serving, params: Params) -> Reply:
    """Agree on a protocol version and present the token."""
    versions, token = params.take("versions"), params.take("token")
    params.end()
    if versions is not None and not (isinstance(versions, list) and all(type(one) is int for one in versions)):
        raise wrong("versions", "must be an array of versions of the protocol, whole numbers")
    if versions is not None and not any(version in PROTOCOL_VERSIONS for version in versions):
        raise NotSupported(
            f"no common protocol version; this server speaks {', '.join(map(str, PROTOCOL_VERSIONS))}",
            {"versions": list(PROTOCOL_VERSIONS)},
        )
    serving.admission.check(token)
    # Also where none is asked for: it is kept, and nobody counts what it takes.
    if token is not None and not (isinstance(token, str) and len(token) <= TOKEN_CHARACTERS_MAX):
        raise wrong("token", f"must be a string of at most {TOKEN_CHARACTERS_MAX} characters")
    params.asker.connection.token = token
    snapshot = serving.snapshot()
    return Reply(
        serving.stamp(snapshot),
        {
            "server": f"graphtide/{serving.version}",
            "version": PROTOCOL_VERSIONS[-1],
            "capabilities": sorted(METHODS),
            "graph": dict(serving.graph),
            "programs": {id: result.kind for id, result in snapshot.programs.items()},
            "stage": snapshot.stats.get("stage"),
        },
    )


@method("wait")
async def wait(serving: Serving, params: Params) -> Reply:
    """Return once an epoch covers these offsets."""
    params.end()
    await params.covered(serving)
    return Reply(serving.stamp(serving.snapshot()), {})
