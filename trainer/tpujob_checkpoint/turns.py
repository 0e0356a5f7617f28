"""Saves of one process, one after the other.

Orbax numbers its operations in each process, and its barriers carry the numbers. Two saves at a
time might get them in another order on each process, and would wait for each other in vain.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future


class Turns:
    """Saves by any of a process's savers, in the order in which the loop begins them.

    That order is the same on every process. The methods are called by the loop's thread only.
    """

    def __init__(self) -> None:
        self._newest = threading.Event()
        self._newest.set()

    def submit(self, executor: Executor, save: Callable[[], None]) -> Future[None]:
        """Have a save run in a thread of the executor when all before it have ended."""
        before, ended = self._newest, threading.Event()

        def run() -> None:
            before.wait()
            try:
                save()
            finally:
                ended.set()

        submitted = executor.submit(run)
        self._newest = ended
        return submitted

    def await_all(self) -> None:
        """Wait until all saves have ended; the loop may use Orbax by itself then."""
        self._newest.wait()


#: All savers of this process share it, as they share Orbax's numbers.
TURNS = Turns()
