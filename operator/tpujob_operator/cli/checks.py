"""What a cluster must have for jobs to run: judged from what was read of it, purely."""

from __future__ import annotations

import dataclasses
import enum
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tpujob_operator.api.spec import JobSpec
from tpujob_operator.core.nodes import NodeView
from tpujob_tpu.catalogue import RESOURCE, USABLE, SliceShape, UnknownSliceError, slice_shape

#: A clock that differs by more than a save's duration makes events hard to read.
_MOST_SKEW_S = 5.0
_JOBSET_NEEDS = {"network", "successPolicy", "failurePolicy", "replicatedJobs", "suspend"}
_INSTALL_JOBSET = "install JobSet 0.12 or newer: https://jobset.sigs.k8s.io/docs/installation/"


class Level(enum.StrEnum):
    """How bad it is."""

    OK = "ok"
    WARNING = "warning"
    BAD = "bad"  # jobs cannot run


@dataclasses.dataclass(frozen=True, slots=True)
class Check:
    """One thing that was looked at."""

    level: Level
    what: str
    found: str
    advice: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class Node:
    """A TPU node, and the chips that its device plugin offers."""

    view: NodeView
    chips: int


@dataclasses.dataclass(frozen=True, slots=True)
class Cluster:
    """What was read of a cluster; None: it may not be read."""

    namespace: str
    version: str
    skew_s: float
    jobs_schema: Mapping[str, Any] | None  # of our CRD's spec; empty: there is no such CRD
    jobset_schema: Mapping[str, Any] | None
    operators: Sequence[Mapping[str, Any]] | None  # Deployments
    nodes: Sequence[Node] | None
    refused: Sequence[str]  # what the user may not do
    queues: Sequence[str] | None  # LocalQueues; None: no Kueue, or they may not be read
    quotas: Sequence[Mapping[str, Any]]
    dns: Sequence[Mapping[str, Any]] | None  # EndpointSlices of the Service kube-dns


def examine(cluster: Cluster) -> Iterator[Check]:
    """All checks, in the order in which a job meets what they are about."""
    yield Check(Level.OK, "API server", cluster.version)
    yield _clock(cluster.skew_s)
    yield _jobs_crd(cluster.jobs_schema)
    yield _jobset(cluster.jobset_schema)
    yield _operator(cluster.operators)
    yield _dns(cluster.dns)
    yield _rights(cluster)
    yield from _quotas(cluster.quotas)
    yield _queues(cluster)
    yield from _nodes(cluster.nodes)


def _clock(skew_s: float) -> Check:
    if abs(skew_s) <= _MOST_SKEW_S:
        return Check(Level.OK, "clock", f"{abs(skew_s):.0f} s from the API server's")
    advice = "synchronise this machine's clock: times shown here are the cluster's"
    return Check(Level.WARNING, "clock", f"{skew_s:+.0f} s from the API server's", advice)


def _jobs_crd(schema: Mapping[str, Any] | None) -> Check:
    what = "TPUTrainingJob"
    if schema is None:
        return _unread(what, "customresourcedefinitions")
    if not schema:
        return Check(Level.BAD, what, "not installed", "install the operator's chart")
    known = {field.alias or name for name, field in JobSpec.model_fields.items()}
    if missing := sorted(known - {*schema["properties"]}):
        advice = "update the chart, CRDs included; helm does not do that by itself"
        return Check(Level.WARNING, what, f"an older one, without spec.{missing[0]}", advice)
    return Check(Level.OK, what, "installed")


def _jobset(schema: Mapping[str, Any] | None) -> Check:
    if schema is None:
        return _unread("JobSet", "customresourcedefinitions")
    if not schema:
        return Check(Level.BAD, "JobSet", "not installed", _INSTALL_JOBSET)
    if missing := sorted(_JOBSET_NEEDS - {*schema["properties"]}):
        return Check(Level.BAD, "JobSet", f"too old: no spec.{missing[0]}", _INSTALL_JOBSET)
    return Check(Level.OK, "JobSet", "installed")


def _operator(deployments: Sequence[Mapping[str, Any]] | None) -> Check:
    if deployments is None:
        return _unread("operator", "deployments")
    if not deployments:
        advice = "install the operator's chart"
        return Check(Level.BAD, "operator", "no Deployment of it", advice)
    names = [f"{item['metadata']['namespace']}/{item['metadata']['name']}" for item in deployments]
    if any(item.get("status", {}).get("readyReplicas") for item in deployments):
        return Check(Level.OK, "operator", f"ready: {', '.join(names)}")
    advice = f"kubectl -n {names[0].partition('/')[0]} describe pods; its log says what is wrong"
    return Check(Level.BAD, "operator", f"not ready: {', '.join(names)}", advice)


