"""Operator, coordinator and agents together: what happens in a job reaches its status."""

import os
import signal
from pathlib import Path

import pytest

from localcluster.cluster import Cluster
from tests.operator.pods import local_pods
from tests.operator.rig import Jobs, running
from tests.waiting import PATIENCE_S

pytestmark = pytest.mark.control_plane


def test_run_with_a_killed_trainer_is_accounted(
    control_plane: Cluster, own_jobs: Jobs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A real run: steps, checkpoint, a killed trainer, an operator killed midway, and success."""

    def place() -> None:
        own_jobs.run_pods("j", 3)

    with local_pods(control_plane, own_jobs, tmp_path, monkeypatch, place) as pods:
        with running(control_plane, tmp_path, own_jobs.namespace, env=pods.access) as operator:
            pods.start()
            own_jobs.wait_status("j", lambda status: status.get("step", 0) >= 5, "fifth step")
            os.kill(pods.rig.trainer_pid(1, 0), signal.SIGKILL)
            own_jobs.wait_status("j", lambda status: bool(status["incidents"]), "incident")
            own_jobs.wait_event("j", "ProcessLost")
            operator.kill()
        with running(control_plane, tmp_path, own_jobs.namespace, env=pods.access) as operator:
            pods.gate.touch()  # a coordinator waits 15 s for somebody who reads the end
            own_jobs.wait_condition("j", "Succeeded", "Completed")
            coordinator = pods.rig.coordinator
            assert coordinator is not None
            assert coordinator.wait(PATIENCE_S) == 0
            metrics = operator.get("metrics", "/metrics")
    status = own_jobs.status("j")
    assert status["step"] == 60
    assert status["checkpoint"]["step"] == 60
    assert status["progress"]["percent"] == 100
    assert status["restarts"] == 1
    assert status["generation"] == 2
    incident = status["incidents"][0]
    assert incident["cause"] == "process"
    assert incident["slice"] == 1
    assert incident["recoveredAfterSeconds"] > 0
    assert status["budgets"]["process"] == {"used": 1, "limit": 20}
    goodput = status["goodput"]
    assert sum(goodput["seconds"].values()) == pytest.approx(goodput["wallSeconds"], abs=0.001)
    assert goodput["seconds"]["productive"] > 0.5
    label = f'job="j",namespace="{own_jobs.namespace}"'
    assert f'tpujob_incidents_total{{cause="process",{label},rung="R0"}} 1.0' in metrics
    assert f"tpujob_step{{{label}}} 60.0" in metrics
    own_jobs.wait_event("j", "Completed")
