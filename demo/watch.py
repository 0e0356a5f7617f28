"""Watches a job: its status from the API, its timeline and losses from the coordinator's log."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from typing import Any

from kubernetes.client.exceptions import ApiException
from urllib3.exceptions import HTTPError

from demo.kube import Kube
from tpujob_agent.protocol import Event, EventKind, ProtocolError

_POLL_S = 0.25
_ENDED = ("Succeeded", "Failed")


class Watch:
    """What is known of a job so far; two threads keep it current until ``stop``."""

    def __init__(self, kube: Kube, name: str) -> None:
        self._kube = kube
        self._name = name
        self._stopped = threading.Event()
        self._changed = threading.Condition()
        self._read: set[tuple[str, int]] = set()  # (coordinator container, seq)
        self.job: dict[str, Any] = {}
        self.events: list[Event] = []
        self.losses: dict[int, float] = {}
        self._threads = [
            threading.Thread(target=target, daemon=True, name=f"watch-{target.__name__}")
            for target in (self._poll_job, self._follow_coordinator)
        ]

    def start(self) -> None:
        """Begin to watch."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Read what is left of the coordinator's log, then end."""
        self._stopped.set()
        for thread in self._threads:
            thread.join(timeout=10)

    @property
    def status(self) -> dict[str, Any]:
        """The job's status."""
        status: dict[str, Any] = self.job.get("status", {})
        return status

    @property
    def state(self) -> str:
        """The job's state; Pending before the operator has written one."""
        return str(self.status.get("state", "Pending"))

    @property
    def has_ended(self) -> bool:
        """Whether the job has succeeded or failed."""
        return self.state in _ENDED

    @property
    def step(self) -> int:
        """The newest step, from whichever source is ahead (the log is quicker than the status)."""
        for event in reversed(self.events):
            if event.kind is EventKind.PROGRESS:
                return int(event.data["lastStep"])
            if event.kind is EventKind.RESTORED:
                return int(event.data["step"])
        return int(self.status.get("step") or 0)

    def wait(
        self, until: Callable[[], bool], timeout_s: float, *, tick: Callable[[], None] | None = None
    ) -> bool:
        """Wait for a condition on what is watched; False if it did not come about in time."""
        deadline = time.monotonic() + timeout_s
        while not until():
            if time.monotonic() > deadline:
                return False
            with self._changed:
                self._changed.wait(timeout=_POLL_S)
            if tick:
                tick()
        return True

    def _poll_job(self) -> None:
        while not self._stopped.wait(_POLL_S):
            try:
                found = self._kube.job(self._name)
            except (ApiException, HTTPError):
                continue  # the next poll tells
            with self._changed:
                self.job = found
                self._changed.notify_all()

    def _follow_coordinator(self) -> None:
        while True:
            last_round = self._stopped.is_set() or self.has_ended
            for pod in self._coordinators():
                self._follow(pod)
            if last_round or self._stopped.wait(_POLL_S):
                return

    def _coordinators(self) -> list[Any]:
        try:
            return self._kube.pods(self._name, "coordinator")
        except (ApiException, HTTPError):
            return []

    def _follow(self, pod: Any) -> None:
        statuses = pod.status.container_statuses or []
        if not statuses or statuses[0].state.waiting:
            return
        container = f"{pod.metadata.uid}/{statuses[0].restart_count}"
        try:
            for line in self._kube.follow_log(pod.metadata.name, statuses[0].name):
                self._read_line(container, line)
        except (ApiException, HTTPError):
            return  # the container has gone or begun anew: the next round follows again

    def _read_line(self, container: str, line: str) -> None:
        try:
            raw = json.loads(line)
        except ValueError:
            return  # words for people
        if "losses" in raw:
            self._note(lambda: self.losses.update({int(s): float(v) for s, v in raw["losses"]}))
        elif "seq" in raw and (container, raw["seq"]) not in self._read:
            try:
                event = Event.from_json(raw)
            except ProtocolError:
                return
            self._read.add((container, event.seq))
            self._note(lambda: self.events.append(event))

    def _note(self, change: Callable[[], Any]) -> None:
        with self._changed:
            change()
            self._changed.notify_all()
