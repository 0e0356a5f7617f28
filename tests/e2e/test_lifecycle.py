"""Jobs from creation to their end on real nodes: success, suspension, deletion, two at once."""

from __future__ import annotations

import datetime as dt

import pytest

from faults.training import STEP_S, TRAINING
from localcluster import baseimage
from localcluster.template import identify
from tests.e2e.rig import ENDED, RECOVER_S, Jobs, assert_adds_up, uids
from tests.waiting import wait_until
from tpujob_client import Client
from tpujob_operator.core.kinds import (
    JOB,
    JOB_SET,
    POD,
    SECRET,
    SERVICE,
    TPU_TRAINING_JOB,
)
from tpujob_operator.core.timetypes import TimeType

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

_CHILDREN = (JOB_SET, JOB, POD, SERVICE, SECRET)


def test_job_succeeds_and_accounts_for_every_second(jobs: Jobs) -> None:
    """A job runs to Succeeded; its types of time make the time from creation to end."""
    created = jobs.train("j", steps=60)["metadata"]["creationTimestamp"]
    status = jobs.wait_state("j", *ENDED)
    assert status["state"] == "Succeeded", jobs.story("j")
    assert (status["step"], status["checkpoint"]["step"]) == (60, 60)
    assert (status["attempt"], status["generation"], status["restarts"]) == (1, 1, 0)
    assert status["incidents"] == []
    assert_adds_up(status)
    goodput = status["goodput"]
    assert goodput.get("unsettledSeconds", 0.0) == 0.0
    assert {*goodput["seconds"]} <= {kind.value for kind in TimeType}
    assert 50 * STEP_S <= goodput["seconds"]["productive"] < goodput["wallSeconds"]
    lived = dt.datetime.fromisoformat(status["finishedAt"]) - dt.datetime.fromisoformat(created)
    # Kubernetes cuts creation times to seconds, and the last pass comes after the last event.
    assert goodput["wallSeconds"] == pytest.approx(lived.total_seconds(), abs=20)
    wait_until(lambda: _phases(jobs) <= {"Succeeded"}, "all pods have ended", RECOVER_S)


def _phases(jobs: Jobs) -> set[str]:
    return {pod["status"]["phase"] for pod in jobs.all(POD)}


def test_two_jobs_run_at_once(jobs: Jobs) -> None:
    """Two jobs train at the same time, each on a slice of its own, and both succeed."""
    for name in ("a", "b"):
        template = jobs.template("sh", "-c", "sleep 1000000")
        jobs.create(name, template)
    for name in ("a", "b"):
        jobs.wait_status(name, lambda status: bool(status.get("generation")), f"{name} runs")
    used = {
        name: {pod["spec"]["nodeName"] for pod in jobs.pods(name).values()} for name in ("a", "b")
    }
    assert [len(nodes) for nodes in used.values()] == [2, 2]
    assert not used["a"] & used["b"]
    for nodes in used.values():
        pools = {_pool(jobs, node) for node in nodes}
        assert len(pools) == 1
    before = uids(jobs.pods("b"))
    jobs.delete(TPU_TRAINING_JOB, "a")
    wait_until(lambda: not jobs.all(POD, "a"), "pods of a are gone", RECOVER_S)
    assert uids(jobs.pods("b")) == before
    assert jobs.status("b")["generation"] == 1


def _pool(jobs: Jobs, node: str) -> str:
    labels = jobs.api.get(f"/api/v1/nodes/{node}")["metadata"]["labels"]
    return str(labels["cloud.google.com/gke-nodepool"])


def test_suspended_job_gives_its_hosts_back_and_goes_on_later(jobs: Jobs) -> None:
    """Suspension removes the pods; resumption goes on from the checkpoint; the time is booked."""
    jobs.train("j")
    jobs.wait_status("j", lambda s: s.get("checkpoint", {}).get("step", 0) >= 20, "a checkpoint")
    jobs.change("j", suspend=True)
    jobs.wait_state("j", "Suspended")
    jobs.wait_gone(POD, "j")
    suspended = jobs.status("j")
    saved = suspended["checkpoint"]["step"]
    assert_adds_up(suspended)
    jobs.change("j", suspend=False)
    status = jobs.wait_status("j", lambda s: s["checkpoint"]["step"] > saved, "a new checkpoint")
    assert status["attempt"] == 1
    assert status["incidents"] == []
    assert status["goodput"]["seconds"]["suspended"] > 0
    assert_adds_up(status)


def test_changed_program_goes_on_from_the_checkpoint(jobs: Jobs) -> None:
    """A change of the template saves, makes a new attempt, loses no step and costs no budget."""
    jobs.train("j")
    jobs.wait_status("j", lambda s: s.get("checkpoint", {}).get("step", 0) >= 20, "a checkpoint")
    steps = int(jobs.status("j")["step"]) + 150
    jobs.change("j", template=jobs.template("python", "-c", TRAINING, steps=steps))
    status = jobs.wait_state("j", *ENDED)
    assert status["state"] == "Succeeded", jobs.story("j")
    assert (status["step"], status["attempt"]) == (steps, 2)
    assert status["incidents"] == []
    assert status["goodput"]["seconds"].get("rollback", 0.0) == 0.0, jobs.story("j")
    assert_adds_up(status)


