"""What the operator counts by itself runs evenly, whoever sets the machine's clock."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from localcluster.cluster import Cluster
from localcluster.kubeapi import Object
from tests.core.histories import progress, start
from tests.core.stories import told
from tests.operator.passes import HOUR_MS, NODE_LOSS_MS, Machine, Passes, passes_of
from tests.operator.rig import NODE, Jobs
from tests.waiting import wait_until
from tpujob_operator.core.kinds import POD
from tpujob_operator.shell.reconcile import status_interval_ms

pytestmark = pytest.mark.control_plane
JUMPS = pytest.mark.parametrize("jump_ms", [-HOUR_MS, 300_000, HOUR_MS])


@pytest.fixture
def machine() -> Machine:
    """The machine that the operator runs on."""
    return Machine()


@pytest.fixture
async def passes(control_plane: Cluster, own_jobs: Jobs, machine: Machine) -> AsyncIterator[Passes]:
    """An operator on it."""
    async with passes_of(control_plane, own_jobs, machine) as made:
        yield made


def _is_there(jobs: Jobs, pod: Object) -> bool:
    return jobs.find(POD, pod["metadata"]["name"]) is not None


def test_dates_follow_the_wall_clock_and_durations_do_not(machine: Machine) -> None:
    """A time that was noted before the clock was set lies as far back as before."""
    before = machine.clock.now()
    machine.set_wall(HOUR_MS)
    machine.wait(5_000)
    now = machine.clock.now()
    assert now.wall_ms - before.wall_ms == HOUR_MS + 5_000
    assert now.steady_ms - before.steady_ms == 5_000
    assert now.wall_ms - now.on_wall(before.steady_ms) == 5_000
    assert now.on_wall(0) == 0, "never stays never"


@JUMPS
async def test_a_node_is_dead_after_so_much_silence_by_any_clock(
    passes: Passes, machine: Machine, silent_node: str, jump_ms: int
) -> None:
    """Neither does a clock that is set prove a death, nor does it put the proof off."""
    passes.jobs.create("j")
    passes.know_node(silent_node)
    pods = await passes.make_until_running("j", silent_node)
    passes.jobs.delete(POD, pods[0]["metadata"]["name"])
    await passes.make("j")
    machine.set_wall(jump_ms)
    machine.wait(2_000)
    await passes.make("j")
    assert _is_there(passes.jobs, pods[0]), "it was silent for two seconds"
    machine.wait(NODE_LOSS_MS)
    await passes.make("j")
    # The Job controller takes its finalizer off a pod before it can go.
    wait_until(lambda: not _is_there(passes.jobs, pods[0]), "end of the pod")


@JUMPS
async def test_steps_are_written_at_one_pace_by_any_clock(
    passes: Passes, machine: Machine, jump_ms: int
) -> None:
    """The status shows a step as soon as it may be written again."""
    passes.jobs.create("j")
    await passes.make_until_running("j", NODE)
    await passes.settle("j")
    at_ms = machine.clock.now().wall_ms
    passes.state("j").take(told(*start(at_ms), progress(at_ms + 100, 1, 1)))
    await passes.settle("j")
    passes.state("j").take(told(progress(at_ms + 200, 2, 2), first=9))
    machine.set_wall(jump_ms)
    await passes.make("j")
    assert passes.jobs.status("j")["step"] == 1
    machine.wait(status_interval_ms(1))
    await passes.make("j")
    assert passes.jobs.status("j")["step"] == 2
