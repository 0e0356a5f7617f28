"""Everything of a cluster that ``doctor`` looks at."""

from __future__ import annotations

import dataclasses
import datetime as dt
import email.utils
from collections.abc import Mapping
from typing import Any

from kubernetes import client

from tpujob_client.answers import explained
from tpujob_client.client import Client
from tpujob_client.watching import REQUEST_TIMEOUT_S
from tpujob_operator.api.base import GROUP, PLURAL
from tpujob_operator.cli.checks import Cluster, Node
from tpujob_operator.cli.jobreads import CRD, get_object
from tpujob_operator.core.kinds import JOB_SET, NODE, WORKLOADS, Kind
from tpujob_operator.core.nodes import NodeView
from tpujob_tpu.catalogue import ACCELERATOR_LABEL, RESOURCE

_DNS = "kubernetes.io/service-name=kube-dns"
_OPERATOR = "app.kubernetes.io/name=tpujob-operator"
#: What a user of jobs does: group, resource, verb.
_DEEDS = (
    (GROUP, PLURAL, "create"),
    (GROUP, PLURAL, "patch"),
    (GROUP, PLURAL, "list"),
    ("", "pods/log", "get"),
    ("", "events", "list"),
)
_DEPLOYMENT = Kind("apps", "v1", "deployments", "Deployment")
_ENDPOINTS = Kind("discovery.k8s.io", "v1", "endpointslices", "EndpointSlice")
_QUOTA = Kind("", "v1", "resourcequotas", "ResourceQuota")


def read(jobs: Client) -> Cluster:
    """Ask for all of it.

    Raises:
        ClusterError: the API server does not answer, or lets nobody in.
    """
    api_client, namespace = jobs.api_client, jobs.namespace
    with explained(api_client, namespace):
        version, skew_s = _version(api_client)
        nodes = _items(api_client, NODE.path(None), labelSelector=ACCELERATOR_LABEL)
        return Cluster(
            namespace=namespace,
            version=version,
            skew_s=skew_s,
            jobs_schema=_schema(api_client, f"{PLURAL}.{GROUP}"),
            jobset_schema=_schema(api_client, f"{JOB_SET.plural}.{JOB_SET.group}"),
            operators=_items(api_client, _DEPLOYMENT.path(None), labelSelector=_OPERATOR),
            nodes=None if nodes is None else [_node(node) for node in nodes],
            refused=_refused(api_client, namespace),
            queues=_queues(api_client, namespace),
            quotas=_items(api_client, _QUOTA.path(namespace)) or [],
            dns=_items(api_client, _ENDPOINTS.path("kube-system"), labelSelector=_DNS),
        )


def _version(api_client: Any) -> tuple[str, float]:
    """Version of the API server, and how far our clock is ahead of its."""
    versions: Any = client.VersionApi(api_client)
    told, _, headers = versions.get_code_with_http_info(_request_timeout=REQUEST_TIMEOUT_S)
    theirs = email.utils.parsedate_to_datetime(headers["Date"])
    return told.git_version, (dt.datetime.now(dt.UTC) - theirs).total_seconds()


def _items(api_client: Any, path: str, **query: str) -> list[dict[str, Any]] | None:
    """Objects of a list as the API has them; None: they may not be read."""
    found = get_object(api_client, path, **query)
    return None if found is None else list(found["items"])


def _schema(api_client: Any, name: str) -> dict[str, Any] | None:
    """Schema of the spec of a CRD's newest version; empty: there is none."""
    raw = get_object(api_client, CRD.path(None, name))
    if not raw:
        return None if raw is None else {}
    served = next(version for version in raw["spec"]["versions"] if version["storage"])
    schema: dict[str, Any] = served["schema"]["openAPIV3Schema"]["properties"]["spec"]
    return schema


def _node(raw: Mapping[str, Any]) -> Node:
    chips = raw.get("status", {}).get("allocatable", {}).get(RESOURCE, "0")
    return Node(NodeView.of(raw), int(chips))


def _refused(api_client: Any, namespace: str) -> list[str]:
    reviews: Any = client.AuthorizationV1Api(api_client)
    refused = []
    for group, resource, verb in _DEEDS:
        kind, _, subresource = resource.partition("/")
        asked = {"namespace": namespace, "group": group, "resource": kind, "verb": verb}
        asked |= {"subresource": subresource} if subresource else {}
        body = {"spec": {"resourceAttributes": asked}}
        told = reviews.create_self_subject_access_review(body, _request_timeout=REQUEST_TIMEOUT_S)
        if not told.status.allowed:
            refused.append(f"{verb} {resource}")
    return refused


def _queues(api_client: Any, namespace: str) -> list[str] | None:
    for kind in WORKLOADS:
        local = dataclasses.replace(kind, plural="localqueues")
        if found := get_object(api_client, local.path(namespace)):
            return [item["metadata"]["name"] for item in found["items"]]
    return None