#: The leader's name is gone when its pod has ended, so it waits for the other one.
_FAILS_ONCE = """
import os, socket, sys, time
leader, port = os.environ["JAX_COORDINATOR_ADDRESS"].rsplit(":", 1)
rank = os.environ["JAX_PROCESS_ID"]
if rank == "0":
    socket.create_server(("", int(port))).accept()
while rank == "1":
    try:
        socket.create_connection((leader, int(port)), 5)
        break
    except OSError:
        time.sleep(0.2)
if os.environ["TPUJOB_ATTEMPT"] == "1":
    if rank == "1":
        sys.exit("no luck this time")
    time.sleep(1_000_000)
"""


def test_program_that_is_not_wrapped_is_made_anew(jobs: Jobs) -> None:
    """Without an agent the loss of a pod makes another attempt, which succeeds when all have."""
    template = jobs.template("python", "-c", _FAILS_ONCE)
    template["spec"]["terminationGracePeriodSeconds"] = 1  # of a process 1 that ignores SIGTERM
    jobs.create("j", template, recovery={"pods": "Recreate"})
    status = jobs.wait_state("j", *ENDED)
    assert status["state"] == "Succeeded", jobs.story("j")
    assert (status["attempt"], status["restarts"]) == (2, 1)
    [incident] = status["incidents"]
    assert (incident["cause"], incident["rung"], incident["worker"]) == ("userError", "R3", 1)
    assert "no luck this time" in incident["message"]
    assert_adds_up(status)
    services = [item["metadata"]["name"] for item in jobs.all(SERVICE)]
    assert not any(name.startswith("j-coordinator") for name in services)


def test_deleted_job_leaves_nothing(jobs: Jobs) -> None:
    """A job deleted while it trains takes all its objects with it."""
    jobs.train("j")
    jobs.wait_step("j", 10)
    assert all(jobs.all(kind) for kind in _CHILDREN)
    jobs.delete(TPU_TRAINING_JOB, "j")
    for kind in (TPU_TRAINING_JOB, *_CHILDREN):
        wait_until(lambda kind=kind: not jobs.all(kind), f"no {kind.plural} are left", RECOVER_S)  # type: ignore[misc] # bound now


def test_finished_job_is_removed_after_its_time_to_live(jobs: Jobs) -> None:
    """``ttlSecondsAfterFinished`` removes a job that has ended, with all its objects."""
    jobs.train("j", steps=10, ttlSecondsAfterFinished=1)
    wait_until(lambda: not jobs.find(TPU_TRAINING_JOB, "j"), "the job is gone", 90)
    for kind in _CHILDREN:
        wait_until(lambda kind=kind: not jobs.all(kind), f"no {kind.plural} are left", RECOVER_S)  # type: ignore[misc] # bound now


@pytest.fixture
def plain_image(jobs: Jobs) -> str:
    """An image that knows nothing of us: Python, and no more."""
    if jobs.cluster is None:
        return baseimage.NAME
    path = baseimage.archive(print)
    jobs.cluster.load_image(path)
    return identify(path).reference


_SHELL = """
i=0
while [ $i -lt 40 ]; do i=$((i + 1)); sleep 0.05; echo "done: step=$i loss=0.5"; done
"""


def test_shell_program_runs_in_an_image_of_ones_own(jobs: Jobs, plain_image: str) -> None:
    """A program that is no Python and knows nothing of us is run and followed by its output."""
    template = jobs.template("sh", "-c", _SHELL, image=plain_image)
    jobs.create("j", template, health={"progressPattern": r"step=(?P<step>\d+)"})
    status = jobs.wait_state("j", *ENDED)
    assert status["state"] == "Succeeded", jobs.story("j")
    assert status["step"] == 40
    assert_adds_up(status)


_SCRIPT = """
import sys, time
import tpujob
from helper import NUMBER
for step in range(1, 31):
    time.sleep(0.05)
    tpujob.step(step)
    if step == NUMBER:
        tpujob.committed(step)
print("arguments:", sys.argv[1:], flush=True)
"""


def test_python_script_runs_in_an_image_of_ones_own(jobs: Jobs, plain_image: str) -> None:
    """A script in a plain Python image imports the client and its own neighbours; logs show it."""
    files = {"train.py": _SCRIPT, "helper.py": "NUMBER = 20\n"}
    command = ("python3", "/program/train.py", "--answer=42")
    jobs.create("j", jobs.template_of_files(files, *command, image=plain_image))
    client = Client.from_kubeconfig(jobs.target.kubeconfig, namespace=jobs.namespace)
    followed = [*client.logs("j", follow=True)]  # from before there are pods to the job's end
    status = jobs.wait_state("j", *ENDED)
    assert status["state"] == "Succeeded", jobs.story("j")
    assert (status["step"], status["checkpoint"]["step"]) == (30, 20)
    assert_adds_up(status)
    said = "arguments: ['--answer=42']"
    for lines in (followed, [*client.logs("j")]):
        workers = [line.worker for line in lines if line.text == said]
        assert sorted(workers) == ["0/0", "0/1"], jobs.story("j")
    (line,) = (line for line in client.logs("j", rank=1, tail=20) if line.text == said)
    assert line.worker == "0/1"
