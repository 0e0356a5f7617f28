"""How a job is to answer each fault: what its status says afterwards."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Answer(NamedTuple):
    """One incident; alternatives where the order of events decides."""

    causes: tuple[str, ...]
    rungs: tuple[str, ...]
    budget: str
    words: str = ""  # in the incident's message
    loses_nothing: bool = False  # everybody has saved before
    names_host: bool = True  # False: any host of the slice may be the first that is missed


#: A slice that finds no place at once is moved, where nodes are suspect.
_REPLACED = ("R2", "R4")
_PROCESS = Answer(("process",), ("R0",), "process")
_HANG = Answer(("hang",), ("R0",), "process")
_LEAVING = Answer(("preemption",), _REPLACED, "infrastructure", loses_nothing=True)
#: SIGTERM comes a second before the end: an agent may have time to tell of it, or none.
_TORN_OUT = Answer(("preemption", "node"), _REPLACED, "infrastructure", names_host=False)

#: By name of the catalogue; None: training goes on as if nothing had happened.
ANSWERS: Mapping[str, Answer | None] = {
    "kill-trainer": _PROCESS._replace(words="SIGKILL"),
    "crash-trainer": _PROCESS._replace(words="SIGSEGV"),
    "stop-trainer": _HANG._replace(words="SIGSTOP"),
    "block-trainer": _HANG._replace(words="in obey"),
    "exit-trainer": Answer(("userError",), ("R0",), "userError", "exited with code 3"),
    "exhaust-memory": _PROCESS._replace(words="out of memory"),
    "kill-container": Answer(("node",), ("R1",), "infrastructure"),
    "delete-pod": _LEAVING,
    "evict-pod": _LEAVING,
    "drain-node": _LEAVING,
    "taint-node": _LEAVING,
    "delete-pod-by-force": _TORN_OUT,
    "lose-slice": _TORN_OUT,
    "kill-coordinator": None,
    "kill-operator": None,
}
