"""Passes over real jobs: what is refused, lost, changed by others, or forgotten by a restart."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from localcluster.cluster import Cluster
from tests.core.histories import progress, start
from tests.core.stories import told
from tests.faultproxy.faults import LoseAnswer, Match, Refuse
from tests.faultproxy.proxy import FaultProxy
from tests.operator.passes import NODE_LOSS_MS, Machine, Passes, passes_of
from tests.operator.rig import NODE, Jobs
from tests.waiting import wait_until
from tpujob_operator.core.kinds import JOB_SET, POD, TPU_TRAINING_JOB
from tpujob_operator.core.policies.objects import REPAIR_INTERVAL_MS
from tpujob_operator.shell.client import ApiError

pytestmark = pytest.mark.control_plane
_CREATES = (("create", "secrets"), ("create", "services"))


@pytest.fixture
def proxy(control_plane: Cluster, tmp_path: Path) -> Iterator[FaultProxy]:
    """What lies between the operator and the API server."""
    with FaultProxy(control_plane.kubeconfig, tmp_path) as running:
        yield running


@pytest.fixture
async def passes(proxy: FaultProxy, own_jobs: Jobs) -> AsyncIterator[Passes]:
    """An operator behind it."""
    async with passes_of(proxy, own_jobs, Machine()) as made:
        yield made


async def test_a_refused_deletion_spares_no_other_pod_of_a_deleted_job(
    passes: Passes, proxy: FaultProxy, silent_node: str
) -> None:
    """What is left on a dead node goes, but for the one pod that may not be deleted."""
    jobs = passes.jobs
    jobs.create("j")
    passes.know_node(silent_node)
    pods = await passes.make_until_running("j", silent_node)
    jobs.delete(TPU_TRAINING_JOB, "j")
    wait_until(
        lambda: all(pod["metadata"].get("deletionTimestamp") for pod in jobs.all(POD, "j")),
        "deletion of all pods",
    )
    await passes.make("j")
    passes.machine.wait(NODE_LOSS_MS)
    rule = proxy.on(Match("delete", "pods"), Refuse(403))
    with pytest.raises(ApiError, match="the fault proxy says 403"):
        await passes.make("j")
    assert rule.hits == 1
    # The Job controller takes its finalizer off a pod before it can go.
    wait_until(lambda: len(jobs.all(POD, "j")) == 1, f"end of all but one of {len(pods)} pods")
    await passes.make("j")
    wait_until(lambda: not jobs.all(POD, "j"), "end of the last pod")


async def test_a_status_that_another_writer_changed_is_believed(passes: Passes) -> None:
    """History and memory are read from it again; what is in no status stays."""
    jobs = passes.jobs
    jobs.create("j")
    await passes.make_until_running("j", NODE)
    await passes.settle("j")
    before, earlier = passes.state("j"), jobs.status("j")["ledger"]
    at_ms = passes.machine.clock.now().wall_ms
    before.take(told(*start(at_ms), progress(at_ms + 100, 1, 7)))
    await passes.settle("j")
    assert jobs.status("j")["step"] == 7
    path = TPU_TRAINING_JOB.path(jobs.namespace, "j", "status")
    jobs.api.merge(path, {"status": {"ledger": None}})
    jobs.api.merge(path, {"status": {"ledger": earlier}})
    await passes.settle("j")
    after = passes.state("j")
    assert after is not before
    assert (after.uid, after.history.progress.step) == (before.uid, 0)
    assert (after.applied_ms, after.nodes) == (before.applied_ms, before.nodes)
    assert jobs.status("j")["step"] == 0


async def test_a_job_in_doubt_is_read_before_anything_is_decided(
    passes: Passes, proxy: FaultProxy
) -> None:
    """The status was written, its answer lost, and the job cannot be read at once."""
    passes.jobs.create("j")
    lost = proxy.on(Match("patch", "tputrainingjobs", subresource="status"), LoseAnswer(504))
    proxy.on(Match("get", "tputrainingjobs"), Refuse(503), times=None)
    assert await passes.make("j") == "retry"
    assert lost.hits == 1
    assert passes.state("j").is_in_doubt
    proxy.heal()
    assert await passes.make("j", is_blind=True) == "changed"
    assert not passes.state("j").is_in_doubt
    assert [write.code for write in proxy.journal.writes if "status" in write.target][:1] == [200]
    assert not [write for write in proxy.journal.writes if write.code == 409]
    assert passes.jobs.status("j")["attempt"] == 1
    assert passes.jobs.find(JOB_SET, "j-1")


async def test_a_restarted_operator_spreads_its_repairs(passes: Passes, proxy: FaultProxy) -> None:
    """A thousand jobs would ask for two thousand creations at once."""
    for name in ("a", "b"):
        passes.jobs.create(name)
        await passes.make_until_running(name, NODE)
    before = [proxy.journal.calls[call] for call in _CREATES]
    machine = Machine()
    async with passes_of(proxy, passes.jobs, machine) as restarted:
        for name in ("a", "b"):
            await restarted.make(name)
        steady_ms = machine.clock.steady_ms()
        ages = [steady_ms - restarted.state(name).applied_ms for name in ("a", "b")]
        assert all(0 <= age < REPAIR_INTERVAL_MS for age in ages)
        assert ages[0] != ages[1]
        assert [proxy.journal.calls[call] for call in _CREATES] == before
        machine.wait(REPAIR_INTERVAL_MS)
        for name in ("a", "b"):
            await restarted.make(name)
    assert [proxy.journal.calls[call] for call in _CREATES] == [count + 2 for count in before]
