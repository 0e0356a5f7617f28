"""The rest of the catalogue, each fault with a job of its own: ``make faults``."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from faults import catalogue, control_plane, diary, evidence, judgement, nodes, processes, storage
from faults.answers import ANSWERS
from faults.jobs import ROOT_FOLDER
from faults.scene import LEADER, TRAINER, Place, Scene
from faults.training import STEP_S, TRAINING
from tests.e2e.rig import START_S, Jobs, assert_adds_up, uids
from tests.waiting import wait_until
from tpujob_agent.protocol import ExitCode
from tpujob_operator.core.kinds import POD

pytestmark = [pytest.mark.e2e, pytest.mark.faults, pytest.mark.timeout(600)]


@pytest.mark.parametrize(
    ("code", "cause", "budget"),
    [
        (ExitCode.PEER_LOST, "process", "process"),
        (ExitCode.CHECKPOINT_BAD, "checkpoint", "process"),
        (ExitCode.STALLED, "hang", "process"),
        (ExitCode.PREEMPTED, "userError", "userError"),  # nobody has asked it to leave
    ],
    ids=str,
)
def test_exit_codes_have_meanings(jobs: Jobs, code: ExitCode, cause: str, budget: str) -> None:
    """R0: the contract's codes are told apart, and charged accordingly."""
    jobs.train("j")
    jobs.wait_step("j", 15)
    pods = jobs.pods("j")
    processes.leave_with(jobs.scene("j"), Place(0, 1), code)
    status = jobs.wait_recovered("j")
    [incident] = status["incidents"]
    assert (incident["cause"], incident["rung"], incident["worker"]) == (cause, "R0", 1)
    assert status["budgets"][budget]["used"] == 1
    assert uids(jobs.pods("j")) == uids(pods)
    assert_adds_up(status)


def test_container_out_of_memory_is_restarted_in_its_pod(jobs: Jobs) -> None:
    """R1: the kernel kills a container's first process, and all end with it."""
    template = jobs.template("python", "-c", TRAINING)
    template["spec"]["containers"][0]["resources"] = {"limits": {"memory": "1Gi"}}
    jobs.create("j", template)
    jobs.wait_step("j", 15)
    pods = jobs.pods("j")
    catalogue.make("exhaust-container", jobs.scene("j"), Place(0, 1))
    status = jobs.wait_recovered("j")
    [incident] = status["incidents"]
    assert (incident["cause"], incident["rung"], incident["worker"]) == ("node", "R1", 1)
    after = jobs.pods("j")
    assert uids(after) == uids(pods)
    [container] = after["j-1-slice-0-1"]["status"]["containerStatuses"]
    assert container["lastState"]["terminated"]["reason"] == "OOMKilled"
    jobs.wait_status("j", lambda s: "out of memory" in s["incidents"][0]["message"], "the reason")
    assert status["budgets"]["process"]["used"] == 0
    assert_adds_up(status)


