"""Metrics of jobs, computed from the cache at each scrape, and of the operator itself."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

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
from tpujob_operator.core.samples import Buckets, JobSample, Value, histograms, values

_log = logging.getLogger(__name__)
_MAKERS = {
    MetricKind.COUNTER: CounterMetricFamily,
    MetricKind.GAUGE: GaugeMetricFamily,
    MetricKind.HISTOGRAM: HistogramMetricFamily,
}


class JobCollector(Collector):
    """Computes the metrics of all jobs when Prometheus asks.

    What cannot be computed of one job, or is no number that Prometheus takes, is left out.
    """

    def __init__(
        self, samples: Callable[[], Iterable[JobSample]], skipped: Callable[[], None]
    ) -> None:
        self._samples = samples
        self._skipped = skipped

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
            try:
                series = [*values(sample)], [*histograms(sample)]
            except Exception:  # noqa: BLE001 - logged with its trace just below
                _log.exception("no metrics of %s", sample.key)
                self._skipped()
                continue
            self._add(made, sample, *series)
        yield from made.values()

    def _add(
        self,
        made: Mapping[Family, Any],
        sample: JobSample,
        singles: Iterable[Value],
        groups: Iterable[Buckets],
    ) -> None:
        for family, value, labels in singles:
            if _is_sound(value):
                made[family].add_metric([*sample.key, *labels], value)
            else:
                self._skipped()
        for family, labels, buckets, total in groups:
            if _is_sound(total):
                made[family].add_metric([*sample.key, *labels], buckets, total)
            else:
                self._skipped()


def _is_sound(value: float) -> bool:
    """Whether a value can be told: one that is too large fails only when all of them are sent."""
    try:
        return math.isfinite(float(value))
    except (OverflowError, TypeError, ValueError):
        return False


class OperatorMetrics:
    """Metrics of the operator itself."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._passes = self._counter(families.RECONCILES)
        self._calls = self._counter(families.API_CALLS)
        self._skipped = self._counter(families.SKIPPED_SAMPLES)
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

    def skipped(self) -> None:
        """Count one series of a job that cannot be told."""
        self._skipped.inc()

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
