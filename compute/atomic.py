"""An atomic counter for Numba kernels that share work between threads."""

from __future__ import annotations

from typing import Any

from numba.core import types
from numba.extending import intrinsic


def _take(typing_context: Any, counter: Any, by: Any) -> Any:
    """take(counter, by): add ``by`` to ``counter[0]`` (int64) in one step; what it was before.

    Of several threads that take from one counter no two ever get the same number.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        return builder.atomic_rmw("add", data, arguments[1], ordering="monotonic")

    return types.int64(counter, types.int64), generate


# Type checkers see the typing context as a parameter, which callers do not pass.
take: Any = intrinsic(_take)
