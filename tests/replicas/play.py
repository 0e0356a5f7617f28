"""Plays lives with two replicas, of which the leader is hit once or not at all."""

from __future__ import annotations

import dataclasses
import time
import uuid
from pathlib import Path

from tests.conftest import make_namespace
from tests.faultproxy.journal import Write
from tests.operator.rig import Jobs
from tests.replicas.blows import Armed, Blow
from tests.replicas.duo import Replica, two_replicas
from tests.replicas.lives import LIVES
from tests.replicas.record import Terms, first_write_s, takeovers, trespasses
from tests.replicas.watchman import Watchman
from tests.sweep.canonical import state_of
from tests.sweep.census import Population
from tests.sweep.compare import Reference
from tests.sweep.lives import Stage
from tests.sweep.play import Outcome, Theatre
from tests.waiting import wait_until
from tpujob_operator.core.kinds import TPU_TRAINING_JOB

_SETTLE_S = 60.0
_QUIET_S = 2.0
_LOST = "the operator ends, another one acts"


@dataclasses.dataclass(frozen=True, slots=True)
class Played:
    """What came of one life."""

    outcome: Outcome
    writes: tuple[Write, ...]  # of the leader, from the second step on
    lease_s: float | None = None  # from the blow until the other one had the Lease
    acting_s: float | None = None  # until it sent its first write to an object of the job
    changes: int = 0  # how often the Lease changed hands


@dataclasses.dataclass(frozen=True, slots=True)
class House:
    """Where lives are played, and with which durations of the Lease."""

    theatre: Theatre
    watchman: Watchman
    env: dict[str, str]

    def play(self, life: str, blow: Blow | None, reference: Reference | None) -> Played:
        """Play a life in a namespace of its own."""
        started = time.monotonic()
        namespace = f"r-{uuid.uuid4().hex[:10]}"
        cluster = self.theatre.cluster
        make_namespace(cluster, namespace)
        population = self.theatre.census.population(namespace)
        stage = Stage(Jobs(cluster, namespace), population, self.theatre.kubelet)
        folder = self._folder(namespace, life, blow)
        with two_replicas(cluster, self.theatre.zygote, namespace, folder, self.env) as pair:
            armed = Armed(blow, pair[0]) if blow else None
            first, faults = _live(life, stage, pair[0])
            is_hit = armed is not None and armed.disarm()
            if armed is not None and is_hit:
                faults += _outlive(armed, pair[1])
            _settle(population, namespace, reference)
            records = [replica.record for replica in pair]
            faults += [*trespasses(records), *self.watchman.complaints(namespace)]
            faults += _complaints(pair, is_hit=is_hit)
            outcome = Outcome(
                state=state_of(population, namespace),
                made=dict(population.made),
                deleted=dict(population.deleted),
                faults=tuple(faults),
                is_hit=is_hit,
                seconds=time.monotonic() - started,
                starts=2 if is_hit else 1,  # for a while nobody acted
            )
            writes = tuple(write for write in records[0].writes[first:] if write.is_effective)
            played = Played(outcome, writes, changes=takeovers(records))
            if armed is not None and is_hit:
                played = _timed(played, armed, pair)
        cluster.api.request("DELETE", TPU_TRAINING_JOB.path(namespace))
        self.theatre.census.forget(namespace)
        return played

    def _folder(self, namespace: str, life: str, blow: Blow | None) -> Path:
        name = f"{blow.kind}-{blow.number}" if blow else "without"
        return self.theatre.folder / f"{life}-{name}-{namespace}"


def _live(life: str, stage: Stage, leader: Replica) -> tuple[int, list[str]]:
    """Play all steps; returns how many writes the first one took, and what did not come."""
    first, step = 0, ""
    try:
        for number, step in enumerate(LIVES[life](stage)):  # noqa: B007 - the last step's
            if number == 1:
                first = len(leader.record.writes)
    except AssertionError as error:
        return first, [f"step '{step}': {error}"]
    return first, []


def _outlive(armed: Armed, standby: Replica) -> list[str]:
    """Wait until the blow is over and the other one leads, if the life was shorter than that."""
    try:
        armed.wait_over()
        wait_until(lambda: standby.has_led, "another leader")
    except AssertionError as error:
        return [str(error)]
    return []


def _settle(population: Population, namespace: str, reference: Reference | None) -> None:
    """Wait until a state is as it should be, and stays so for a while."""
    deadline = time.monotonic() + _SETTLE_S
    state, since = state_of(population, namespace), time.monotonic()
    while time.monotonic() < deadline:
        time.sleep(0.25)
        now = state_of(population, namespace)
        if now != state:
            state, since = now, time.monotonic()
        is_good = reference is None or reference.is_settled(now)
        if is_good and time.monotonic() - since > _QUIET_S:
            return


def _timed(played: Played, armed: Armed, pair: tuple[Replica, Replica]) -> Played:
    records = [replica.record for replica in pair]
    taken_s = Terms.of(records).next_taken_s(1, armed.struck_s)
    if taken_s is None:
        return played
    acting_s = first_write_s(records[1], taken_s)
    return dataclasses.replace(
        played,
        lease_s=taken_s - armed.struck_s,
        acting_s=None if acting_s is None else acting_s - armed.struck_s,
    )


def _complaints(pair: tuple[Replica, Replica], *, is_hit: bool) -> list[str]:
    """What is wrong with processes and Lease.

    On a starved machine a leader may fail to renew its Lease in time: then it changes hands once
    more, which is no fault, and its process ends for that reason alone.
    """
    found = []
    changes = takeovers([replica.record for replica in pair])
    if changes < int(is_hit):
        found.append("no other replica became the leader")
    for number, replica in enumerate(pair):
        if "Traceback" in replica.keeper.text:
            found.append(f"the log of replica {number} has a traceback")
        allowed = replica.keeper.text.count(_LOST) + (is_hit and number == 0)
        if replica.keeper.starts - 1 > allowed:
            found.append(f"replica {number} was started {replica.keeper.starts} times")
    return found
