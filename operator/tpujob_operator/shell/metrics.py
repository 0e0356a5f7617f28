"""Metrics of jobs, computed from the cache at each scrape, and of the operator itself."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from tpujob_operator.core import families
from tpujob_operator.core.families import Family, MetricKind
from tpujob_operator.core.samples import JobSample, histograms, values

_MAKERS = {
    MetricKind.COUNTER: CounterMetricFamily,
    MetricKind.GAUGE: GaugeMetricFamily,
    MetricKind.HISTOGRAM: HistogramMetricFamily,
}


class JobCollector(Collector):
    """Computes the metrics of all jobs when Prometheus asks."""

    def __init__(self, samples: Callable[[], Iterable[JobSample]]) -> None:
        self._samples = samples

    def describe(self) -> list[Metric]:
        """Nothing, so that registering the collector computes nothing."""
        return []

    def collect(self) -> Iterator[Metric]:
        """All families, with one set of series for each job."""
        made = {
            family: _MAKERS[family.kind](family.name, family.help, labels=family.labels)
            for family in families.OF_JOBS
        }
        for sample in self._samples():
            for family, value, labels in values(sample):
                made[family].add_metric([*sample.key, *labels], value)
            for family, labels, buckets, total in histograms(sample):
                made[family].add_metric([*sample.key, *labels], buckets, total)
        yield from made.values()


class OperatorMetrics:
    """Metrics of the operator itself."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._passes = self._counter(families.RECONCILES)
        self._calls = self._counter(families.API_CALLS)
        family = families.RECONCILE_TIME
        self._pass_seconds = Histogram(
            family.name,
            family.help,
            registry=self.registry,
            buckets=(0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 30),
        )

    def _counter(self, family: Family) -> Counter:
        return Counter(family.name, family.help, family.labels, registry=self.registry)

    def reconciled(self, result: str, seconds: float) -> None:
        """Count one pass."""
        self._passes.labels(result).inc()
        self._pass_seconds.observe(seconds)

    def called(self, verb: str, resource: str, code: int, _seconds: float) -> None:
        """Count one call of the API."""
        self._calls.labels(verb, resource, str(code)).inc()

    def watch_gauges(self, gauges: Mapping[Family, Callable[[], float]]) -> None:
        """Register gauges that are read at each scrape."""
        self.registry.register(_Gauges(gauges))


class _Gauges(Collector):
    def __init__(self, gauges: Mapping[Family, Callable[[], float]]) -> None:
        self._gauges = gauges

    def collect(self) -> Iterator[Metric]:
        for family, read in self._gauges.items():
            yield GaugeMetricFamily(family.name, family.help, value=read())
