"""Sentences for people: why a job ended, and what to do about it."""

from __future__ import annotations

from typing import Any

from tpujob_agent.protocol import Budget
from tpujob_coordinator.budgets import Budgets
from tpujob_coordinator.verdicts import End

_ADVICE = {
    Budget.USER_ERROR: "Fix the program or its arguments and create the job again",
    Budget.PROCESS: "Look into the trainer's log for crashes or memory limits",
    Budget.INFRASTRUCTURE: "Look at the nodes named in the job's incidents",
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
