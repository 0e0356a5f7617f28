"""Slices on nodes: the real scheduler and JobSet place them on node pools labelled as GKE's."""

from __future__ import annotations

import functools
import os
import uuid
from collections import defaultdict
from collections.abc import Iterator

import pytest

from localcluster import kwok
from localcluster.kubeapi import Object
from tests.conftest import make_namespace, start_control_plane
from tests.operator.nodes import simulate_pools
from tests.operator.rig import Jobs, running
from tests.waiting import wait_until
from tpujob_operator.api import reasons
from tpujob_operator.core.kinds import POD
from tpujob_operator.core.manifests import names
from tpujob_tpu.catalogue import USABLE

pytestmark = pytest.mark.control_plane

#: A slice of several hosts and one of a single host, each with GKE's label of its machines, as in
#: "Plan TPUs in GKE": written down once more here, because the operator's own table is tested.
_SHAPES = {
    "v3": (("tpu-v3-slice", "4x4", 4), ("tpu-v3-device", "2x2")),
    "v4": (("tpu-v4-podslice", "2x2x2", 2), ("tpu-v4-podslice", "2x2x1")),
    "v5e": (("tpu-v5-lite-podslice", "4x4", 4), ("tpu-v5-lite-podslice", "2x2")),
    "v5p": (("tpu-v5p-slice", "2x2x2", 2), ("tpu-v5p-slice", "2x2x1")),
    "v6e": (("tpu-v6e-slice", "2x4", 2), ("tpu-v6e-slice", "2x2")),
    "v7": (("tpu7x", "2x2x2", 2), ("tpu7x", "2x2x1")),
}
_SLICES = 2


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Jobs]:
    """A namespace with an operator, in a cluster where kwok plays the kubelets."""
    cluster = start_control_plane(f"placement-{os.getpid()}", kwok=1, topology="of-no-job")
    try:
        name = f"placement-{uuid.uuid4().hex[:8]}"
        make_namespace(cluster, name)
        with running(cluster, tmp_path_factory.mktemp("operator"), name):
            yield Jobs(cluster, name)
    finally:
        cluster.down()


def _nodes_of(jobs: Jobs, job: str) -> dict[str, list[str]]:
    """Nodes of a job's worker pods that have one, by slice."""
    found = defaultdict(list)
    for pod in jobs.all(POD, job):
        if (node := pod["spec"].get("nodeName")) and _role(pod) == names.ROLE_WORKER:
            found[pod["metadata"]["labels"][names.SLICE_INDEX_LABEL]].append(node)
    return dict(found)


def _role(pod: Object) -> str:
    return str(pod["metadata"]["labels"][names.ROLE_LABEL])


def _is_placed(jobs: Jobs, job: str, slices: int, hosts: int) -> bool:
    return sorted(map(len, _nodes_of(jobs, job).values())) == [hosts] * slices


def test_slices_get_pools_of_their_own(jobs: Jobs) -> None:
    """In each generation, a slice of several hosts gets a whole pool; others share theirs."""
    assert set(_SHAPES) == {generation.name for generation in USABLE}
    made = {name: _add_nodes_and_jobs(jobs, name) for name in _SHAPES}
    for name, (pools, shared) in made.items():
        hosts = _SHAPES[name][0][2]
        wait_until(functools.partial(_is_placed, jobs, name, _SLICES, hosts), f"hosts of {name}")
        used = _nodes_of(jobs, name).values()
        of_slices = [{pools[node] for node in nodes} for nodes in used]
        assert [len(of_slice) for of_slice in of_slices] == [1] * _SLICES, used
        assert len(set.union(*of_slices)) == _SLICES, used
        one = f"{name}-one"
        wait_until(functools.partial(_is_placed, jobs, one, _SLICES, 1), f"slices of {one}")
        assert sorted(node for [node] in _nodes_of(jobs, one).values()) == sorted(shared)


def _add_nodes_and_jobs(jobs: Jobs, name: str) -> tuple[dict[str, str], dict[str, str]]:
    """A job of slices of several hosts, and one of slices of one; the nodes meant for each."""
    several, single = _SHAPES[name]
    label, topology, hosts = several
    pools = simulate_pools(jobs.cluster, name, label, topology, pools=_SLICES + 1, hosts=hosts)
    jobs.create(name, accelerator=name, topology=topology, slices=_SLICES)
    label, topology = single
    shared = simulate_pools(jobs.cluster, f"{name}-one", label, topology, pools=1, hosts=_SLICES)
    jobs.create(f"{name}-one", accelerator=name, topology=topology, slices=_SLICES)
    return pools, shared


def test_one_of_two_jobs_gets_the_slice(jobs: Jobs) -> None:
    """The whole of it; the other one none of it, until the first is done."""
    hosts = 4
    simulate_pools(jobs.cluster, "rare", "tpu-v6e-slice", "4x4", pools=1, hosts=hosts)
    both = {"a", "b"}
    for name in both:
        jobs.create(name, accelerator="v6e", topology="4x4", slices=1)
    first = wait_until(
        lambda: next((name for name in both if _is_placed(jobs, name, 1, hosts)), None),
        "a job that has the slice",
    )
    [other] = both - {first}
    pods = jobs.wait_pods(other, 2)  # the coordinator, and the host that the others wait for
    assert _nodes_of(jobs, other) == {}, pods
    jobs.wait_condition(other, "Progressing", reasons.UNSCHEDULABLE, "False")
    end = {"metadata": {"annotations": {kwok.EXIT_CODE: "0"}}}
    [coordinator] = [pod for pod in jobs.all(POD, first) if _role(pod) == names.ROLE_COORDINATOR]
    jobs.api.merge(POD.path(jobs.namespace, coordinator["metadata"]["name"]), end)
    jobs.wait_condition(first, "Succeeded")
    wait_until(lambda: _is_placed(jobs, other, 1, hosts), "the slice for the other job")
