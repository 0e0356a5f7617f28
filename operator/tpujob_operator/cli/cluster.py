"""The cluster as the command line sees it: with the kubeconfig of its user."""

from __future__ import annotations

from typing import Any

import urllib3
from kubernetes import client, config
from kubernetes.client.exceptions import ApiException
from kubernetes.config.config_exception import ConfigException

from tpujob_operator.api.base import GROUP, PLURAL, VERSION


class ClusterError(Exception):
    """The cluster cannot give what was asked for; the message says what to do."""


def read_job(name: str, namespace: str | None, kubeconfig: str | None) -> dict[str, Any]:
    """One job; without a namespace, that of the kubeconfig's context.

    Raises:
        ClusterError: no cluster, no right, or no such job.
    """
    loaders: Any = config  # has no types
    try:
        api_client = loaders.new_client_from_config(config_file=kubeconfig)
        namespace = namespace or _own_namespace(kubeconfig)
    except ConfigException as error:
        raise ClusterError(
            f"no usable kubeconfig: {error}; give --kubeconfig or set KUBECONFIG"
        ) from error
    try:
        objects: Any = client.CustomObjectsApi(api_client)
        job: dict[str, Any] = objects.get_namespaced_custom_object(
            GROUP, VERSION, namespace, PLURAL, name
        )
    except ApiException as error:
        raise ClusterError(_explain(error, namespace, name)) from error
    except urllib3.exceptions.HTTPError as error:
        host = api_client.configuration.host
        raise ClusterError(f"{host} does not answer: is the cluster up? ({error})") from error
    return job


def _own_namespace(kubeconfig: str | None) -> str:
    loaders: Any = config
    _, active = loaders.list_kube_config_contexts(config_file=kubeconfig)
    return str(active["context"].get("namespace") or "default")


def _explain(error: ApiException, namespace: str, name: str) -> str:
    if error.status == 404:
        return (
            f"there is no TPUTrainingJob {name} in namespace {namespace}: "
            "kubectl get tpujob -A lists all; name another namespace with -n"
        )
    if error.status in (401, 403):
        return (
            f"you may not read TPUTrainingJobs in namespace {namespace} ({error.reason}): "
            "ask for the role view there"
        )
    return f"the API server answers {error.status} {error.reason}"
