"""Whether a job reaches what was asked for, and where to look if it does not."""

import dataclasses

from tpujob_operator.api import reasons
from tpujob_operator.api.conditions import ConditionType
from tpujob_operator.core.situation import NOTHING, Outcome, Situation, Verdict
from tpujob_operator.core.statusviews import mfu_view
from tpujob_operator.core.timetypes import TimeType

#: A job's start costs what it costs: judged after so much time, without that below.
_LEAST_MS = 3_600_000
#: Model FLOPs utilisation must be low for so long: a save or an evaluation lowers it too.
_LOW_MFU_MS = 600_000
#: Nobody's fault, or not the job's.
_NOT_COUNTED = (TimeType.SUSPENDED, TimeType.QUEUED)
_ADVICE = {
    TimeType.INPUT_WAIT: "read ahead, pack the data, and keep them near",
    TimeType.CHECKPOINT_STALL: "save asynchronously, on faster storage, or more seldom",
    TimeType.ROLLBACK: "save more often (checkpoint.interval: policy Auto weighs it), and look at "
    "status.incidents for what fails",
    TimeType.COMPILE: "use a compile cache on storage that all hosts share, and static shapes: "
    "sort lengths into buckets",
    TimeType.RESTORE: "look at the way to the checkpoint storage",
    TimeType.DEGRADED: "see why slices are missing; spares take over at once",
    TimeType.DETECTION: "lower health.hang.minSeconds, if steps are short",
    TimeType.PROVISIONING: "see why pods find no node; spares take over at once",
    TimeType.IMAGE: "make the image smaller, or have it on the nodes beforehand",
    TimeType.RUNTIME_INIT: "list what the program imports in recovery.preload",
    TimeType.BACKOFF: "look at status.incidents for what fails again and again",
    TimeType.TEARDOWN: "have the program exit soon after a save that it was asked for",
}


def report_goodput(situation: Situation) -> Outcome:
    """Degraded while goodput is below ``spec.objectives.goodput``."""
    objectives = situation.job.spec.objectives
    if not objectives or objectives.goodput is None or situation.job.spec.suspend:
        return NOTHING
    view = situation.history.ledger.view(situation.now_ms)
    apart_ms = sum(view.by_type_ms.get(kind, 0) for kind in _NOT_COUNTED)
    counted_ms = view.wall_ms - apart_ms
    good_ms = view.by_type_ms.get(TimeType.PRODUCTIVE, 0) + view.unsettled_productive_ms
    if counted_ms < _LEAST_MS or good_ms >= objectives.goodput * counted_ms:
        return NOTHING
    bad = [kind for kind in _ADVICE if view.by_type_ms.get(kind, 0)]
    if not bad:
        return NOTHING
    largest = max(bad, key=lambda kind: view.by_type_ms[kind])
    message = (
        f"Goodput is below the objective of {objectives.goodput:.1%}. Of the rest, most is "
        f"{largest.value}: {_ADVICE[largest]}."
    )
    return Outcome(
        verdicts={ConditionType.DEGRADED: Verdict(True, reasons.BELOW_OBJECTIVE, message)}
    )


def report_mfu(situation: Situation) -> Outcome:
    """Degraded while the steps reach less than ``spec.objectives.mfu``, for ten minutes."""
    objectives, memory = situation.job.spec.objectives, situation.memory
    mfu = mfu_view(situation.history, situation.job)
    is_training = situation.history.ledger.is_training
    wanted = objectives.mfu if objectives and objectives.mfu and is_training else 0.0
    if mfu is None or mfu >= wanted:
        calm = dataclasses.replace(memory, low_mfu_since_ms=0)
        return Outcome(memory=calm) if memory.low_mfu_since_ms else NOTHING
    if not memory.low_mfu_since_ms:
        memory = dataclasses.replace(memory, low_mfu_since_ms=situation.now_ms)
    wait_ms = memory.low_mfu_since_ms + _LOW_MFU_MS - situation.now_ms
    if wait_ms > 0:
        return Outcome(memory=memory, requeue_after_s=wait_ms / 1000)
    message = (
        f"The steps reach less than the objective of {wanted:.0%} of the chips' peak. See whether "
        "they wait for input (status.goodput.seconds.input_wait); whether shapes change, so that "
        "programs are compiled again; and try larger batches and another mesh with "
        "tpujob-trainer check, which says what bounds the step."
    )
    verdict = Verdict(True, reasons.LOW_MFU, message)
    return Outcome(verdicts={ConditionType.DEGRADED: verdict}, memory=memory)
