"""Two worlds on one checkpoint directory: one is cut off and trains on beside its replacement."""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Iterator

import pytest

from bench.installed import installed
from faults import nodes
from faults.jobs import ROOT_FOLDER
from faults.scene import LEADER
from localcluster import host
from tests.e2e.rig import START_S, Jobs, assert_adds_up
from tests.waiting import wait_until
from tpujob_agent.protocol import ExitCode

pytestmark = [pytest.mark.e2e, pytest.mark.faults, pytest.mark.timeout(600)]

#: The trainer, which writes down with what it ends: nobody else hears of it behind a cut cable.
_PROGRAM = """
python -m tpujob_trainer --config env:CONFIG
code=$?
echo $code >> $FOLDER/exits
exit $code
"""
_CONFIG = {
    "model": {"preset": "tiny"},
    "globalBatch": 4,
    "sequenceLength": 32,
    "steps": 1_000_000,
    "logEverySteps": 1000,
    "data": {"directory": "/tmp/data", "maxBytes": 100_000},
}


@pytest.fixture
def two_hosts() -> Iterator[Jobs]:
    """Two slices of one host each: a world that nobody hears trains on by itself."""
    if reason := host.why_not(full=True):
        pytest.skip(reason)
    shape = {"nodes": 2, "hosts_per_slice": 1, "topology": "2x2", "node_monitor_grace_s": 20}
    with installed(f"fence-{os.getpid()}", print, node_loss_s=10, **shape) as (cluster, target):
        made = Jobs(target, cluster, f"e2e-{uuid.uuid4().hex[:10]}")
        made.kube.ensure_namespace()
        yield made


def train(jobs: Jobs) -> None:
    """A world of one host, whose checkpoints all hosts reach."""
    target = jobs.target
    template = jobs.template("sh", "-c", _PROGRAM, image=target.trainer_image)
    [container] = template["spec"]["containers"]
    config = {"name": "CONFIG", "value": json.dumps(_CONFIG)}
    container["env"] += [config, {"name": "JAX_PLATFORMS", "value": "cpu"}]
    directory = f"{ROOT_FOLDER}/{jobs.namespace}/checkpoints"
    checkpoint = {"directory": directory, "interval": {"policy": "Seconds", "seconds": 3}}
    jobs.create("j", template, topology="2x2", checkpoint=checkpoint)


def test_a_world_that_was_cut_off_commits_nothing_beside_its_replacement(two_hosts: Jobs) -> None:
    """Its next save finds the newer world, and it ends with 75; the job goes on from its last."""
    jobs = two_hosts
    assert jobs.cluster is not None
    train(jobs)
    before = jobs.wait_status("j", lambda s: s.get("checkpoint", {}).get("step", 0) > 0, "a save")
    [folder] = jobs.cluster.shared_dir.glob(f"**/{jobs.namespace}")
    exits = folder / "exits"
    nodes.cut_network(jobs.scene("j"), LEADER)
    try:
        status = jobs.wait_recovered("j")
        wait_until(exits.exists, "the end of the world that was cut off", START_S)
        newer = jobs.wait_status(
            "j",
            lambda s: s["checkpoint"]["step"] > status["checkpoint"]["step"],
            "saves of the newer world",
        )
    finally:
        nodes.heal_all(jobs.scene("j"), LEADER)
    assert exits.read_text().split() == [str(int(ExitCode.SUPERSEDED))]
    [incident] = newer["incidents"]
    assert (incident["cause"], incident["rung"]) == ("node", "R2")
    # It trained on for half a minute and saved until the newer world had begun: nothing is lost
    # but what came after its last save.
    assert newer["checkpoint"]["step"] > before["checkpoint"]["step"]
    assert not list((folder / "checkpoints").glob("*quarantined*"))
    assert_adds_up(newer)
