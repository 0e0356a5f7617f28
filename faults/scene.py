"""Where a fault is made: a running job, and the machines below it where they are ours."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

from demo.kube import Kube
from localcluster.cluster import Cluster

TRAINER = "trainer"
_SLICE_LABEL = "jobset.sigs.k8s.io/job-index"
_HOST_LABEL = "batch.kubernetes.io/job-completion-index"
#: The agent keeps the process id of its trainer here.
_PID_FILE = "/tpujob/run/trainer.pid"


class Place(NamedTuple):
    """A host of a slice; the first host of the first slice leads the world."""

    slice: int
    host: int


LEADER = Place(0, 0)


class OutOfReachError(RuntimeError):
    """A fault needs the machines below Kubernetes, and this cluster's are not ours."""


@dataclasses.dataclass(frozen=True, slots=True)
class Scene:
    """A running job."""

    kube: Kube
    job: str
    machines: Cluster | None = None  # None: only the API can be reached

    @property
    def cluster(self) -> Cluster:
        """The machines.

        Raises:
            OutOfReachError: they are not ours.
        """
        if self.machines is None:
            raise OutOfReachError("this fault is made below Kubernetes: use CLUSTER=local")
        return self.machines

    def pod(self, place: Place) -> Any:
        """The pod of a place.

        Raises:
            LookupError: there is none, or it is going away.
        """
        for pod in self.kube.pods(self.job, "worker"):
            if place_of(pod) == place:
                return pod
        raise LookupError(f"job {self.job} has no worker pod for {place}")

    def shell(self, place: Place, script: str) -> str:
        """Output of a script in the container that trains."""
        return self.kube.exec(self.pod(place).metadata.name, TRAINER, ["sh", "-c", script])

    def signal_trainer(self, place: Place, name: str) -> None:
        """Send a signal to the process that trains; its agent is not touched."""
        self.shell(place, f"kill -{name} $(cat {_PID_FILE})")

    def trainer_pid(self, place: Place) -> int:
        """Process id of the trainer in its container; 0: there is none."""
        return int(self.shell(place, f"cat {_PID_FILE} 2>/dev/null || echo 0") or 0)


def place_of(pod: Any) -> Place:
    """The place of a worker's pod."""
    labels = pod.metadata.labels
    return Place(int(labels[_SLICE_LABEL]), int(labels[_HOST_LABEL]))
