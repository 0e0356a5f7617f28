"""Tell errors that only say "a peer has died" from errors of the program itself.

The texts were collected by killing ranks of JAX 0.10 and 0.12 on CPU; on CPU a broken
collective is a plain ``ValueError`` ("UNKNOWN: Gloo all-reduce failed: … Connection closed
by peer"). Where no exception comes (a hanging collective), the coordinator's Stop ends it.
"""

from __future__ import annotations

import re

#: Exceptions by which JAX reports the runtime's errors, under its past and present names.
_RUNTIME_ERRORS = frozenset({"JaxRuntimeError", "XlaRuntimeError"})
#: Statuses of the program's own: their texts list operations, as ``optimization_barrier``.
_OWN = re.compile(
    r"^(?:RESOURCE_EXHAUSTED|INVALID_ARGUMENT|UNIMPLEMENTED|OUT_OF_RANGE|NOT_FOUND)\b"
)
#: Anywhere in an exception of the runtime.
_OF_RUNTIME = re.compile(
    r"gloo|connection reset|connection closed|connection refused|closed by peer|broken pipe"
    r"|socket closed|heartbeat|coordination.?service|\bbarrier (?:has )?(?:timed out|failed)"
    r"|\banother task"
    r"|(?:\bleader task|/task:\d+)\b.*(?:died|failed|disconnected|preempted|unhealthy)"
    r"|^(?:UNAVAILABLE|ABORTED|DEADLINE_EXCEEDED)",
    re.IGNORECASE,
)
#: In an exception of any type: a status of the runtime, and what only its transport says.
_OF_ANY = re.compile(
    r"^(?:UNKNOWN|UNAVAILABLE|INTERNAL|ABORTED|CANCELLED|DEADLINE_EXCEEDED|FAILED_PRECONDITION): "
    r".*(?:gloo|coordination.?service|heartbeat|connection (?:reset|closed))",
    re.IGNORECASE | re.DOTALL,
)


def is_peer_lost(error: BaseException) -> bool:
    """Whether an uncaught exception was caused by the end of another process of the world."""
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        names = {cls.__name__ for cls in type(current).__mro__}
        pattern = _OF_RUNTIME if names & _RUNTIME_ERRORS else _OF_ANY
        text = str(current)
        if _OWN.match(text):
            return False
        if pattern.search(text):
            return True
        current = current.__cause__ or current.__context__
    return False