def _dns(slices: Sequence[Mapping[str, Any]] | None) -> Check:
    if slices is None:
        return Check(Level.OK, "DNS", "not known, you may not read endpointslices in kube-system")
    endpoints = [one for item in slices for one in item.get("endpoints") or ()]
    ready = sum(one.get("conditions", {}).get("ready") is not False for one in endpoints)
    if ready:
        return Check(Level.OK, "DNS", f"{ready} ready endpoints of kube-dns")
    advice = "pods find their coordinator by its name: see that kube-dns runs, or what replaces it"
    return Check(Level.WARNING, "DNS", "no ready endpoint of kube-dns in kube-system", advice)


def _rights(cluster: Cluster) -> Check:
    if not cluster.refused:
        return Check(Level.OK, "your rights", f"enough in namespace {cluster.namespace}")
    found = f"in namespace {cluster.namespace} you may not {', '.join(cluster.refused)}"
    return Check(Level.WARNING, "your rights", found, "ask for the role edit there")


def _quotas(quotas: Sequence[Mapping[str, Any]]) -> Iterator[Check]:
    for quota in quotas:
        status = quota.get("status", {})
        hard, used = status.get("hard", {}), status.get("used", {})
        key = f"requests.{RESOURCE}"
        if key not in hard:
            continue
        found = f"{used.get(key, '0')} of {hard[key]} chips used"
        is_spent = int(used.get(key, 0)) >= int(hard[key])
        level, advice = (
            (Level.WARNING, "no pod of a job gets chips") if is_spent else (Level.OK, "")
        )
        yield Check(level, f"quota {quota['metadata']['name']}", found, advice)


def _queues(cluster: Cluster) -> Check:
    if cluster.queues is None:
        found = "not installed, or its queues may not be read: jobs with spec.queue would wait"
        return Check(Level.OK, "Kueue", found)
    if not cluster.queues:
        found = f"no LocalQueue in namespace {cluster.namespace}: jobs with spec.queue would wait"
        return Check(Level.OK, "Kueue", found)
    return Check(Level.OK, "Kueue", f"LocalQueues {', '.join(cluster.queues)}")


def _nodes(nodes: Sequence[Node] | None) -> Iterator[Check]:
    if nodes is None:
        yield _unread("TPU nodes", "nodes")
        return
    if not nodes:
        advice = "make a TPU node pool, or see that auto-provisioning is on"
        yield Check(Level.WARNING, "TPU nodes", "none", advice)
    pools: dict[tuple[str, str], dict[str, list[Node]]] = defaultdict(lambda: defaultdict(list))
    for node in nodes:
        pools[node.view.shape][node.view.pool].append(node)
    for (accelerator, topology), of_shape in sorted(pools.items()):
        yield _slices(accelerator, topology, of_shape)


def _slices(accelerator: str, topology: str, pools: Mapping[str, Sequence[Node]]) -> Check:
    shape = _shape(accelerator, topology)
    what = f"slices {accelerator} {topology}".strip()
    if shape is None:
        advice = "no job can ask for them: see their labels, or update this command"
        return Check(Level.WARNING, what, "not in the catalogue", advice)
    usable = {pool: _usable(of_pool, shape) for pool, of_pool in pools.items()}
    whole = sum(count // shape.hosts for count in usable.values())
    total = sum(len(of_pool) for of_pool in pools.values())
    found = f"{whole} whole ({shape.generation.name}, {shape.hosts} hosts each)"
    broken = sorted(pool for pool, count in usable.items() if count < len(pools[pool]))
    if not broken:
        return Check(Level.OK, what, found)
    found += f"; {total - sum(usable.values())} of {total} nodes not Ready or without their chips"
    advice = f"kubectl describe nodes of the pools {', '.join(broken[:5])}"
    return Check(Level.WARNING, what, found, advice)


def whole_slices(nodes: Sequence[Node], shape: SliceShape) -> int:
    """Slices of this kind whose hosts are all Ready and have their chips."""
    labels = (shape.gke_accelerator, shape.topology)
    pools: dict[str, list[Node]] = defaultdict(list)
    for node in nodes:
        if node.view.shape == labels:
            pools[node.view.pool].append(node)
    return sum(_usable(of_pool, shape) // shape.hosts for of_pool in pools.values())


def _usable(pool: Sequence[Node], shape: SliceShape) -> int:
    """Nodes of a pool that pods can run on."""
    return sum(node.view.is_ready and node.chips >= shape.chips_per_host for node in pool)


def _shape(accelerator: str, topology: str) -> SliceShape | None:
    for generation in USABLE:
        try:
            shape = slice_shape(generation.name, topology)
        except UnknownSliceError:
            continue
        if shape.gke_accelerator == accelerator:
            return shape
    return None


def _unread(what: str, resource: str) -> Check:
    return Check(Level.WARNING, what, "not known", f"you may not read {resource}: ask who may")
