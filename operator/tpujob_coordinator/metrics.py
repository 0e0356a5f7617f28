"""Prometheus metrics of one job's coordinator, computed at scrape."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from tpujob_agent.protocol import Budget
from tpujob_coordinator.core import Core
from tpujob_coordinator.stages import Stage


class CoreCollector(Collector):
    """Reads a core when Prometheus asks."""

    def __init__(self, core: Core) -> None:
        self._core = core

    def collect(self) -> Iterator[Metric]:
        """All families; labels are bounded, as a coordinator serves one job."""
        core = self._core
        gauges = {
            "generation": ("Number of the newest generation.", core.newest_generation),
            "members": ("Agents that are present.", len(core.members)),
            "step": ("Newest finished step.", core.step),
            "checkpoint_step": ("Newest committed step.", core.committed_step),
            "timeline_events": ("Number of the newest timeline event.", core.timeline.last),
        }
        for name, (help_text, value) in gauges.items():
            yield self._gauge(name, help_text, value)
        yield self._slowdown()
        yield self._stage()
        yield self._restarts()

    def _gauge(self, name: str, help_text: str, value: float) -> Metric:
        family = GaugeMetricFamily(f"tpujob_coordinator_{name}", help_text, labels=_LABELS)
        family.add_metric(self._job(), value)
        return family

    def _slowdown(self) -> Metric:
        family = GaugeMetricFamily(
            "tpujob_host_slowdown_ratio",
            "How many times as long a step takes for this host, by the signal it shows in.",
            labels=[*_LABELS, "host", "signal"],
        )
        verdicts = self._core.health.watch.verdicts if self._core.health else {}
        for signal, judged in verdicts.items():
            for place, ratio in judged.ratios.items():
                family.add_metric([*self._job(), f"{place.slice}-{place.host}", signal], ratio)
        return family

    def _stage(self) -> Metric:
        family = GaugeMetricFamily(
            "tpujob_coordinator_stage",
            "1 for what the coordinator is doing.",
            labels=[*_LABELS, "stage"],
        )
        for stage in Stage:
            family.add_metric([*self._job(), stage.value], float(stage is self._core.stage))
        return family

    def _restarts(self) -> Metric:
        family = CounterMetricFamily(
            "tpujob_coordinator_restarts",
            "Losses charged to each restart budget.",
            labels=[*_LABELS, "budget"],
        )
        for budget in (Budget.USER_ERROR, Budget.PROCESS, Budget.INFRASTRUCTURE):
            used = self._core.budgets.used.get(budget.value, 0)
            family.add_metric([*self._job(), budget.value], used)
        return family

    def _job(self) -> list[str]:
        return [self._core.config.namespace, self._core.config.job]


_LABELS = ["namespace", "job"]
