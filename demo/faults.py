"""The faults that the demo makes, as an unlucky user would meet them."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from typing import Any

from demo.kube import Kube

_SLICE_LABEL = "jobset.sigs.k8s.io/job-index"
_HOST_LABEL = "batch.kubernetes.io/job-completion-index"
TRAINER = "trainer"
#: The agent keeps the process id of its trainer here.
_PID_FILE = "/tpujob/run/trainer.pid"


@dataclasses.dataclass(frozen=True, slots=True)
class Fault:
    """A fault to make once the job has reached a step."""

    title: str
    at_step: int
    make: Callable[[Kube, str], str]


@dataclasses.dataclass(frozen=True, slots=True)
class Made:
    """A fault that was made: when, and to what."""

    title: str
    at_ms: int
    target: str


def kill_trainer(kube: Kube, job: str) -> str:
    """SIGKILL the trainer process of the last host; its pod is not touched."""
    pod = _worker(kube, job, slice_index=1, host=1)
    kube.exec(pod, TRAINER, ["sh", "-c", f"kill -9 $(cat {_PID_FILE})"])
    return pod


def delete_pod(kube: Kube, job: str) -> str:
    """Delete the pod of a host of the other slice."""
    pod = _worker(kube, job, slice_index=0, host=1)
    kube.delete_pod(pod)
    return pod


def _worker(kube: Kube, job: str, *, slice_index: int, host: int) -> str:
    for pod in kube.pods(job, "worker"):
        if _place(pod) == (slice_index, host):
            return str(pod.metadata.name)
    raise LookupError(f"job {job} has no worker pod for slice {slice_index}, host {host}")


def _place(pod: Any) -> tuple[int, int]:
    labels = pod.metadata.labels
    return int(labels[_SLICE_LABEL]), int(labels[_HOST_LABEL])


def make(fault: Fault, kube: Kube, job: str) -> Made:
    """Make a fault now."""
    at_ms = time.time_ns() // 1_000_000
    return Made(fault.title, at_ms, fault.make(kube, job))
