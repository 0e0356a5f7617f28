"""Metrics of a job follow from its history; counters never fall and survive restarts."""

import dataclasses
import itertools
import json
from functools import reduce
from typing import Any

from hypothesis import given
from prometheus_client.exposition import generate_latest

from tests.core.histories import CREATED_MS, event, histories, loss, progress, start
from tests.core.stories import training
from tpujob_agent.protocol import EventKind
from tpujob_operator.core import families
from tpujob_operator.core.families import MetricKind
from tpujob_operator.core.history import History, Progress
from tpujob_operator.core.observations import Observation
from tpujob_operator.core.recoveries import Stage
from tpujob_operator.core.samples import Buckets, JobSample, Value, histograms, values
from tpujob_operator.core.snapshot import JobKey
from tpujob_operator.shell.metrics import JobCollector, OperatorMetrics

T0 = CREATED_MS
RECOVERED: list[Observation] = [
    *start(T0),
    progress(T0 + 1_040, 1, 10, tokens=80),
    event(T0 + 1_100, EventKind.COMMITTED, step=5, blockedMs=0, lagMs=400),
    loss(T0 + 1_500, T0 + 1_300, step=10),
    event(T0 + 2_500, EventKind.GENERATION_STOPPED, generation=1),
    *start(T0 + 3_500, generation=2, restored=5),
    progress(T0 + 4_300, 6, 6, generation=2),
]


def _sample(history: History, at_ms: int, **status: Any) -> JobSample:
    spec = {"accelerator": "v5e", "topology": "2x2", "objectives": {"goodput": 0.9}}
    return JobSample(JobKey("ns", "j"), history, at_ms, spec, status)


def _counters(history: History, at_ms: int) -> dict[tuple[str, ...], float]:
    sample = _sample(history, at_ms)
    found = {
        (value.family.name, *value.labels): value.value
        for value in values(sample)
        if value.family.kind is MetricKind.COUNTER
    }
    for item in histograms(sample):
        found[item.family.name, *item.labels, "sum"] = item.total
        found |= {(item.family.name, *item.labels, bound): n for bound, n in item.buckets}
    return found


@given(histories())
def test_counters_never_fall(told: list[Observation]) -> None:
    """From event to event, and over a restart at each of them, no counter goes down."""
    states = itertools.accumulate(told, History.apply, initial=History.start(T0))
    before: dict[tuple[str, ...], float] = {}
    at_ms = T0
    for history, seen in zip(states, [None, *told], strict=True):
        at_ms = max(at_ms, seen.at_ms if seen else T0)
        read = History.from_json(json.loads(json.dumps(history.to_json())))
        now = _counters(read, at_ms)
        assert all(now.get(name, -1) >= value for name, value in before.items())
        before = now


def test_every_family_of_jobs_can_be_seen() -> None:
    """No family is listed that nothing ever fills, and labels are those that are listed."""
    world = training()
    told = reduce(History.apply, RECOVERED, world.history)
    planned = event(T0 + 5_000, EventKind.INTERVAL, intervalMs=1_000, predictedRatio=0.9)
    history = told.apply(planned).apply(progress(T0 + 6_000, 7, 9, generation=2, loss=1.0))
    status = {
        "budgets": {
            "process": {"used": 5, "limit": 20},
            "infrastructure": {"used": 9, "limit": -1},
        },
        "slices": {"wanted": 2},
        "cost": {"usd": 3.0},
        "progress": {"mfu": 0.4},
    }
    sample = _sample(history, T0 + 6_000, **status)
    found: list[Value | Buckets] = [*values(sample), *histograms(sample)]
    assert {item.family for item in found} == set(families.OF_JOBS)
    assert all(2 + len(item.labels) == len(item.family.labels) for item in found)
    used = [item for item in found if item.family is families.BUDGET_USED]
    assert [item.labels for item in used] == [("process",)]  # what has no limit is never spent


def test_recovery_is_measured_stage_by_stage() -> None:
    """Stages add up to the whole, from the fault to the step after it."""
    history = reduce(History.apply, RECOVERED, History.start(T0))
    found = {Stage(item.labels[0]): item for item in histograms(_sample(history, T0 + 4_300))}
    took = {stage: round(item.total, 3) for stage, item in found.items()}
    assert took[Stage.TOTAL] == 3.0
    assert took[Stage.DETECTION] == 0.2
    assert took[Stage.REPLACEMENT] == 1.0
    whole = found[Stage.TOTAL]
    assert isinstance(whole, Buckets)
    assert dict(whole.buckets)["2.0"] == 0
    assert dict(whole.buckets)["10.0"] == dict(whole.buckets)["+Inf"] == 1


def test_incident_is_counted_when_its_rung_is_known() -> None:
    """An open incident is a gauge: it may still climb, and a counter cannot be taken back."""
    lost = reduce(History.apply, RECOVERED[:10], History.start(T0))
    assert lost.incidents.open
    assert not any(name[0] == "tpujob_incidents" for name in _counters(lost, T0 + 2_000))
    over = reduce(History.apply, RECOVERED, History.start(T0))
    assert _counters(over, T0 + 4_300)["tpujob_incidents", "process", "R0"] == 1


def test_one_job_takes_the_metrics_from_no_other() -> None:
    """What is too large for Prometheus, or cannot be computed, is left out and counted."""
    sound = _sample(reduce(History.apply, RECOVERED, History.start(T0)), T0 + 5_000)
    history = dataclasses.replace(sound.history, progress=Progress(step=10**400, committed_step=7))
    huge = sound._replace(key=JobKey("ns", "huge"), history=history)
    broken = sound._replace(key=JobKey("ns", "broken"), status={"budgets": {"process": None}})
    metrics = OperatorMetrics()
    metrics.registry.register(JobCollector(lambda: [huge, broken, sound], metrics.skipped))
    for _ in range(2):  # the second one tells what the first one left out
        told = generate_latest(metrics.registry).decode()
    assert 'tpujob_step{job="j",namespace="ns"} 6.0' in told
    assert 'tpujob_checkpoint_step{job="huge",namespace="ns"} 7.0' in told
    assert 'tpujob_step{job="huge"' not in told
    assert 'job="broken"' not in told
    assert "tpujob_operator_samples_skipped_total 2.0" in told
