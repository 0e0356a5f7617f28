"""Metrics of jobs, computed from the cache at each scrape, and of the operator itself."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from tpujob_operator.core.history import History
from tpujob_operator.core.snapshot import JobKey
from tpujob_operator.core.timetypes import TimeType


class Family(NamedTuple):
    """Name and help text of a metric of jobs; labels beside namespace and job."""

    name: str
    help: str
    labels: tuple[str, ...] = ()


#: All metrics of jobs. Series go when their job goes, and come from its status after a restart.
TIME = Family(
    "tpujob_time_seconds",
    "Seconds of a job's life by type; with tpujob_unsettled_seconds they add up to wall time.",
    ("type",),
)
GOODPUT = Family("tpujob_goodput_ratio", "Productive time, settled or not, by wall time.")
UNSETTLED = Family(
    "tpujob_unsettled_seconds", "Seconds of steps that no committed checkpoint covers yet."
)
STEPS = Family("tpujob_steps", "Steps that a checkpoint covers, and steps lost.", ("result",))
INCIDENTS = Family(
    "tpujob_incidents", "Incidents by cause and by rung of the recovery ladder.", ("cause", "rung")
)
STEP = Family("tpujob_step", "Last finished step.")
CHECKPOINT_STEP = Family("tpujob_checkpoint_step", "Step of the newest committed checkpoint.")
LAST_PROGRESS = Family(
    "tpujob_last_progress_timestamp_seconds", "When the last step was finished, Unix time."
)
INFO = Family(
    "tpujob_info",
    "1, with the job's accelerator, topology and state.",
    ("accelerator", "topology", "state"),
)
COUNTERS = (TIME, STEPS, INCIDENTS)
GAUGES = (GOODPUT, UNSETTLED, STEP, CHECKPOINT_STEP, LAST_PROGRESS, INFO)


class JobSample(NamedTuple):
    """What the metrics of one job are computed from."""

    key: JobKey
    history: History
    at_ms: int
    accelerator: str
    topology: str
    state: str


class JobCollector(Collector):
    """Computes the metrics of all jobs when Prometheus asks."""

    def __init__(self, samples: Callable[[], Iterable[JobSample]]) -> None:
        self._samples = samples

    def describe(self) -> list[Metric]:
        """Nothing, so that registering the collector computes nothing."""
        return []

    def collect(self) -> Iterator[Metric]:
        """All families, with one set of series for each job."""
        counters = {
            family: CounterMetricFamily(
                family.name, family.help, labels=["namespace", "job", *family.labels]
            )
            for family in COUNTERS
        }
        gauges = {
            family: GaugeMetricFamily(
                family.name, family.help, labels=["namespace", "job", *family.labels]
            )
            for family in GAUGES
        }
        for sample in self._samples():
            for family, labels, value in values(sample):
                target = counters.get(family) or gauges[family]
                target.add_metric([*sample.key, *labels], value)
        yield from counters.values()
        yield from gauges.values()


def values(sample: JobSample) -> Iterator[tuple[Family, tuple[str, ...], float]]:
    """Family, further labels and value of each series of one job."""
    history = sample.history
    view = history.ledger.view(sample.at_ms)
    for kind in TimeType:
        yield TIME, (kind.value,), view.by_type_ms.get(kind, 0) / 1000
    yield GOODPUT, (), view.goodput_ratio
    yield UNSETTLED, (), view.unsettled_ms / 1000
    yield STEPS, ("settled",), history.progress.steps_settled
    yield STEPS, ("lost",), history.progress.steps_lost
    for name, count in history.incidents.counts.items():
        cause, rung = name.split("/")
        yield INCIDENTS, (cause, rung), count
    yield STEP, (), history.progress.step
    yield CHECKPOINT_STEP, (), history.progress.committed_step
    if history.progress.step_at_ms:
        yield LAST_PROGRESS, (), history.progress.step_at_ms / 1000
    yield INFO, (sample.accelerator, sample.topology, sample.state), 1


class OperatorMetrics:
    """Metrics of the operator itself."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._passes = Counter(
            "tpujob_operator_reconciles",
            "Passes over jobs by result.",
            ["result"],
            registry=self.registry,
        )
        self._pass_seconds = Histogram(
            "tpujob_operator_reconcile_duration_seconds",
            "Duration of passes over jobs.",
            registry=self.registry,
            buckets=(0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 30),
        )
        self._calls = Counter(
            "tpujob_operator_api_calls",
            "Calls of the Kubernetes API by verb, resource and code; code 0: no answer.",
            ["verb", "resource", "code"],
            registry=self.registry,
        )

    def reconciled(self, result: str, seconds: float) -> None:
        """Count one pass."""
        self._passes.labels(result).inc()
        self._pass_seconds.observe(seconds)

    def called(self, verb: str, resource: str, code: int, _seconds: float) -> None:
        """Count one call of the API."""
        self._calls.labels(verb, resource, str(code)).inc()

    def watch_gauges(self, gauges: dict[str, tuple[str, Callable[[], float]]]) -> None:
        """Register gauges that are read at each scrape: name → help text and function."""
        self.registry.register(_Gauges(gauges))


class _Gauges(Collector):
    def __init__(self, gauges: dict[str, tuple[str, Callable[[], float]]]) -> None:
        self._gauges = gauges

    def collect(self) -> Iterator[Metric]:
        for name, (text, read) in self._gauges.items():
            yield GaugeMetricFamily(name, text, value=read())
