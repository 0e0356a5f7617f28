"""The few calls to Kubernetes that the demo makes, as a user with a kubeconfig."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kubernetes import client, config, stream
from kubernetes.client.exceptions import ApiException

_GONE_S = 120.0
_POLL_S = 0.25
GROUP, VERSION, PLURAL = "tpujob.dev", "v1alpha1", "tputrainingjobs"


class Kube:
    """A namespace of one cluster."""

    def __init__(self, kubeconfig: Path | None, namespace: str) -> None:
        self.namespace = namespace
        self._kubeconfig = str(kubeconfig) if kubeconfig else None
        self.core = self._core()
        self._custom: Any = client.CustomObjectsApi(self.core.api_client)

    def _core(self) -> Any:
        load: Any = config.new_client_from_config
        return client.CoreV1Api(load(config_file=self._kubeconfig))

    def ensure_namespace(self) -> None:
        """Make the namespace unless it is there."""
        with _ignoring(409):
            self.core.create_namespace({"metadata": {"name": self.namespace}})

    def delete_namespace(self) -> None:
        """Begin to remove the namespace and all in it."""
        with _ignoring(404):
            self.core.delete_namespace(self.namespace)

    def create_job(self, manifest: dict[str, Any]) -> None:
        """Create a job of which no namesake exists."""
        self._custom.create_namespaced_custom_object(
            GROUP, VERSION, self.namespace, PLURAL, manifest
        )

    def delete_job(self, name: str) -> None:
        """Remove a job, and wait until it is gone with its children.

        Raises:
            TimeoutError: it is still there after two minutes.
        """
        with _ignoring(404):
            self._custom.delete_namespaced_custom_object(
                GROUP, VERSION, self.namespace, PLURAL, name, propagation_policy="Foreground"
            )
        deadline = time.monotonic() + _GONE_S
        while self.job(name):
            if time.monotonic() > deadline:
                raise TimeoutError(f"job {name} is still there {_GONE_S:.0f} s after its deletion")
            time.sleep(_POLL_S)

    def job(self, name: str) -> dict[str, Any]:
        """The job as it is now; empty if there is none."""
        try:
            found: dict[str, Any] = self._custom.get_namespaced_custom_object(
                GROUP, VERSION, self.namespace, PLURAL, name
            )
        except ApiException as error:
            if error.status == 404:
                return {}
            raise
        return found

    def pods(self, job: str, role: str) -> list[Any]:
        """Pods of a job that are not going away, ``role`` being coordinator or worker."""
        selector = f"tpujob.dev/job={job},tpujob.dev/role={role}"
        found = self.core.list_namespaced_pod(self.namespace, label_selector=selector).items
        return [pod for pod in found if pod.metadata.deletion_timestamp is None]

    def follow_log(self, pod: str, container: str) -> Iterator[str]:
        """Lines of a container's log from its beginning, until the container ends."""
        response = self.core.read_namespaced_pod_log(
            pod, self.namespace, container=container, follow=True, _preload_content=False
        )
        with contextlib.closing(response):
            rest = b""
            for chunk in response.stream():
                *lines, rest = (rest + chunk).split(b"\n")
                for line in lines:
                    yield line.decode(errors="replace")

    def exec(self, pod: str, container: str, command: list[str]) -> str:
        """Output of a command in a container."""
        # the call turns its client's connections into web sockets: it gets one of its own
        web_socket = stream.stream(
            self._core().connect_get_namespaced_pod_exec,
            pod,
            self.namespace,
            container=container,
            command=command,
            stderr=True,
            stdin=False,
            stdout=True,
            tty=False,
            _preload_content=False,
        )
        try:
            web_socket.run_forever()
            return str(web_socket.read_all())
        finally:
            # its close() leaves the socket open once the other side has closed the stream
            web_socket.sock.shutdown()

    def delete_pod(self, name: str) -> None:
        """Delete a pod as ``kubectl delete pod`` does."""
        self.core.delete_namespaced_pod(name, self.namespace)


@contextlib.contextmanager
def _ignoring(status: int) -> Iterator[None]:
    try:
        yield
    except ApiException as error:
        if error.status != status:
            raise
