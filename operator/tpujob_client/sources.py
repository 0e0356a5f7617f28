"""Which containers' logs are meant: judged from pods as the API server has them, purely."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from tpujob_agent.events import Event, EventKind
from tpujob_client.errors import NoLogsError
from tpujob_operator.api.podtemplate import find_trainer
from tpujob_operator.core.manifests.names import (
    ATTEMPT_LABEL,
    HOST_INDEX_ANNOTATION,
    JOB_LABEL,
    ROLE_COORDINATOR,
    ROLE_LABEL,
    ROLE_WORKER,
    SLICE_INDEX_LABEL,
)

Place = tuple[int, int]  # slice, host


@dataclasses.dataclass(frozen=True, slots=True)
class Wanted:
    """Whose logs are wanted: those of all workers, unless something narrows it down."""

    job: str
    attempt: int | None = None
    place: Place | None = None
    coordinator: bool = False

    @property
    def selector(self) -> str:
        """Label selector of the pods."""
        role = ROLE_COORDINATOR if self.coordinator else ROLE_WORKER
        parts = [f"{JOB_LABEL}={self.job}", f"{ROLE_LABEL}={role}"]
        parts += [] if self.attempt is None else [f"{ATTEMPT_LABEL}={self.attempt}"]
        return ",".join(parts)


@dataclasses.dataclass(frozen=True, slots=True, order=True)
class Source:
    """One run of a container."""

    place: Place
    pod: str
    uid: str
    container: str
    restarts: int
    started: bool  # has a log
    restarted: bool  # has one of the run before

    @property
    def worker(self) -> str:
        """How its lines are marked, and what ``--worker`` takes: ``slice/host``."""
        return "{}/{}".format(*self.place)


def sources(pods: Iterable[Mapping[str, Any]], wanted: Wanted) -> list[Source]:
    """The containers that are meant, in the order of their places."""
    found = [_source(pod) for pod in pods]
    return sorted(one for one in found if wanted.place in (None, one.place))


def _source(pod: Mapping[str, Any]) -> Source:
    meta, container = pod["metadata"], _container(pod)
    statuses = pod.get("status", {}).get("containerStatuses") or []
    status: Mapping[str, Any] = next((one for one in statuses if one["name"] == container), {})
    state, last = status.get("state") or {}, status.get("lastState") or {}
    slice_index = int(meta["labels"].get(SLICE_INDEX_LABEL, 0))
    host = int((meta.get("annotations") or {}).get(HOST_INDEX_ANNOTATION, 0))
    return Source(
        place=(slice_index, host),
        pod=meta["name"],
        uid=meta["uid"],
        container=container,
        restarts=int(status.get("restartCount", 0)),
        started="running" in state or "terminated" in state,
        restarted="terminated" in last,
    )


def _container(pod: Mapping[str, Any]) -> str:
    containers = pod["spec"]["containers"]
    is_worker = pod["metadata"]["labels"].get(ROLE_LABEL) == ROLE_WORKER
    return str((find_trainer(containers) if is_worker else containers[0])["name"])


def place_of(worker: str) -> Place:
    """A place as it is written: ``slice/host``.

    Raises:
        ValueError: it is written in another way.
    """
    parts = worker.split("/")
    if len(parts) != 2 or not all(part.isdecimal() for part in parts):
        raise ValueError(f"{worker} is no worker: give slice/host, such as 0/1")
    return int(parts[0]), int(parts[1])


def place_of_rank(lines: Iterable[str], rank: int) -> Place:
    """Where a process of the newest world runs, by the coordinator's log.

    Args:
        lines: of the log: the timeline's events among others.
        rank: process id in JAX's sense.

    Raises:
        NoLogsError: there is no world yet, or it is smaller.
    """
    worlds = [event.data for event in _events(lines) if event.kind is EventKind.GENERATION_STARTED]
    if not worlds:
        raise NoLogsError(
            f"nobody has rank {rank} yet: the workers have not been started together; "
            "kubectl tpujob status says what is waited for"
        )
    slices, processes = worlds[-1]["slices"], int(worlds[-1]["hosts"])
    if not 0 <= rank < processes:
        raise NoLogsError(f"there is no rank {rank}: there are 0 to {processes - 1}")
    hosts = processes // len(slices)
    return int(slices[rank // hosts]), rank % hosts


def _events(lines: Iterable[str]) -> Iterator[Event]:
    for line in lines:
        with contextlib.suppress(ValueError):
            raw = json.loads(line)
            if isinstance(raw, dict):
                yield Event.from_json(raw)
