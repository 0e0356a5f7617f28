"""Sentences for people: why a job ended, and what to do about it."""

from __future__ import annotations

from typing import Any

from tpujob_agent.protocol import Budget, Finding
from tpujob_coordinator.budgets import Budgets
from tpujob_coordinator.membership import Place
from tpujob_coordinator.stragglers import Straggler
from tpujob_coordinator.verdicts import End

_ADVICE = {
    Budget.USER_ERROR: "Fix the program or its arguments and create the job again",
    Budget.PROCESS: "Look into the trainer's log for crashes or memory limits",
    Budget.INFRASTRUCTURE: "Look at the nodes named in the job's incidents",
    Budget.STRAGGLER: "Look at the nodes named in the job's incidents",
    Budget.NO_PROGRESS: (
        "No new checkpoint was committed between the restarts: make checkpoints more frequent, "
        "or look into the log for what keeps them from being written"
    ),
}


def gave_up(end: End, spent: Budget, budgets: Budgets, committed_step: int) -> dict[str, Any]:
    """Data of the GAVE_UP event."""
    message = _give_up_message(end, spent, budgets, committed_step)
    return {"cause": end.cause.value, "budget": spent.value, "message": message}


def _give_up_message(end: End, spent: Budget, budgets: Budgets, committed_step: int) -> str:
    """Why no further restart is tried, what was the last cause, and what to do."""
    limit = budgets.limits[spent.value]
    where = f"slice {end.place.slice} host {end.place.host}"
    pod = f" (pod {end.pod})" if end.pod else ""
    kept = f"The last checkpoint is of step {committed_step}. " if committed_step else ""
    field = f"spec.recovery.budgets.{spent.value}"
    return (
        f"{_spent(field, limit)} "
        f"{kept}{_ADVICE[spent]}; a higher {field} allows more. "
        f"The last trainer to fail, {where}{pod}, {end.message}"
    )


def _spent(field: str, limit: int) -> str:
    if limit == 0:
        return f"{field} allows no restart."
    return f"{field} allows {limit} restart{'' if limit == 1 else 's'}, all of them are used."


_ADVICE_ON_CAUSE = {
    "input": "it waits for its input: look at its disk and network, and at its share of the data",
    "gc": "Python's garbage collector pauses it: have all hosts collect at the same steps "
    "(gc.disable(), gc.freeze(), gc.collect() every so many steps)",
    "save": "saves hold it up: look at its way to the checkpoint storage",
    "host": "its CPU is slow or busy: look for throttling, for lack of memory, and for other "
    "programs on its node",
    "device": "its devices are slow at work that no other host takes part in: look for "
    "throttling and errors, and have the node repaired",
    "network": "messages to it take longer than to the others: look at its node's network",
}
_ADVICE_ON_PART = {
    "input": "Most of it is waiting for input: look at the store that the data come from, at "
    "prefetching, and at the format of the data",
    "gc": "Most of it is Python's garbage collector: see what the program keeps on allocating",
    "save": "Most of it is saving: look at the checkpoint storage, and at checkpoint.interval",
    "wait": "Most of it is spent on the devices and the network between them: longer or unequal "
    "batches, other jobs on the same network, or throttling of all devices",
}


def straggler_message(place: Place, straggler: Straggler) -> str:
    """Who holds up the others, by how much, and where to look."""
    return (
        f"Slice {place.slice} host {place.host} holds up the others: a step takes "
        f"{straggler.ratio:.2f} times as long for it; {_ADVICE_ON_CAUSE[straggler.cause]}."
    )


def slowdown_message(ratio: float, grown: str) -> str:
    """That everybody has become slower, and where to look."""
    return (
        f"Steps take {ratio:.2f} times as long as in the fastest stretch of this generation, and "
        f"the cause is not a host: all are equally slow. {_ADVICE_ON_PART[grown]}."
    )


_ADVICE_ON_SHARE = {
    Finding.INPUT_BOUND: "of the time is waiting for input: read ahead in threads or "
    "processes of their own, pack the data (tpujob-data pack, ArrayRecord), and keep them near",
    Finding.SAVE_BOUND: "of the time is lost to saves: save asynchronously, on faster storage, or "
    "more seldom (checkpoint.interval: policy Auto weighs saves against failures)",
}


def share_message(finding: Finding, share: float) -> str:
    """How much of the time goes where, and what to do about it."""
    return f"{share:.0%} {_ADVICE_ON_SHARE[finding]}."


RECOMPILING_MESSAGE = (
    "Programs are compiled again and again while training, and everybody waits: keep shapes the "
    "same. Sort lengths into a few buckets (data.buckets of the bundled trainer), pad the last "
    "batch, and pass numbers that change as arrays. With JAX_LOG_COMPILES=1 in the program's "
    "environment, its log names programs and shapes."
)