def test_full_disk_is_told_and_survived(jobs: Jobs) -> None:
    """A save that finds no room ends the program, in its words; with room, training goes on."""
    template = jobs.template("python", "-c", TRAINING)
    spec = template["spec"]
    spec["volumes"].append({"name": "spool", "emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}})
    [container] = spec["containers"]
    container["volumeMounts"].append({"name": "spool", "mountPath": "/spool"})
    container["env"].append({"name": "SPOOL", "value": "/spool"})
    jobs.create("j", template, recovery={"budgets": {"userError": -1, "noProgress": -1}})
    jobs.wait_step("j", 15)
    scene = jobs.scene("j")
    storage.fill(scene, LEADER, "/spool")
    status = jobs.wait_status("j", lambda s: bool(s["incidents"]), "the save fails")
    incident = status["incidents"][0]
    assert (incident["cause"], incident["rung"]) == ("userError", "R0")
    assert "No space left on device" in incident["message"]
    storage.free(scene, LEADER, "/spool")
    saved = status["checkpoint"]["step"]
    status = jobs.wait_status("j", lambda s: s["checkpoint"]["step"] > saved, "a newer save")
    assert status["budgets"]["process"]["used"] == 0
    assert diary.why_wrong(evidence.starts_and_saves(scene)) == ""


@pytest.mark.parametrize("name", ["cut-power", "cut-network"])
def test_spare_takes_over_for_a_lost_node(jobs: Jobs, name: str) -> None:
    """R2: nobody hears a host any more; a spare slice goes on at once, and alone."""
    if jobs.cluster is None:
        pytest.skip("a node is cut off from below, which needs the local cluster")
    jobs.train("j", spares=1)
    jobs.wait_step("j", 15)
    scene = jobs.scene("j")
    wait_until(lambda: len(jobs.pods("j")) == 4, "the spare's pods", START_S)
    training = next(number for number in (0, 1) if scene.trainer_pid(Place(number, 1)))
    fault, place = catalogue.CATALOGUE[name], Place(training, 1)
    fault.make(scene, place)
    try:
        status = jobs.wait_recovered("j")
    finally:
        assert fault.heal is not None
        fault.heal(scene, place)
    [incident] = status["incidents"]
    found = (incident["cause"], incident["rung"], incident["slice"], incident["worker"])
    assert found == ("node", "R2", *place)
    assert status["budgets"]["infrastructure"]["used"] == 1
    assert status["budgets"]["process"]["used"] == 0
    wait_until(lambda: nodes.are_all_ready(scene), "all nodes are ready again", START_S)
    spare = Place(1 - training, 0)
    assert diary.why_wrong(evidence.starts_and_saves(scene, spare)) == ""
    assert_adds_up(status)


def test_job_recovers_without_the_api_server(jobs: Jobs) -> None:
    """A container is killed while nobody can reach the API: the job recovers all the same."""
    if jobs.cluster is None:
        pytest.skip("the API server is stopped from below, which needs the local cluster")
    jobs.train("j")
    before = jobs.wait_step("j", 15)
    scene = jobs.scene("j")
    pod = scene.pod(Place(0, 1))
    [status] = [one for one in pod.status.container_statuses if one.name == TRAINER]
    container = status.container_id.removeprefix("containerd://")
    [path] = jobs.cluster.shared_dir.glob(f"**/{jobs.namespace}/diary")
    fault = catalogue.CATALOGUE["stop-api-server"]
    fault.make(scene, LEADER)
    try:
        jobs.cluster.signal_container(pod.spec.node_name, container, "SIGKILL")
        goal = before["step"] + 30 / STEP_S
        wait_until(
            lambda: any(
                line.generation == 2 and line.step >= goal for line in diary.read(path.read_text())
            ),
            "30 seconds of training in generation 2",
            START_S,
        )
    finally:
        assert fault.heal is not None
        fault.heal(scene, LEADER)
    after = jobs.wait_step("j", int(goal))
    [incident] = after["incidents"]
    assert (incident["cause"], incident["rung"]) == ("node", "R1")
    assert after["generation"] == 2
    assert diary.why_wrong(diary.read(path.read_text())) == ""
    assert_adds_up(after)


def test_forced_deletion_of_the_leaders_pod(jobs: Jobs) -> None:
    """R2: the API forgets a pod at once; its slice is made anew, and no two worlds train."""
    jobs.train("j", slices=2)
    jobs.wait_step("j", 15)
    scene = jobs.scene("j")
    before = uids(jobs.pods("j"))
    catalogue.make("delete-pod-by-force", scene, LEADER)
    status = jobs.wait_recovered("j")
    [incident] = status["incidents"]
    assert (incident["cause"], incident["rung"], incident["slice"]) == ("preemption", "R2", 0)
    after = uids(jobs.pods("j"))
    kept = {name for name in after if after[name] == before[name]}
    assert kept == {"j-1-slice-1-0", "j-1-slice-1-1"}
    assert status["budgets"]["process"]["used"] == 0
    assert diary.why_wrong(evidence.starts_and_saves(scene)) == ""
    assert_adds_up(status)


_DOWN_S = 120


def test_job_recovers_while_the_operator_is_down(jobs: Jobs) -> None:
    """R0 and R1 need no operator: the job recovers from four faults, and status catches up."""
    if jobs.cluster is None:
        pytest.skip("a container is killed from its node, which needs the local cluster")
    jobs.train("j")
    jobs.wait_step("j", 15)
    scene, pods = jobs.scene("j"), uids(jobs.pods("j"))
    made = ["kill-trainer", "stop-trainer", "kill-container", "crash-trainer"]
    down = catalogue.CATALOGUE["stop-operator"]
    down.make(scene, LEADER)
    try:
        wait_until(lambda: not control_plane.operators(scene), "no operator", START_S)
        since = time.monotonic()
        for generation, name in enumerate(made, 2):
            catalogue.make(name, scene, Place(0, 1))
            wait_until(lambda: _has_saved(scene, generation), f"a save after {name}", START_S)  # noqa: B023 - called here
        wait_until(lambda: time.monotonic() > since + _DOWN_S, "two minutes", 2 * _DOWN_S)
    finally:
        assert down.heal is not None
        down.heal(scene, LEADER)
    status = jobs.wait_status(
        "j", lambda s: s["restarts"] >= len(made) and judgement.is_calm(s), "status catches up"
    )
    for name, incident in zip(made, status["incidents"], strict=True):
        answer = ANSWERS[name]
        assert answer is not None
        assert incident["cause"] in answer.causes, incident
        assert incident["rung"] in answer.rungs, incident
        assert incident["worker"] == 1, incident
    used = {name: budget["used"] for name, budget in status["budgets"].items() if budget["used"]}
    assert used == {"process": 3, "infrastructure": 1}
    assert uids(jobs.pods("j")) == pods
    assert diary.why_wrong(evidence.starts_and_saves(scene)) == ""
    assert_adds_up(status)


def _has_saved(scene: Scene, generation: int) -> bool:
    lines = evidence.starts_and_saves(scene)
    return any((line.generation, line.what) == (generation, "saved") for line in lines)


def test_a_damaged_checkpoint_is_put_aside(jobs: Jobs) -> None:
    """The next older one is taken; what is done again comes out as it did before."""
    if jobs.cluster is None:
        pytest.skip("a bit is flipped on the disk below, which needs the local cluster")
    directory = f"{ROOT_FOLDER}/{jobs.namespace}/checkpoints"
    jobs.create(
        "j",
        trainer={
            "config": {
                "model": {"preset": "demo"},
                "mesh": {"fsdp": 4},
                "globalBatch": 8,
                "sequenceLength": 64,
                "steps": 1_000_000,
                "data": {
                    "source": "stdlib",
                    "directory": f"{ROOT_FOLDER}/data",
                    "maxBytes": 200_000,
                },
            },
            "env": [
                {"name": "JAX_PLATFORMS", "value": "cpu"},
                {"name": "XLA_FLAGS", "value": "--xla_force_host_platform_device_count=2"},
            ],
            "volumes": [{"name": "shared", **jobs.target.volume}],
            "volumeMounts": [{"name": "shared", "mountPath": ROOT_FOLDER}],
        },
        checkpoint={"directory": directory, "interval": {"policy": "Steps", "steps": 10}},
    )
    jobs.wait_status("j", lambda s: s.get("checkpoint", {}).get("step", 0) >= 20, "checkpoints")
    before = jobs.losses("j")
    jobs.change("j", suspend=True)
    jobs.wait_state("j", "Suspended")
    jobs.wait_gone(POD, "j")
    [folder] = jobs.cluster.shared_dir.glob(f"**/{jobs.namespace}/checkpoints")
    damaged = storage.flip_bit(folder)
    older = max(step for path in folder.iterdir() if (step := _step(path)) < damaged)
    jobs.change("j", suspend=False)
    jobs.wait_step("j", damaged + 1)
    assert [path for path in folder.iterdir() if f"{damaged}.quarantined" in path.name]
    after = jobs.losses("j")
    assert min(after) == older + 1
    again = before.keys() & after.keys()
    assert {step: after[step] for step in again} == {step: before[step] for step in again}
    assert_adds_up(jobs.status("j"))


def _step(path: Path) -> int:
    return int(path.name) if path.name.isdecimal() else 0
