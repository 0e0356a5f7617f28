"""What one job needs of a cluster, and which of it is missing: judged purely, as ``checks``."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tpujob_operator.api.conditions import ConditionType, find_condition
from tpujob_operator.api.models import TPUTrainingJob
from tpujob_operator.api.status import Condition, ConditionStatus
from tpujob_operator.cli.checks import Check, Cluster, Level, whole_slices
from tpujob_operator.cli.needs import Need
from tpujob_tpu.catalogue import ACCELERATOR_LABEL, RESOURCE, TOPOLOGY_LABEL

Object = Mapping[str, Any]
_REQUESTS = f"requests.{RESOURCE}"
_TROUBLE = (
    (ConditionType.FAILED, ConditionStatus.TRUE, Level.BAD),
    (ConditionType.STALLED, ConditionStatus.TRUE, Level.BAD),
    (ConditionType.ADMITTED, ConditionStatus.FALSE, Level.WARNING),
    (ConditionType.DEGRADED, ConditionStatus.TRUE, Level.WARNING),
)


@dataclasses.dataclass(frozen=True, slots=True)
class Queue:
    """What is known of the LocalQueue that a job names; None: it may not be read."""

    is_served: bool  # Kueue is installed
    local: Object | None = None  # empty: there is none
    cluster: Object | None = None  # the ClusterQueue; empty: there is none
    flavors: Mapping[str, Object] | None = None  # that it names and that exist


@dataclasses.dataclass(frozen=True, slots=True)
class Around:
    """What was read for one job.

    Attributes:
        job: as it is, or as it would be submitted.
        needs: what they name.
        missing: of these, what is not there.
        unread: of these, what may not be read.
        queue: that it names; None: it names none.
        conditions: what the operator says of it, if it has been submitted.
    """

    job: TPUTrainingJob
    needs: Sequence[Need] = ()
    missing: Sequence[Need] = ()
    unread: Sequence[Need] = ()
    queue: Queue | None = None
    conditions: Sequence[Condition] = ()

    @property
    def slices(self) -> int:
        """Slices that its pods need, spares among them."""
        return self.job.spec.slices + self.job.spec.spares

    @property
    def chips(self) -> int:
        """Chips that its pods ask for."""
        return self.slices * self.job.shape.chips


def examine_job(around: Around, cluster: Cluster) -> Iterator[Check]:
    """What stands in the job's way."""
    yield from _told(around)
    yield from _needs(around, cluster.namespace)
    yield from _quotas(around, cluster.quotas)
    if cluster.nodes is not None:
        yield _slices(around, cluster)
    if around.queue:
        yield _queue(around, around.queue, cluster.namespace)


def _told(around: Around) -> Iterator[Check]:
    """What the operator says already; its messages tell what to do."""
    for kind, status, level in _TROUBLE:
        condition = find_condition(around.conditions, kind)
        if condition and condition.status is status:
            what = f"{around.job.metadata.name} is {'' if status.value == 'True' else 'not '}{kind}"
            yield Check(level, what, condition.reason, condition.message)


def _needs(around: Around, namespace: str) -> Iterator[Check]:
    for need in around.missing:
        advice = f"create it in namespace {namespace}, or name another one in the spec"
        yield Check(Level.BAD, str(need), "not there: pods that name it do not start", advice)
    found = len(around.needs) - len(around.missing) - len(around.unread)
    if found:
        yield Check(Level.OK, "what its pods name", f"{found} objects are there")
    if around.unread:
        names = ", ".join(map(str, around.unread))
        yield Check(Level.OK, "what its pods name", f"not known, you may not read {names}")


def _quotas(around: Around, quotas: Sequence[Object]) -> Iterator[Check]:
    for quota in quotas:
        hard = quota.get("status", {}).get("hard", {})
        if _REQUESTS in hard and int(hard[_REQUESTS]) < around.chips:
            found = f"{hard[_REQUESTS]} chips at most, and the job asks for {around.chips}"
            advice = "some of its pods are never made: raise the quota, or ask for less"
            yield Check(Level.BAD, f"quota {quota['metadata']['name']}", found, advice)


