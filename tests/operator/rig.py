"""The real operator process against a real API server, and what a kubelet would do there."""

from __future__ import annotations

import contextlib
import functools
import os
import re
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from http import HTTPStatus
from pathlib import Path
from typing import Any

from localcluster.cluster import Cluster
from localcluster.kubeapi import ApiError, Object
from tests.namespaced import Namespaced
from tests.specs import TWO_SLICES
from tests.waiting import PATIENCE_S, wait_until
from tpujob_agent.processes import die_with_parent
from tpujob_operator.core.kinds import EVENT, JOB, JOB_SET, POD, TPU_TRAINING_JOB, Kind
from tpujob_operator.core.manifests import names, secret

ROOT = Path(__file__).parents[2]
NODE = "node0"
OPERATOR_KEY = "a key that is only used in tests"
#: The chart's limit for the operator.
MEMORY_BYTES = 512 << 20


class OperatorProcess:
    """``python -m tpujob_operator`` for some namespaces, its log in a file."""

    def __init__(
        self, cluster: Cluster, folder: Path, *namespaces: str, env: dict[str, str] | None = None
    ) -> None:
        number = len(list(folder.glob("operator-*.log")))
        self.log = folder / f"operator-{number}.log"
        variables = {
            **{name: value for name, value in os.environ.items() if "TPUJOB" not in name},
            "PYTHONPATH": f"{ROOT / 'operator'}:{ROOT / 'trainer'}",
            "KUBECONFIG": str(cluster.kubeconfig),
            "TPUJOB_OPERATOR_KEY": OPERATOR_KEY,
            "TPUJOB_OPERATOR_IMAGE": "registry.test/operator:1",
            "TPUJOB_TRAINER_IMAGE": "registry.test/trainer:1",
            "TPUJOB_WATCH_NAMESPACES": ",".join(namespaces),
            "TPUJOB_METRICS_PORT": "0",
            "TPUJOB_PROBE_PORT": "0",
            **(env or {}),
        }
        with self.log.open("ab") as sink:
            self.popen = subprocess.Popen(
                [sys.executable, "-m", "tpujob_operator"],
                env=variables,
                stdout=sink,
                stderr=subprocess.STDOUT,
                preexec_fn=functools.partial(die_with_parent, os.getpid()),  # noqa: PLW1509 - no threads yet
            )

    @property
    def text(self) -> str:
        """The log so far."""
        return self.log.read_text()

    @property
    def life(self) -> str:
        """Its log until it was told to stop: Kopf's watches may end with a traceback."""
        return self.text.partition("the operator stops")[0]

    @property
    def peak_memory_bytes(self) -> int:
        """The most memory that it has ever held."""
        lines = Path(f"/proc/{self.popen.pid}/status").read_text().splitlines()
        peak = next(line for line in lines if line.startswith("VmHWM:"))
        return int(peak.split()[1]) << 10

    def wait_ready(self) -> None:
        """Wait until it watches."""

        def is_ready() -> bool:
            if self.popen.poll() is not None:
                raise AssertionError(f"the operator ended:\n{self.text}")
            return "the operator is ready" in self.text

        wait_until(is_ready, "ready operator")

    def get(self, server: str, path: str) -> str:
        """GET from one of its servers: ``probes`` or ``metrics``."""
        found = wait_until(lambda: re.findall(rf"{server} on port (\d+)", self.text), server)
        with urllib.request.urlopen(
            f"http://127.0.0.1:{found[-1]}{path}", timeout=PATIENCE_S
        ) as answer:
            return str(answer.read().decode())

    def kill(self) -> None:
        """End it as a power cut would."""
        self.popen.kill()
        self.popen.wait(PATIENCE_S)

    def stop(self) -> int:
        """End it as Kubernetes would; returns the exit code."""
        self.popen.send_signal(signal.SIGTERM)
        return self.popen.wait(PATIENCE_S)


@contextlib.contextmanager
def started(
    cluster: Cluster, folder: Path, *namespaces: str, env: dict[str, str] | None = None
) -> Iterator[OperatorProcess]:
    """An operator that may become ready or not, and is gone afterwards."""
    operator = OperatorProcess(cluster, folder, *namespaces, env=env)
    try:
        yield operator
    finally:
        if operator.popen.poll() is None:
            operator.kill()


@contextlib.contextmanager
def running(
    cluster: Cluster, folder: Path, *namespaces: str, env: dict[str, str] | None = None
) -> Iterator[OperatorProcess]:
    """An operator that is ready, and gone afterwards."""
    with started(cluster, folder, *namespaces, env=env) as operator:
        operator.wait_ready()
        yield operator


