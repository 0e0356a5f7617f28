"""The agent's loop."""

from __future__ import annotations

import contextlib
import functools
import selectors
import socket

from tpujob_agent.loop import turn


def test_what_is_dropped_in_a_turn_is_not_called_in_it() -> None:
    """The end of a trainer drops its output, which is readable in the same turn."""
    called = []
    with contextlib.ExitStack() as stack:
        selector = stack.enter_context(selectors.DefaultSelector())
        ends = [_readable(stack), _readable(stack)]

        def drop_the_other(me: int) -> None:
            called.append(me)
            selector.unregister(ends[1 - me])

        for me, end in enumerate(ends):
            selector.register(end, selectors.EVENT_READ, functools.partial(drop_the_other, me))
        turn(selector, 0.0)
    assert len(called) == 1


def _readable(stack: contextlib.ExitStack) -> socket.socket:
    """A socket that has something to read."""
    first, second = map(stack.enter_context, socket.socketpair())
    second.send(b"x")
    return first
