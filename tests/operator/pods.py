"""A job whose pods' containers are processes of this machine: coordinator, agents, trainers."""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from localcluster.cluster import Cluster
from tests.agent import rig as agents
from tests.agent.rig import Rig
from tests.operator.rig import OPERATOR_KEY, Jobs, running
from tpujob_agent.protocol import CoordinatorConfig, Env
from tpujob_operator.core.kinds import JOB_SET, SECRET

#: Steps of 20 ms with checkpoints, which the next run resumes from; it waits at step 30 until there
#: is a gate. Arguments: the file that is saved, the gate, steps, steps between two checkpoints.
PROGRAM = """
import pathlib, sys, time, tpujob
saved, gate = map(pathlib.Path, sys.argv[1:3])
last, every = map(int, sys.argv[3:])
first = int(saved.read_text()) if saved.exists() else 0
tpujob.phase("restore")
tpujob.restored(first)
tpujob.phase("train")
for step in range(first + 1, last + 1):
    time.sleep(0.02)
    while step == 30 and not gate.exists():
        time.sleep(0.01)
    tpujob.step(step, loss=1.0 / step, tokens=8)
    if step % every == 0:
        saved.write_text(str(step))
        tpujob.committed(step)
"""


class Pods:
    """Containers of a job `j` as local processes, configured by the manifests in the cluster."""

    def __init__(
        self, jobs: Jobs, folder: Path, monkeypatch: pytest.MonkeyPatch, operator_key: str
    ) -> None:
        self.jobs = jobs
        jobset = jobs.wait(JOB_SET, "j-1")
        pod = jobset["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
        given = {item["name"]: item.get("value", "") for item in pod["containers"][0]["env"]}
        token = base64.b64decode(
            jobs.wait(SECRET, jobs.secret_of("j", operator_key))["data"]["token"]
        ).decode()
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
        command = [sys.executable, "-c", PROGRAM, str(saved), str(self.gate), "60", "5"]
        # The operator believes in no node but that of the pod.
        env = {Env.POD_NAME: self._pod(slice_index), Env.HANG_MIN_S: "3600"}
        self.rig.start_agent(slice_index, 0, command, env=env)

    def _pod(self, slice_index: int) -> str:
        names = (str(pod["metadata"]["name"]) for pod in self.jobs.wait_pods("j", 3))
        return next(name for name in names if name.startswith(f"j-1-slice-{slice_index}-"))

    @property
    def access(self) -> dict[str, str]:
        """The operator's way to the coordinator."""
        return {"TPUJOB_COORDINATOR_ACCESS": f"http://127.0.0.1:{self.rig.config.http_port}"}


@contextlib.contextmanager
def local_pods(
    cluster: Cluster,
    jobs: Jobs,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    place: Callable[[], object],
    *,
    env: dict[str, str] | None = None,
    operator_key: str = OPERATOR_KEY,
) -> Iterator[Pods]:
    """Make a job `j` of 60 steps, whose processes are still to be started.

    Args:
        cluster: the control plane.
        jobs: where; no operator serves it yet.
        folder: for logs and what is saved.
        monkeypatch: of the test.
        place: gives the pods nodes and has them run.
        env: of the operator that makes the job.
        operator_key: its key.
    """
    # The wait at step 30 is none of a hung program's, however long a test takes; so say the agents.
    health = {"hang": {"minSeconds": 3600}}
    jobs.create("j", trainer={"config": {"steps": 60}}, health=health)
    with running(cluster, folder, jobs.namespace, env=env):
        pods = Pods(jobs, folder, monkeypatch, operator_key)
        place()
    try:
        yield pods
    except BaseException:
        print(pods.rig.story())
        raise
    finally:
        pods.rig.close()
