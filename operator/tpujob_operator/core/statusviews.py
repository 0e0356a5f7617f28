"""Parts of a job's status as views of its history."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tpujob_agent.protocol import Budget
from tpujob_operator.api.base import rfc3339
from tpujob_operator.api.models import TPUTrainingJob
from tpujob_operator.api.status import (
    BudgetUse,
    CheckpointStatus,
    FindingStatus,
    Goodput,
    Incident,
    Nodes,
    Progress,
    SuspectedNode,
)
from tpujob_operator.core import incidents
from tpujob_operator.core.history import History
from tpujob_operator.core.history import Progress as ToldProgress
from tpujob_operator.core.suspects import Suspect
from tpujob_operator.core.timeline import MOST
from tpujob_operator.core.timetypes import TimeType
from tpujob_tpu.chips import CHIPS


def goodput_view(history: History, now_ms: int) -> Goodput:
    """Where the time went up to ``now_ms``; every type is there, so that sums are complete."""
    view = history.ledger.view(now_ms)
    return Goodput(
        ratio=round(view.goodput_ratio, 4),
        predicted_ratio=history.interval.predicted_ratio or None,
        wall_seconds=view.wall_ms / 1000,
        unsettled_seconds=view.unsettled_ms / 1000,
        seconds={kind.value: view.by_type_ms.get(kind, 0) / 1000 for kind in TimeType},
    )


def checkpoint_view(history: History) -> CheckpointStatus | None:
    """The newest committed checkpoint, if there is one."""
    progress = history.progress
    if not progress.committed_step:
        return None
    at = rfc3339(progress.committed_at_ms) if progress.committed_at_ms else None
    return CheckpointStatus(
        step=progress.committed_step,
        committed_at=at,
        interval_seconds=history.interval.interval_ms / 1000 or None,
    )


def progress_view(history: History, job: TPUTrainingJob | None) -> Progress | None:
    """How far the job is; percent and remaining time only where the number of steps is known."""
    progress = history.progress
    if not progress.step:
        return None
    steps = total_steps(job)
    rest = max(0, steps - progress.step) if steps else None
    return Progress(
        percent=round(100 * progress.step / steps, 1) if steps else None,
        eta_seconds=None if rest is None else min(MOST, round(rest * progress.step_ms / 1000)),
        tokens_per_second=_tokens_per_second(progress),
        mfu=mfu_view(history, job),
        last_loss=progress.loss,
    )


def _tokens_per_second(told: ToldProgress) -> float | None:
    if not (told.step_ms and told.step_tokens):
        return None  # not known yet, or the program does not count tokens
    return round(1000 * told.step_tokens / told.step_ms, 1)


def mfu_view(history: History, job: TPUTrainingJob | None) -> float | None:
    """Model FLOPs by the peak of the chips that train; spares are not counted."""
    told = history.progress
    tokens_per_second = _tokens_per_second(told)
    chip = CHIPS.get(job.spec.accelerator.value) if job else None
    if not (job and chip and tokens_per_second and told.flops_per_token):
        return None
    slices = history.ledger.slices or job.spec.slices
    peak = slices * job.shape.chips * chip.peak_flops
    return round(told.flops_per_token * tokens_per_second / peak, 4)


def total_steps(job: TPUTrainingJob | None) -> int | None:
    """Steps the bundled trainer was asked for; nothing for other programs."""
    steps: Any = job.spec.trainer.config.get("steps") if job and job.spec.trainer else None
    return steps if isinstance(steps, int) and steps > 0 else None


def incidents_view(history: History) -> list[Incident]:
    """The newest incidents, oldest first."""
    return [_incident(item, history.progress.step_ms) for item in history.incidents.newest]


def findings_view(history: History) -> list[FindingStatus] | None:
    """What holds at present about the job's health."""
    return [
        FindingStatus(
            at=rfc3339(found.at_ms),
            kind=found.kind.value,
            slice=found.slice if found.slice >= 0 else None,
            worker=found.host if found.host >= 0 else None,
            node=found.node or None,
            signal=found.signal or None,
            ratio=found.ratio or None,
            message=found.message,
        )
        for found in history.findings.open
    ] or None


def budgets_view(history: History, job: TPUTrainingJob | None) -> dict[str, BudgetUse] | None:
    """Use of each restart budget."""
    if job is None:
        return None
    limits = job.spec.recovery.budgets.to_json()
    used = {**history.incidents.used, Budget.NO_PROGRESS: history.incidents.losses_without_commit}
    return {
        budget.value: BudgetUse(used=used.get(budget, 0), limit=limits[budget.value])
        for budget in Budget
    }


def nodes_view(suspects: Sequence[Suspect]) -> Nodes | None:
    """Nodes that the next attempt avoids, if there are any."""
    if not suspects:
        return None
    return Nodes(
        suspected=[
            SuspectedNode(name=item.name, reason=item.reason, until=rfc3339(item.until_ms))
            for item in suspects
        ]
    )


def _incident(item: incidents.Incident, step_ms: float) -> Incident:
    is_resumed = item.resumed_step >= 0
    recovered_ms = None if item.is_open else item.recovered_after_ms
    repeated_ms = item.lost_steps * step_ms if is_resumed else 0.0
    return Incident(
        at=rfc3339(item.at_ms),
        cause=item.cause.value,
        rung=item.rung.value,
        slice=item.slice if item.slice >= 0 else None,
        worker=item.worker if item.worker >= 0 else None,
        node=item.node or None,
        step=item.step,
        detected_after_seconds=item.detected_after_ms / 1000,
        recovered_after_seconds=None if recovered_ms is None else recovered_ms / 1000,
        lost_seconds=None
        if recovered_ms is None
        else round((recovered_ms + repeated_ms) / 1000, 3),
        lost_steps=item.lost_steps if is_resumed else None,
        message=item.message,
    )
