"""Operator, coordinator and agents together: what happens in a job reaches its status."""

import base64
import dataclasses
import os
import signal
import sys
from pathlib import Path

import pytest

from localcluster.cluster import Cluster
from tests.agent import rig as agents
from tests.agent.rig import Rig
from tests.operator.rig import Jobs, running
from tests.waiting import PATIENCE_S
from tpujob_agent.protocol import CoordinatorConfig, Env
from tpujob_operator.core.kinds import JOB_SET, SECRET

pytestmark = pytest.mark.control_plane

#: Steps of 20 ms with a checkpoint every fifth; goes on where the last checkpoint was, and waits
#: at step 30 until the test lets it pass.
_PROGRAM = """
import pathlib, sys, time, tpujob
saved = pathlib.Path(sys.argv[1])
first = int(saved.read_text()) if saved.exists() else 0
tpujob.phase("restore")
tpujob.restored(first)
tpujob.phase("train")
for step in range(first + 1, 61):
    time.sleep(0.02)
    while step == 30 and not pathlib.Path(sys.argv[2]).exists():
        time.sleep(0.01)
    tpujob.step(step, loss=1.0 / step, tokens=8)
    if step % 5 == 0:
        saved.write_text(str(step))
        tpujob.committed(step)
"""


class Pods:
    """The job's containers as local processes, configured by the manifests in the cluster."""

    def __init__(self, jobs: Jobs, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        jobset = jobs.wait(JOB_SET, "j-1")
        pod = jobset["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
        given = {item["name"]: item.get("value", "") for item in pod["containers"][0]["env"]}
        token = base64.b64decode(jobs.wait(SECRET, "j-token")["data"]["token"]).decode()
        monkeypatch.setattr(agents, "TOKEN", token)
        self.rig = Rig(folder, slices=2, hosts=1)
        self.gate = folder / "gate"
        told = CoordinatorConfig.from_json(given[Env.COORDINATOR_CONFIG])
        assert (told.slices, told.hosts_per_slice, told.job) == (2, 1, "j")
        ports = self.rig.config
        self.rig.config = dataclasses.replace(
            told,
            agent_port=ports.agent_port,
            http_port=ports.http_port,
            jax_port_base=ports.jax_port_base,
        )

    def start(self) -> None:
        """Start the coordinator and the agents, each with a place to save of its own."""
        self.rig.start_coordinator()
        for slice_index in range(2):
            self.start_agent(slice_index)

    def start_agent(self, slice_index: int) -> None:
        """Start an agent, or start it anew."""
        saved = self.rig.folder / f"saved-{slice_index}"
        command = [sys.executable, "-c", _PROGRAM, str(saved), str(self.gate)]
        self.rig.start_agent(slice_index, 0, command)


def test_run_with_a_killed_trainer_is_accounted(
    control_plane: Cluster, own_jobs: Jobs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A real run: steps, checkpoint, a killed trainer, an operator killed midway, and success."""
    own_jobs.create("j", trainer={"config": {"steps": 60}})
    with running(control_plane, tmp_path, own_jobs.namespace):
        pods = Pods(own_jobs, tmp_path, monkeypatch)
        own_jobs.run_pods("j", 3)
    access = {"TPUJOB_COORDINATOR_ACCESS": f"http://127.0.0.1:{pods.rig.config.http_port}"}
    try:
        with running(control_plane, tmp_path, own_jobs.namespace, env=access) as operator:
            pods.start()
            own_jobs.wait_status("j", lambda status: status.get("step", 0) >= 5, "fifth step")
            os.kill(pods.rig.trainer_pid(1, 0), signal.SIGKILL)
            own_jobs.wait_status("j", lambda status: bool(status["incidents"]), "incident")
            own_jobs.wait_event("j", "ProcessLost")
            operator.kill()
        pods.gate.touch()
        with running(control_plane, tmp_path, own_jobs.namespace, env=access) as operator:
            own_jobs.wait_condition("j", "Succeeded", "Completed")
            coordinator = pods.rig.coordinator
            assert coordinator is not None
            assert coordinator.wait(PATIENCE_S) == 0
            metrics = operator.get("metrics", "/metrics")
    except BaseException:
        print(pods.rig.story())
        raise
    finally:
        pods.rig.close()
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
