"""A real Prometheus scrapes operator and coordinator, and finds what status says."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import pytest

from demo import install
from faults import control_plane, processes
from faults.scene import Place
from localcluster.kubeapi import Object
from monitoring import dashboards
from tests.e2e.prometheus import Prometheus, scraping
from tests.e2e.rig import ENDED, RECOVER_S, Jobs, assert_adds_up
from tests.waiting import wait_until
from tpujob_operator.core.kinds import TPU_TRAINING_JOB
from tpujob_operator.core.manifests import names
from tpujob_operator.core.timetypes import TimeType

_STEPS = 1200
#: Metrics that a job without slow hosts need not have.
_NOT_HERE = ("tpujob_host_slowdown_ratio",)
pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]


def test_prometheus_finds_what_status_says(jobs: Jobs, tmp_path: Path) -> None:
    """Times by type add up to wall time at every scrape; incidents, steps and goodput are there."""
    # With a checkpoint's directory the coordinator plans the interval.
    checkpoint = {"directory": "/shared/none"}
    objectives = {"goodput": 0.9, "mfu": 0.05}
    job = jobs.train("j", steps=_STEPS, checkpoint=checkpoint, objectives=objectives)
    created = job["metadata"]["creationTimestamp"]
    leader = control_plane.leader(jobs.scene("j"))  # the standby has no metrics of jobs
    service = names.coordinator_service("j", job["metadata"]["uid"])
    services = {
        "operator": f"{install.NAMESPACE}/pods/{leader}:9090",
        "coordinator": f"{jobs.namespace}/services/{service}:http",
    }
    api = jobs.kube.core.api_client.configuration
    with scraping(tmp_path, api, services) as prometheus:
        jobs.wait_step("j", 30)
        processes.kill(jobs.scene("j"), Place(0, 1))
        jobs.wait_recovered("j")
        _check_while_training(jobs, prometheus, dt.datetime.fromisoformat(created).timestamp())
        _check_panels(jobs, prometheus)
        status = jobs.wait_state("j", *ENDED)
        assert status["state"] == "Succeeded"
        assert_adds_up(status)
        _check_at_the_end(jobs, prometheus, status["goodput"])
        jobs.delete(TPU_TRAINING_JOB, "j")
        wait_until(
            lambda: not prometheus.query(_of(jobs, "tpujob_step")), "series are gone", RECOVER_S
        )


def _check_while_training(jobs: Jobs, prometheus: Prometheus, created_s: float) -> None:
    before_s = jobs.status("j")["goodput"]["wallSeconds"]
    wall = _wall(jobs)
    wait_until(
        lambda: (prometheus.value(wall) or 0) >= before_s, "metrics follow status", RECOVER_S
    )
    # One query, so that all its values are of one scrape.
    scraped_at_s = f"timestamp({_of(jobs, 'tpujob_unsettled_seconds')})"
    drift_s = prometheus.wait_value(f"sum({scraped_at_s}) - ({wall})") - created_s
    # Creation times are cut to whole seconds, and the ledger knows what it was told last.
    assert drift_s == pytest.approx(0, abs=20)
    scraped_s = prometheus.wait_value(wall)
    jobs.wait_status("j", lambda s: s["goodput"]["wallSeconds"] >= scraped_s, "status follows too")
    incidents = _of(jobs, "tpujob_incidents_total", 'cause="process",rung="R0"')
    wait_until(lambda: prometheus.value(incidents) == 1, "the incident is scraped", RECOVER_S)
    coordinator = _of(jobs, "tpujob_coordinator_generation")
    wait_until(lambda: prometheus.value(coordinator) == 2, "generation 2 is scraped", RECOVER_S)
    step = _of(jobs, "tpujob_coordinator_step")
    wait_until(lambda: (prometheus.value(step) or 0) > 30, "a newer step is scraped", RECOVER_S)


def _check_panels(jobs: Jobs, prometheus: Prometheus) -> None:
    """Every query of every dashboard has data while a job trains that has recovered once."""
    values = {"$namespace": jobs.namespace, "$job": "j", "$__rate_interval": "30s"}
    for name, content in dashboards.outputs():
        for title, query in dashboards.queries(content):
            expression = query
            for variable, value in values.items():
                expression = expression.replace(variable, value)
            if not any(metric in query for metric in _NOT_HERE):
                wait_until(
                    lambda expression=expression: prometheus.query(expression),  # type: ignore[misc] # bound here
                    f"data for {title!r} of {name}: {expression}",
                    RECOVER_S,
                )


def _check_at_the_end(jobs: Jobs, prometheus: Prometheus, goodput: Object) -> None:
    wall_s = goodput["wallSeconds"]
    told = dict.fromkeys([kind.value for kind in TimeType], 0.0) | goodput["seconds"]
    seconds = f"sum by (type) ({_of(jobs, 'tpujob_time_seconds_total')})"

    def is_final() -> bool:
        # The wall time may be final a scrape before the last steps are settled.
        is_whole = prometheus.value(_wall(jobs)) == pytest.approx(wall_s, abs=0.001)
        return is_whole and prometheus.query(seconds) == pytest.approx(told, abs=0.001)

    wait_until(is_final, f"the final times {told}", RECOVER_S)
    by_type = prometheus.query(seconds)
    assert by_type["productive"] > 0
    # What follows the kill may take less than a millisecond here, but for the new process.
    assert by_type["runtime_init"] > 0
    cost = jobs.status("j")["cost"]
    chip_s = prometheus.value(f"sum({_of(jobs, 'tpujob_chip_seconds_total')})")
    assert chip_s is not None
    assert chip_s == pytest.approx(cost["chipHours"] * 3600, abs=1)  # hours have four decimals
    assert 0 < chip_s <= 8 * wall_s  # two hosts of four chips, held for all but the beginning
    assert cost["usd"] == pytest.approx(cost["chipHours"] * 1.2, abs=1e-3)
    assert cost["usdPerMillionTokens"] > 0
    assert prometheus.value(_of(jobs, "tpujob_step")) == _STEPS
    assert prometheus.value(_of(jobs, "tpujob_checkpoint_step")) == _STEPS
    ratio = prometheus.value(_of(jobs, "tpujob_goodput_ratio"))
    assert ratio == pytest.approx(by_type["productive"] / wall_s, abs=0.001)


def _of(jobs: Jobs, metric: str, more: str = "") -> str:
    return f'{metric}{{namespace="{jobs.namespace}",job="j",{more}}}'


def _wall(jobs: Jobs) -> str:
    unsettled = f"sum({_of(jobs, 'tpujob_unsettled_seconds')})"
    return f"sum({_of(jobs, 'tpujob_time_seconds_total')}) + {unsettled}"
