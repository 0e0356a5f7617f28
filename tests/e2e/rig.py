"""One namespace of a cluster with real nodes, as its user and as a fault would see it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kubernetes.client.exceptions import ApiException

from demo.clusters import Target
from demo.kube import Kube
from faults import evidence, judgement
from faults import jobs as made
from faults.scene import Scene
from faults.training import TRAINING
from localcluster.cluster import Cluster
from localcluster.kubeapi import Object
from tests.e2e.access import Access
from tests.namespaced import Namespaced
from tests.waiting import wait_until
from tpujob_operator.core.kinds import EVENT, JOB_SET, POD, TPU_TRAINING_JOB, Kind

#: Under load a container may take seconds to start, and an image to be unpacked.
START_S = 180.0
RECOVER_S = 120.0
ENDED = ("Succeeded", "Failed")
_CONFIG_MAP = Kind("", "v1", "configmaps", "ConfigMap")


class Jobs(Namespaced):
    """The jobs of one namespace."""

    def __init__(self, target: Target, cluster: Cluster | None, namespace: str) -> None:
        self.target = target
        self.cluster = cluster
        self.kube = Kube(target.kubeconfig, namespace)
        super().__init__(Access(self.kube.core.api_client), namespace)

    # ---- what a user does

    def template(self, *command: str, image: str = "", steps: int = 1_000_000) -> Object:
        """Pod template of a program of one's own; by default in an image that has Python."""
        folder = self.namespace
        return made.pod_template(self.target, folder, *command, image=image, steps=steps)

    def template_of_files(self, files: dict[str, str], *command: str, image: str = "") -> Object:
        """The same with the program's files in ``/program``; once in a namespace."""
        config_map = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "program"}}
        self.api.request("POST", _CONFIG_MAP.path(self.namespace), config_map | {"data": files})
        template = self.template(*command, image=image)
        pod = template["spec"]
        pod["volumes"].append({"name": "program", "configMap": {"name": "program"}})
        mount = {"name": "program", "mountPath": "/program"}
        pod["containers"][0]["volumeMounts"].append(mount)
        return template

    def manifest(self, name: str, template: Object | None = None, **spec: Any) -> Object:
        """A job of one slice of two hosts."""
        return made.manifest(self.namespace, name, template, **spec)

    def create(self, name: str, template: Object | None = None, **spec: Any) -> Object:
        """Create a job.

        Raises:
            ApiError: the API server refuses it.
        """
        return self.submit(self.manifest(name, template, **spec))

    def train(self, name: str, *, steps: int = 1_000_000, **spec: Any) -> Object:
        """Create a job that runs TRAINING."""
        return self.create(name, self.template("python", "-c", TRAINING, steps=steps), **spec)

    # ---- what there is

    def scene(self, job: str) -> Scene:
        """A job as a fault meets it."""
        return Scene(self.kube, job, self.cluster)

    def pods(self, job: str, role: str = "worker") -> dict[str, Object]:
        """Pods of a job that are not being deleted, by their name without its random end."""
        return {
            pod["metadata"]["name"].rpartition("-")[0]: pod
            for pod in self.all(POD, job)
            if pod["metadata"]["labels"].get("tpujob.dev/role") == role
            and not pod["metadata"].get("deletionTimestamp")
        }

    def events(self, job: str) -> set[str]:
        """Reasons of a job's events."""
        return {
            item["reason"]
            for item in self.all(EVENT)
            if item["involvedObject"]["name"] == job
            and item["involvedObject"]["kind"] == TPU_TRAINING_JOB.kind
        }

    def jobsets(self, job: str) -> list[str]:
        """Names of a job's JobSets."""
        return [item["metadata"]["name"] for item in self.all(JOB_SET, job)]

    def losses(self, job: str) -> dict[int, float]:
        """Losses by step, as the coordinator has them now."""
        return evidence.losses(self.scene(job))

    def story(self, job: str) -> str:
        """What an engineer would look at, for the message of a failed test."""
        parts = [f"status: {self.status(job)}"]
        for role in ("coordinator", "worker"):
            for name, pod in self.pods(job, role).items():
                statuses = pod.get("status", {}).get("containerStatuses", [])
                parts.append(f"--- {name}: {[status['state'] for status in statuses]}")
                parts.append(self.log(pod)[-2500:])
        return "\n".join(parts)

    def log(self, pod: Object) -> str:
        """Log of a pod's main container; empty while there is none."""
        try:
            return str(
                self.kube.core.read_namespaced_pod_log(
                    pod["metadata"]["name"],
                    self.namespace,
                    container=pod["spec"]["containers"][0]["name"],
                )
            )
        except ApiException:
            return ""

    # ---- waiting

    def wait_status(
        self, job: str, is_so: Callable[[Object], bool], what: str, limit_s: float = RECOVER_S
    ) -> Object:
        """Wait for a status; the failure's message tells the job's story."""

        def found() -> Object | None:
            status = self.status(job)
            return status if status and is_so(status) else None

        try:
            return wait_until(found, what, limit_s)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.story(job)}") from error

    def wait_step(self, job: str, step: int, limit_s: float = START_S) -> Object:
        """Wait until a step has been finished."""
        return self.wait_status(
            job, lambda status: (status.get("step") or 0) >= step, f"step {step} of {job}", limit_s
        )

    def wait_state(self, job: str, *states: str, limit_s: float = START_S) -> Object:
        """Wait for one of some states."""
        return self.wait_status(
            job, lambda status: status.get("state") in states, f"{job} is {states}", limit_s
        )

    def wait_recovered(self, job: str, incidents: int = 1) -> Object:
        """Wait until so many incidents have been recovered from."""

        def has_recovered(status: Object) -> bool:
            done = [one for one in status["incidents"] if "recoveredAfterSeconds" in one]
            return len(done) >= incidents

        return self.wait_status(job, has_recovered, f"{job} has recovered from {incidents}")

    def wait_condition(
        self, job: str, kind: str, reason: str, status: str = "True", limit_s: float = START_S
    ) -> str:
        """Wait for a condition; returns its message."""

        def holds(_: Object) -> bool:
            found = self.condition(job, kind)
            return (found.get("status"), found.get("reason")) == (status, reason)

        self.wait_status(job, holds, f"{kind}={status} ({reason}) of {job}", limit_s)
        return str(self.condition(job, kind)["message"])

    def wait_gone(self, kind: Kind, job: str, limit_s: float = RECOVER_S) -> None:
        """Wait until a job has no object of this kind left."""
        wait_until(lambda: not self.all(kind, job), f"no {kind.plural} of {job} are left", limit_s)


def uids(pods: dict[str, Object]) -> dict[str, str]:
    """UIDs of pods by name: the same pods have the same."""
    return {name: pod["metadata"]["uid"] for name, pod in pods.items()}


def container_restarts(pods: dict[str, Object]) -> int:
    """How often containers of these pods were restarted."""
    return sum(pod["status"]["containerStatuses"][0]["restartCount"] for pod in pods.values())


def assert_adds_up(status: Object) -> None:
    """All types of time, and what is not settled, make the wall time, to the millisecond."""
    assert judgement.adds_up(status), status["goodput"]