class Jobs(Namespaced):
    """One namespace as a test sees it."""

    def __init__(self, cluster: Cluster, namespace: str) -> None:
        super().__init__(cluster.api, namespace)
        self.cluster = cluster

    # ---- what a user does

    def create(self, name: str, **spec: Any) -> Object:
        """Create a job of two single-host slices."""
        body: Object = {
            "apiVersion": TPU_TRAINING_JOB.api_version,
            "kind": TPU_TRAINING_JOB.kind,
            "metadata": {"name": name, "namespace": self.namespace},
            "spec": {**TWO_SLICES, **spec},
        }
        return self.submit(body)

    # ---- what there is

    def service_of(self, job: str) -> str:
        """Name of the Service of a job's coordinator."""
        return names.coordinator_service(job, self.wait(TPU_TRAINING_JOB, job)["metadata"]["uid"])

    def secret_of(self, job: str, operator_key: str = OPERATOR_KEY) -> str:
        """Name of a job's Secret, as an operator with this key makes it."""
        uid = self.wait(TPU_TRAINING_JOB, job)["metadata"]["uid"]
        return names.token_secret(job, uid, secret.key_id(operator_key))

    def wait(self, kind: Kind, name: str) -> Object:
        """Wait until an object exists."""
        return wait_until(lambda: self.find(kind, name), f"{kind.kind} {name}")

    def wait_gone(self, kind: Kind, name: str, uid: str = "") -> None:
        """Wait until an object, or this incarnation of it, is gone."""

        def is_gone() -> bool:
            found = self.find(kind, name)
            return found is None or bool(uid and found["metadata"]["uid"] != uid)

        wait_until(is_gone, f"end of {kind.kind} {name}")

    def wait_pods(self, job: str, number: int) -> list[Object]:
        """Wait until a job has so many pods that are not being deleted."""

        def pods() -> list[Object] | None:
            alive = [pod for pod in self.all(POD, job) if is_alive(pod)]
            return alive if len(alive) == number else None

        return wait_until(pods, f"{number} pods of {job}")

    def wait_condition(
        self, name: str, kind: str, reason: str = "", status: str = "True", *, says: str = ""
    ) -> str:
        """Wait for a condition whose message has these words; returns the message."""

        def message() -> str | None:
            found = self.condition(name, kind)
            fits = found.get("status") == status and reason in ("", found.get("reason"))
            words = str(found.get("message", ""))
            return words or "-" if fits and says in words else None

        try:
            return wait_until(message, f"{kind}={status} {reason} of {name} with '{says}'")
        except AssertionError as error:
            raise AssertionError(f"{error}: {self.status(name)}") from error

    def wait_status(self, name: str, is_so: Callable[[Object], bool], what: str) -> Object:
        """Wait for a status."""

        def status() -> Object | None:
            found = self.status(name)
            return found if is_so(found) else None

        return wait_until(status, what)

    def events(self, name: str) -> list[str]:
        """Reasons of a job's events, in the order of their time."""
        found = [item for item in self.all(EVENT) if item["involvedObject"]["name"] == name]
        found = [item for item in found if item["involvedObject"]["kind"] == "TPUTrainingJob"]
        return [item["reason"] for item in sorted(found, key=lambda e: e["metadata"]["name"])]

    def wait_event(self, name: str, reason: str) -> None:
        """Wait for an event of a job; it comes after the actions it tells of."""
        wait_until(lambda: reason in self.events(name), f"event {reason} of {name}")

    # ---- what a kubelet and JobSet do

    def run_pods(self, job: str, number: int) -> list[Object]:
        """Bind a job's pods to nodes, and let them run."""
        return [self.run_pod(pod) for pod in self.wait_pods(job, number)]

    def run_pod(self, pod: Object, node: str = NODE) -> Object:
        """Bind a pod and report it as running and ready."""
        name = pod["metadata"]["name"]
        path = POD.path(self.namespace, name)
        if not pod["spec"].get("nodeName"):
            target = {"apiVersion": "v1", "kind": "Node", "name": node}
            binding = {
                "apiVersion": "v1",
                "kind": "Binding",
                "metadata": {"name": name},
                "target": target,
            }
            self.api.request("POST", f"{path}/binding", binding)
        ready = [{"type": kind, "status": "True"} for kind in ("PodScheduled", "Ready")]
        return self.set_pod(name, {"phase": "Running", "conditions": ready})

    def set_pod(self, name: str, status: Object) -> Object:
        """Report a pod's status."""
        return self.api.merge(POD.path(self.namespace, name, "status"), {"status": status})

    def end_pods(self, job: str) -> None:
        """Wait until all pods of a job are being deleted, and end them."""
        wait_until(lambda: not any(map(is_alive, self.all(POD, job))), f"no pods of {job}")
        for pod in self.all(POD, job):
            self.remove_pod(pod["metadata"]["name"])

    def evict(self, pod: Object) -> None:
        """Delete a pod as the taint manager does with those of a node that is not ready."""
        name = pod["metadata"]["name"]
        reason = {"type": "DisruptionTarget", "status": "True", "reason": "DeletionByTaintManager"}
        self.set_pod(name, {"conditions": [reason]})
        self.delete(POD, name)

    def remove_pod(self, name: str) -> None:
        """Delete a pod as a kubelet does at the end of the grace period."""
        try:
            self.delete(POD, name, gracePeriodSeconds=0)
        except ApiError as error:  # one that is over goes at once, without its kubelet
            if error.status != HTTPStatus.NOT_FOUND:
                raise


def is_alive(pod: Object) -> bool:
    """Whether a pod is neither over nor being deleted."""
    phase = pod.get("status", {}).get("phase")
    return not pod["metadata"].get("deletionTimestamp") and phase not in ("Failed", "Succeeded")


CHILDREN = (JOB_SET, JOB, POD)
