"""Reads what one job needs of a cluster, for ``doctor``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from kubernetes.client.exceptions import ApiException

from tpujob_client.answers import explained
from tpujob_client.client import Client
from tpujob_client.watching import REQUEST_TIMEOUT_S
from tpujob_operator.api.models import TPUTrainingJob
from tpujob_operator.api.status import Condition
from tpujob_operator.cli.jobchecks import Around, Queue
from tpujob_operator.cli.needs import needs_of
from tpujob_operator.cli.render import rendered
from tpujob_operator.core.kinds import WORKLOADS, Kind
from tpujob_operator.core.manifests.options import ManifestOptions

_MAY_NOT, _THERE_IS_NONE = (401, 403), 404
_NOTHING: Mapping[str, Any] = {}
CRD = Kind("apiextensions.k8s.io", "v1", "customresourcedefinitions", "CustomResourceDefinition")


def read_around(jobs: Client, job: TPUTrainingJob, told: Sequence[Condition] = ()) -> Around:
    """Everything that is looked at for a job.

    Args:
        jobs: gives access to the cluster.
        job: as it is, or as it would be submitted.
        told: its conditions.

    Raises:
        ClusterError: the API server does not answer.
    """
    objects = rendered(job, 1, ManifestOptions("", "tpujob-operator", "tpujob-trainer"))
    needs = needs_of(objects)
    namespace = jobs.namespace
    with explained(jobs.api_client, namespace):
        found = {need: get_object(jobs.api_client, need.path(namespace)) for need in needs}
        queue = _queue(jobs.api_client, namespace, job.spec.queue) if job.spec.queue else None
    return Around(
        job,
        needs,
        missing=[need for need, item in found.items() if item is not None and not item],
        unread=[need for need, item in found.items() if item is None],
        queue=queue,
        conditions=told,
    )


def _queue(api_client: Any, namespace: str, name: str) -> Queue:
    """The LocalQueue and what is behind it, in the version of Kueue's API that is served."""
    for kind in WORKLOADS:
        group = f"/{kind.group_path}"
        if get_object(api_client, group) == _NOTHING:
            continue
        local = get_object(api_client, f"{group}/namespaces/{namespace}/localqueues/{name}")
        if not local:
            return Queue(is_served=True, local=local)
        cluster = get_object(api_client, f"{group}/clusterqueues/{local['spec']['clusterQueue']}")
        return Queue(True, local, cluster, _flavors(api_client, group, cluster))
    return Queue(is_served=False)


def _flavors(
    api_client: Any, group: str, cluster_queue: Mapping[str, Any] | None
) -> Mapping[str, Mapping[str, Any]] | None:
    """Flavors of a ClusterQueue that exist; None: they may not be read."""
    if not cluster_queue:
        return None
    names = {*_flavor_names(cluster_queue)}
    found = {name: get_object(api_client, f"{group}/resourceflavors/{name}") for name in names}
    if None in found.values():
        return None
    return {name: flavor for name, flavor in found.items() if flavor}


def _flavor_names(cluster_queue: Mapping[str, Any]) -> Iterator[str]:
    for resources in cluster_queue["spec"].get("resourceGroups") or ():
        for flavor in resources["flavors"]:
            yield flavor["name"]


def get_object(api_client: Any, path: str, **query: str) -> Mapping[str, Any] | None:
    """An object or a list as the API has it; empty: there is none; None: it may not be read."""
    request = api_client.param_serialize(
        "GET", path, query_params=[*query.items()], auth_settings=["BearerToken"]
    )
    response = api_client.call_api(*request, _request_timeout=REQUEST_TIMEOUT_S)
    response.read()
    try:
        answer = api_client.response_deserialize(response, {"200": "object"})
    except ApiException as error:
        if error.status in _MAY_NOT:
            return None
        if error.status == _THERE_IS_NONE:
            return _NOTHING
        raise
    found: Mapping[str, Any] = answer.data
    return found
