"""Makes one fault after the other under one job, and looks at what each has led to."""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Callable
from typing import Any, TypeVar

from bench.soak.draw import Hit
from bench.soak.programs import JOB, Program, Status
from demo.clusters import Target
from demo.kube import Kube
from faults import control_plane, judgement
from faults.answers import ANSWERS
from faults.catalogue import CATALOGUE
from faults.scene import Scene
from localcluster.cluster import Cluster
from localcluster.kubeapi import wait_for

NAMESPACE = "soak"
_T = TypeVar("_T")
#: The kubelet waits up to 5 minutes before it restarts a container that has ended often, and a
#: job whose nodes are all suspect waits as long before it forgives them.
_RECOVER_S = 900.0
_POLL_S = 0.1
_TRIES = 5
#: Steps after which training counts as going on.
_ONWARD = 10


@dataclasses.dataclass(frozen=True, slots=True)
class Outcome:
    """A fault and what followed."""

    hit: Hit
    incident: Status = dataclasses.field(default_factory=dict)  # empty: none was to follow
    wrong: tuple[str, ...] = ()  # of the status
    wrong_resumes: tuple[str, ...] = ()  # what training shows

    @property
    def recovered_s(self) -> float | None:
        """Seconds from the fault to the next finished step."""
        return self.incident.get("recoveredAfterSeconds")

    @property
    def lost_steps(self) -> int:
        """Steps that were done again."""
        return int(self.incident.get("lostSteps") or 0)

    @property
    def lost_work_s(self) -> float:
        """Seconds that these had taken."""
        return float(self.incident.get("lostSeconds", 0.0)) - (self.recovered_s or 0.0)


class Runner:
    """One job on one cluster."""

    def __init__(self, cluster: Cluster, target: Target, program: Program) -> None:
        self._kube = Kube(target.kubeconfig, NAMESPACE)
        self._scene = Scene(self._kube, JOB, cluster)
        self._target, self._program = target, program

    def start(self) -> Status:
        """Create the job; returns its status when it trains and has saved."""
        self._kube.ensure_namespace()
        self._kube.create_job(self._program.manifest(self._target, NAMESPACE))
        return self.wait(judgement.is_calm, "the job trains and saves")

    @property
    def status(self) -> Status:
        """Of the job, as it is now."""
        found: Status = self._kube.job(JOB).get("status", {})
        return found

    def wait(self, is_so: Callable[[Status], bool], what: str) -> Status:
        """Wait for a status.

        Raises:
            TimeoutError: it did not come.
        """
        deadline = time.monotonic() + _RECOVER_S
        while time.monotonic() < deadline:
            if (seen := self.status) and is_so(seen):
                return seen
            time.sleep(_POLL_S)
        told = {key: value for key, value in self.status.items() if key != "ledger"}
        raise TimeoutError(f"after {_RECOVER_S:.0f} s still waiting for {what}; status: {told}")

    def hit(self, hit: Hit, *, is_timed: bool = False) -> Outcome:
        """Make a fault, wait for what follows, and judge it.

        Args:
            hit: the fault.
            is_timed: it comes when its time has come; else when the job has saved since the last.
        """
        before = self.status if is_timed else self.wait(judgement.is_calm, "a calm job")
        time.sleep(hit.pause_s)
        self._told(lambda: self._program.note(self._scene))
        answer = ANSWERS[hit.fault]
        after = self._recovered(hit, before) if answer else self._unmoved(hit)
        if answer and not is_timed:
            after = self.wait(judgement.is_calm, "a save after the recovery")
        return Outcome(
            hit,
            after["incidents"][-1] if answer and after["restarts"] > before["restarts"] else {},
            tuple(judgement.of_status(answer, hit.place, before, after)),
            tuple(self._told(lambda: self._program.problems(self._scene, before, after))),
        )

    def _told(self, ask: Callable[[], _T]) -> _T:
        """What the job's pods have to say; one that is asked may be gone the next moment."""
        for _ in range(_TRIES - 1):
            try:
                return ask()
            except LookupError:
                time.sleep(1)
        return ask()

    def _recovered(self, hit: Hit, before: Status) -> Status:
        fault = CATALOGUE[hit.fault]
        fault.make(self._scene, hit.place)
        if fault.heal:
            try:
                self.wait(lambda seen: seen["restarts"] > before["restarts"], "a loss")
            finally:
                fault.heal(self._scene, hit.place)
        return self.wait(functools.partial(judgement.has_recovered, before), "the recovery")

    def _unmoved(self, hit: Hit) -> Status:
        """A fault of what runs the job: others take over, and training goes on."""
        old = self._managers()
        CATALOGUE[hit.fault].make(self._scene, hit.place)
        wait_for("another pod in its place", lambda: self._is_managed(old), _RECOVER_S, _POLL_S)
        step = self.status["step"]
        return self.wait(lambda seen: seen["step"] >= step + _ONWARD, "more steps")

    def _is_managed(self, old: list[Any]) -> bool:
        now = self._managers()
        uids, old_uids = ({pod.metadata.uid for pod in pods} for pods in (now, old))
        return len(uids) == len(old_uids) and uids != old_uids and all(map(_is_ready, now))

    def _managers(self) -> list[Any]:
        """Pods of the coordinator and the operator."""
        return [*self._kube.pods(JOB, "coordinator"), *control_plane.operators(self._scene)]


def _is_ready(pod: Any) -> bool:
    conditions = pod.status.conditions or []
    return any(one.type == "Ready" and one.status == "True" for one in conditions)
