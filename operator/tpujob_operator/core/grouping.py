"""The 18 types of time in the kinds that Google's goodput library tells apart.

The names are those of ml-goodput-measurement 0.2.3. Its clock starts in the first container
and it sees no quota, so queueing and suspension are in none of its kinds.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping

from tpujob_operator.core.timetypes import TimeType


class GoogleKind(enum.StrEnum):
    """Goodput, and the library's kinds of badput."""

    GOODPUT = "GOODPUT"
    INFRASTRUCTURE_RECOVERY = "INFRASTRUCTURE_RECOVERY_FROM_DISRUPTION"
    TPU_INITIALIZATION = "TPU_INITIALIZATION"
    TRAINING_PREP = "TRAINING_PREP"
    PROGRAM_STARTUP = "PROGRAM_STARTUP"
    WASTED_PROGRESS = "WASTED_PROGRESS_FROM_DISRUPTION"
    CHECKPOINT_SAVE = "UNPRODUCTIVE_CHECKPOINT_SAVE_TIME"
    DATA_LOADING = "DATA_LOADING_SYNC"
    CUSTOM = "CUSTOM_BADPUT_EVENTS"
    OTHER = "OTHER"
    NOT_COUNTED = "NOT_COUNTED"


KIND_OF_TYPE: Mapping[TimeType, GoogleKind] = {
    TimeType.TEARDOWN: GoogleKind.INFRASTRUCTURE_RECOVERY,
    TimeType.SUSPENDED: GoogleKind.NOT_COUNTED,
    TimeType.QUEUED: GoogleKind.NOT_COUNTED,
    TimeType.BACKOFF: GoogleKind.INFRASTRUCTURE_RECOVERY,
    TimeType.PROVISIONING: GoogleKind.INFRASTRUCTURE_RECOVERY,
    TimeType.IMAGE: GoogleKind.INFRASTRUCTURE_RECOVERY,
    TimeType.DETECTION: GoogleKind.INFRASTRUCTURE_RECOVERY,
    TimeType.RUNTIME_INIT: GoogleKind.TPU_INITIALIZATION,
    TimeType.RESTORE: GoogleKind.TRAINING_PREP,
    TimeType.COMPILE: GoogleKind.PROGRAM_STARTUP,
    TimeType.SETUP: GoogleKind.TRAINING_PREP,
    TimeType.ROLLBACK: GoogleKind.WASTED_PROGRESS,
    TimeType.CHECKPOINT_STALL: GoogleKind.CHECKPOINT_SAVE,
    TimeType.INPUT_WAIT: GoogleKind.DATA_LOADING,
    TimeType.DECLARED: GoogleKind.CUSTOM,
    # To the library a slow step is a step.
    TimeType.DEGRADED: GoogleKind.GOODPUT,
    TimeType.PRODUCTIVE: GoogleKind.GOODPUT,
    TimeType.UNATTRIBUTED: GoogleKind.OTHER,
}


def grouped(seconds: Mapping[str, float], unsettled: float = 0.0) -> dict[GoogleKind, float]:
    """Seconds by type as seconds by Google's kinds; steps not settled yet count as goodput."""
    found = dict.fromkeys(GoogleKind, 0.0)
    found[GoogleKind.GOODPUT] = unsettled
    for name, amount in seconds.items():
        found[KIND_OF_TYPE[TimeType(name)]] += amount
    return found
