"""The metrics of one job: a pure function of its history and its status."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from tpujob_operator.core import families as f
from tpujob_operator.core.families import Family
from tpujob_operator.core.history import History
from tpujob_operator.core.recoveries import BUCKETS_S, Histogram
from tpujob_operator.core.snapshot import JobKey
from tpujob_operator.core.timetypes import TimeType


class JobSample(NamedTuple):
    """What the metrics of one job are computed from."""

    key: JobKey
    history: History
    at_ms: int
    spec: Mapping[str, Any]
    status: Mapping[str, Any]


class Value(NamedTuple):
    """One series; ``labels`` come after namespace and job."""

    family: Family
    value: float
    labels: tuple[str, ...] = ()


class Buckets(NamedTuple):
    """One histogram: bounds with the number of values up to each, and the sum of all."""

    family: Family
    labels: tuple[str, ...]
    buckets: list[tuple[str, float]]
    total: float


def values(sample: JobSample) -> Iterator[Value]:
    """All series of one job but its histograms."""
    yield from _times(sample)
    yield from _progress(sample)
    yield from _incidents(sample)
    yield from _from_status(sample)


def histograms(sample: JobSample) -> Iterator[Buckets]:
    """The histograms of one job; none before its first recovery."""
    for stage, histogram in sample.history.recoveries.stages.items():
        yield Buckets(f.RECOVERY, (stage.value,), _cumulative(histogram), histogram.sum_ms / 1000)


def _cumulative(histogram: Histogram) -> list[tuple[str, float]]:
    bounds = [*(str(float(bound)) for bound in BUCKETS_S), "+Inf"]
    return list(zip(bounds, itertools.accumulate(map(float, histogram.counts)), strict=True))


def _times(sample: JobSample) -> Iterator[Value]:
    view = sample.history.ledger.view(sample.at_ms)
    for kind in TimeType:
        yield Value(f.TIME, view.by_type_ms.get(kind, 0) / 1000, (kind.value,))
    for kind, chip_ms in view.chip_ms_by_type.items():
        yield Value(f.CHIP_TIME, chip_ms / 1000, (kind.value,))
    yield Value(f.UNSETTLED, view.unsettled_ms / 1000)
    yield Value(f.UNSETTLED_CHIPS, view.unsettled_chip_ms / 1000)
    yield Value(f.GOODPUT, view.goodput_ratio)
    yield Value(f.CHIPS, sample.history.ledger.chips.held)
    if sample.history.interval.predicted_ratio:
        yield Value(f.PREDICTED, sample.history.interval.predicted_ratio)


def _progress(sample: JobSample) -> Iterator[Value]:
    told = sample.history.progress
    yield Value(f.STEP, told.step)
    yield Value(f.STEPS, told.steps_settled, ("settled",))
    yield Value(f.STEPS, told.steps_lost, ("lost",))
    yield Value(f.TOKENS, told.tokens)
    yield Value(f.CHECKPOINT_STEP, told.committed_step)
    yield Value(f.SKIPPED_EVENTS, sample.history.skipped.count)
    if told.step_ms:
        yield Value(f.STEP_TIME, told.step_ms / 1000)
        yield Value(f.TOKENS_PER_SECOND, 1000 * told.step_tokens / told.step_ms)
    if told.loss is not None:
        yield Value(f.LOSS, told.loss)
    known_ms = {
        f.LAST_PROGRESS: told.last_step_at_ms,
        f.CHECKPOINT_AT: told.committed_at_ms,
        f.CHECKPOINT_INTERVAL: sample.history.interval.interval_ms,
        f.CHECKPOINT_BLOCKED: told.save_blocked_ms,
        f.CHECKPOINT_LAG: told.save_lag_ms,
    }
    for family, ms in known_ms.items():
        if ms > 0 or (ms == 0 and family in (f.CHECKPOINT_BLOCKED, f.CHECKPOINT_LAG)):
            yield Value(family, ms / 1000)


def _incidents(sample: JobSample) -> Iterator[Value]:
    incidents = sample.history.incidents
    # Until it is over an incident may still climb the ladder, and counters must not fall.
    counts = incidents.counts if sample.history.ledger.ended else incidents.settled
    for name, count in counts.items():
        cause, rung = name.split("/")
        yield Value(f.INCIDENTS, count, (cause, rung))
    for cause in {incident.cause for incident in incidents.newest}:
        number = sum(1 for incident in incidents.open if incident.cause is cause)
        is_open = not sample.history.ledger.ended
        yield Value(f.OPEN_INCIDENTS, number if is_open else 0, (cause.value,))


def _from_status(sample: JobSample) -> Iterator[Value]:
    spec, status = sample.spec, sample.status
    facts = (str(spec.get("accelerator", "")), str(spec.get("topology", "")))
    yield Value(f.INFO, 1, (*facts, str(status.get("state", ""))))
    for name, budget in (status.get("budgets") or {}).items():
        if budget["limit"] > 0:
            yield Value(f.BUDGET_USED, budget["used"] / budget["limit"], (name,))
    for kind, number in (status.get("slices") or {}).items():
        yield Value(f.SLICES, number, (kind,))
    for name, objective in (spec.get("objectives") or {}).items():
        yield Value(f.OBJECTIVE, objective, (name,))
    usd = (status.get("cost") or {}).get("usd")
    if usd is not None:
        yield Value(f.COST, usd)
    mfu = (status.get("progress") or {}).get("mfu")
    if mfu is not None:
        yield Value(f.MFU, mfu)