def _slices(around: Around, cluster: Cluster) -> Check:
    spec, shape = around.job.spec, around.job.shape
    what = f"its slices, {spec.accelerator.value} {spec.topology}"
    whole = whole_slices(cluster.nodes or (), shape)
    found = f"{whole} whole in the cluster, {around.slices} wanted"
    if whole >= around.slices:
        return Check(Level.OK, what, found)
    advice = "it waits unless node pools are made for it (auto-provisioning, flex-start)"
    return Check(Level.WARNING, what, found, advice)


def _queue(around: Around, queue: Queue, namespace: str) -> Check:
    what = f"queue {around.job.spec.queue}"
    if not queue.is_served:
        advice = "install Kueue, or leave spec.queue out"
        return Check(Level.BAD, what, "there is no Kueue in the cluster", advice)
    if queue.local is None:
        return Check(Level.WARNING, what, "not known", "you may not read localqueues: ask who may")
    if not queue.local:
        advice = f"kubectl -n {namespace} get localqueues lists those there are"
        return Check(Level.BAD, what, f"no such LocalQueue in namespace {namespace}", advice)
    name = queue.local["spec"]["clusterQueue"]
    if queue.cluster is None:
        return Check(Level.OK, what, f"of ClusterQueue {name}, which you may not read")
    if not queue.cluster:
        advice = "its administrator has to create it, or correct the LocalQueue"
        return Check(Level.BAD, what, f"its ClusterQueue {name} does not exist", advice)
    level, found, advice = _quota_of(around, queue.cluster, queue.flavors)
    return Check(level, what, f"ClusterQueue {name}: {found}", advice)


def _quota_of(
    around: Around, cluster_queue: Object, flavors: Mapping[str, Object] | None
) -> tuple[Level, str, str]:
    """What a ClusterQueue has for the job."""
    stopped = _false_condition(cluster_queue, "Active")
    if stopped:
        return Level.BAD, stopped, "it admits nothing: its administrator has to mend it"
    quotas = dict(_chip_quotas(cluster_queue))
    if not quotas:
        advice = f"it admits no pods with chips: add {RESOURCE} to its resourceGroups"
        return Level.BAD, f"covers no {RESOURCE}", advice
    missing = [] if flavors is None else sorted(quotas.keys() - flavors.keys())
    if missing:
        advice = "it admits nothing: create it, or take it out of the ClusterQueue"
        return Level.BAD, f"its ResourceFlavor {missing[0]} does not exist", advice
    fitting = {
        name: chips
        for name, chips in quotas.items()
        if flavors is None or _suits(flavors[name], around.job)
    }
    if not fitting:
        shape = around.job.shape
        wanted = f"{ACCELERATOR_LABEL}: {shape.gke_accelerator}"
        advice = f"it admits the job nowhere: a flavor's nodeLabels must allow {wanted}"
        return Level.BAD, f"no flavor has {around.job.spec.accelerator.value}", advice
    most = max(fitting.values())
    found = f"{most} chips in flavor {max(fitting, key=lambda name: fitting[name])}"
    if most < around.chips and not _borrows(cluster_queue):
        advice = "a job is admitted as a whole: raise the quota, or ask for less"
        return Level.BAD, f"{found}, and the job asks for {around.chips}", advice
    return Level.OK, found, ""


def _chip_quotas(cluster_queue: Object) -> Iterator[tuple[str, int]]:
    """Flavors with chips, and how many."""
    for group in cluster_queue["spec"].get("resourceGroups") or ():
        for flavor in group["flavors"]:
            for resource in flavor["resources"]:
                if resource["name"] == RESOURCE:
                    yield flavor["name"], int(resource["nominalQuota"])


def _borrows(cluster_queue: Object) -> bool:
    """Whether it may have the chips of others."""
    spec = cluster_queue["spec"]
    return bool(spec.get("cohortName") or spec.get("cohort"))


def _suits(flavor: Object, job: TPUTrainingJob) -> bool:
    """Whether nodes of the flavor can be of the job's kind."""
    labels = flavor.get("spec", {}).get("nodeLabels") or {}
    wanted = {ACCELERATOR_LABEL: job.shape.gke_accelerator, TOPOLOGY_LABEL: job.spec.topology}
    return all(labels.get(key, value) == value for key, value in wanted.items())


def _false_condition(item: Object, kind: str) -> str:
    """Words of a condition that is False; empty: it is not."""
    conditions = item.get("status", {}).get("conditions") or ()
    found = (each for each in conditions if each["type"] == kind and each["status"] == "False")
    return next((each.get("message") or each["reason"] for each in found), "")
