"""One turn of the agent's loop."""

from __future__ import annotations

import selectors


def turn(selector: selectors.BaseSelector, timeout_s: float) -> None:
    """Call the handlers (their keys' ``data``) of all that is ready, waiting this long for it.

    What one handler unregisters is not called in the same turn, though it was ready too: the
    end of a trainer comes with the end of its output.
    """
    for key, _ in selector.select(timeout_s):
        if selector.get_map().get(key.fileobj) is key:
            key.data()
