"""A training loop of one's own with both tiers of checkpoints, in pods: the example of the docs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from faults.catalogue import CATALOGUE
from faults.scene import Place
from localcluster.kubeapi import Object
from tests.e2e.rig import ENDED, START_S, Jobs, assert_adds_up
from tests.waiting import wait_until
from tpujob_agent.protocol import Env

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

_PROGRAM = Path(__file__).parents[2] / "examples" / "own_checkpoints.py"
_ENDLESS = 1_000_000


def _create(jobs: Jobs) -> Object:
    files = {_PROGRAM.name: _PROGRAM.read_text()}
    command = ("python", f"/program/{_PROGRAM.name}", str(_ENDLESS))
    template = jobs.template_of_files(files, *command, image=jobs.target.trainer_image)
    template["spec"]["containers"][0]["env"] += [
        {"name": "JAX_PLATFORMS", "value": "cpu"},
        {"name": "XLA_FLAGS", "value": "--xla_force_host_platform_device_count=2"},
    ]
    preload = ["jax", "tpujob_checkpoint.checkpointer", "tpujob_checkpoint.orbax_files"]
    checkpoint = {"directory": f"/shared/{jobs.namespace}/checkpoints"}
    jobs.create("j", template, checkpoint=checkpoint, recovery={"preload": preload})
    return template


def _common_snapshots(jobs: Jobs) -> set[str]:
    """Steps that both hosts hold in memory."""
    list_them = f'ls "${Env.SNAPSHOT_DIR}"'
    held = [jobs.scene("j").shell(Place(0, host), list_them).split() for host in range(2)]
    return {name for name in set(held[0]) & set(held[1]) if name.endswith(".snapshot")}


def _restored(jobs: Jobs) -> list[tuple[int, str]]:
    """Steps that the leader's container went on from, and where they were."""
    log = jobs.log(jobs.pods("j")["j-1-slice-0-0"])
    found = re.findall(r"^restored step (\d+) from (\S+) in ", log, re.MULTILINE)
    return [(int(step), place) for step, place in found]


def test_own_loop_goes_on_from_memory_and_saves_before_it_is_moved(jobs: Jobs) -> None:
    """A killed process costs seconds, a deleted pod no step, and changed arguments none either."""
    template = _create(jobs)
    jobs.wait_step("j", 1)
    wait_until(lambda: _common_snapshots(jobs), "a snapshot on both hosts", START_S)
    CATALOGUE["kill-trainer"].make(jobs.scene("j"), Place(0, 1))
    [killed] = jobs.wait_recovered("j")["incidents"]
    assert (killed["cause"], killed["rung"]) == ("process", "R0"), jobs.story("j")
    [(step, place)] = _restored(jobs)
    assert (step > 0, place) == (True, "memory"), jobs.story("j")

    CATALOGUE["delete-pod"].make(jobs.scene("j"), Place(0, 1))
    status = jobs.wait_recovered("j", 2)
    assert status["incidents"][-1]["rung"] == "R2", jobs.story("j")
    assert status["incidents"][-1].get("lostSteps", 0) == 0, jobs.story("j")
    [(saved, place)] = _restored(jobs)  # in a new pod
    assert (saved > step, place) == (True, f"/shared/{jobs.namespace}/checkpoints")

    last = int(jobs.status("j")["step"]) + 500
    template["spec"]["containers"][0]["command"][-1] = str(last)
    jobs.change("j", template=template)
    status = jobs.wait_state("j", *ENDED)
    assert status["state"] == "Succeeded", jobs.story("j")
    # More than were wanted if they have been done before the change was noticed.
    assert status["checkpoint"]["step"] == status["step"] >= last
    assert_adds_up(status)
