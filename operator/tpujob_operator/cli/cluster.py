"""The cluster as the command line sees it: with the kubeconfig of its user."""

from __future__ import annotations

import argparse
import contextlib
import json
from collections.abc import Iterator, Mapping
from typing import Any, Self

import urllib3
from kubernetes import client, config
from kubernetes.client.exceptions import ApiException
from kubernetes.config.config_exception import ConfigException

from tpujob_operator.api.base import GROUP, KIND, PLURAL, VERSION

_TIMEOUT_S = 30


class ClusterError(Exception):
    """The cluster cannot give what was asked for; the message says what to do."""


def add_access(parser: argparse.ArgumentParser) -> None:
    """Arguments that say which cluster and namespace are meant."""
    parser.add_argument("-n", "--namespace", help="default: the kubeconfig's")
    parser.add_argument("--kubeconfig", metavar="FILE", help="default: as kubectl has it")


class Jobs:
    """The jobs of one namespace."""

    def __init__(self, api_client: Any, namespace: str) -> None:
        self.namespace = namespace
        self.api_client = api_client
        self._objects: Any = client.CustomObjectsApi(api_client)  # has no types
        self._where = (GROUP, VERSION, namespace, PLURAL)

    @classmethod
    def of(cls, given: argparse.Namespace, namespace: str | None = None) -> Self:
        """The jobs that the arguments of ``add_access`` mean, or those of another namespace.

        Raises:
            ClusterError: there is no usable kubeconfig.
        """
        loaders: Any = config
        try:
            api_client = loaders.new_client_from_config(config_file=given.kubeconfig)
            where = namespace or given.namespace or _own_namespace(given.kubeconfig)
            return cls(api_client, where)
        except ConfigException as error:
            raise ClusterError(
                f"no usable kubeconfig: {error}; give --kubeconfig or set KUBECONFIG"
            ) from error

    def get(self, name: str) -> dict[str, Any]:
        """One job.

        Raises:
            ClusterError: as from all that follow: no cluster, no right, or no such job.
        """
        with self.explained(name, "read"):
            job: dict[str, Any] = self._objects.get_namespaced_custom_object(
                *self._where, name, _request_timeout=_TIMEOUT_S
            )
        return job

    def all(self, *, everywhere: bool = False) -> list[dict[str, Any]]:
        """All jobs of the namespace, or of the cluster."""
        with self.explained("", "read"):
            if everywhere:
                found = self._objects.list_cluster_custom_object(
                    GROUP, VERSION, PLURAL, _request_timeout=_TIMEOUT_S
                )
            else:
                found = self._objects.list_namespaced_custom_object(
                    *self._where, _request_timeout=_TIMEOUT_S
                )
        return list(found["items"])

    def create(self, raw: Mapping[str, Any]) -> dict[str, Any]:
        """Create a job in the namespace."""
        with self.explained(raw["metadata"]["name"], "create"):
            made: dict[str, Any] = self._objects.create_namespaced_custom_object(
                *self._where, raw, _request_timeout=_TIMEOUT_S
            )
        return made

    def change(self, name: str, spec: Mapping[str, Any]) -> dict[str, Any]:
        """Merge into a job's spec."""
        with self.explained(name, "change"):
            changed: dict[str, Any] = self._objects.patch_namespaced_custom_object(
                *self._where, name, {"spec": dict(spec)}, _request_timeout=_TIMEOUT_S
            )
        return changed

    def events(self, name: str) -> list[dict[str, Any]]:
        """A job's events, oldest first."""
        core: Any = client.CoreV1Api(self.api_client)
        with self.explained(name, "read events of"):
            found = core.list_namespaced_event(
                self.namespace,
                field_selector=f"involvedObject.kind={KIND},involvedObject.name={name}",
                _request_timeout=_TIMEOUT_S,
            )
        events = self.api_client.sanitize_for_serialization(found)["items"]
        return sorted(events, key=_at)

    @contextlib.contextmanager
    def explained(self, name: str, verb: str) -> Iterator[None]:
        """Errors of the API server in words that say what to do."""
        try:
            yield
        except ApiException as error:
            raise ClusterError(self._words(error, name, verb)) from error
        except urllib3.exceptions.HTTPError as error:
            host = self.api_client.configuration.host
            raise ClusterError(f"{host} does not answer: is the cluster up? ({error})") from error

    def _words(self, error: ApiException, name: str, verb: str) -> str:
        if error.status == 404 and name:
            return (
                f"there is no {KIND} {name} in namespace {self.namespace}: "
                "kubectl tpujob list -A lists all; name another namespace with -n"
            )
        if error.status == 404:
            return f"the cluster knows no {KIND}: install the operator's chart"
        if error.status in (401, 403):
            role = "view" if verb.startswith("read") else "edit"
            return (
                f"you may not {verb} {KIND}s in namespace {self.namespace} ({error.reason}): "
                f"ask for the role {role} there"
            )
        if error.status == 409:
            return (
                f"there is a {KIND} {name} in namespace {self.namespace} already: "
                "choose another name, or delete it first"
            )
        return f"the API server answers {error.status} {error.reason}: {_message(error)}"


def _own_namespace(kubeconfig: str | None) -> str:
    loaders: Any = config
    _, active = loaders.list_kube_config_contexts(config_file=kubeconfig)
    return str(active["context"].get("namespace") or "default")


def _message(error: ApiException) -> str:
    body: Any = error.body
    with contextlib.suppress(ValueError, TypeError, AttributeError):
        return str(json.loads(body)["message"])
    return str(body)


def _at(event: Mapping[str, Any]) -> str:
    return str(event.get("lastTimestamp") or event.get("eventTime") or "")
