"""What happens to the leader, and when: before, at or after one of its writes."""

from __future__ import annotations

import dataclasses
import random
import signal
import threading
import time
from collections.abc import Mapping, Sequence

from tests.faultproxy.faults import Match, Strike
from tests.faultproxy.journal import Write
from tests.replicas.duo import Replica
from tests.waiting import wait_until

KINDS = ("kill", "freeze")
_LATEST_S = 2.0
#: For a blow and what follows it, on a starved machine.
_PATIENCE_S = 240.0


@dataclasses.dataclass(frozen=True, slots=True)
class Blow:
    """One kill or one freeze in one life."""

    kind: str
    life: str
    write: Write
    number: int
    when: str  # "before": the write does not happen; "after": it has no answer; "later"
    delay_s: float = 0.0  # of "later"
    freeze_s: float = 0.0

    @property
    def id(self) -> str:
        """The blow's name."""
        write = f"{self.write.verb}-{self.write.target}-{self.write.name}-{self.write.nth}"
        return f"{self.kind}:{self.life}:{self.number}:{self.when}:{write}".replace("/", ".")


def draw(
    kind: str, writes: Mapping[str, Sequence[Write]], number: int, seed: int, freeze_s: float
) -> Blow:
    """The blow with this number: a random write of the recoveries of one life."""
    dice = random.Random(f"{seed} {kind} {number}")
    lives = sorted(writes)
    life = lives[number % len(lives)]
    if kind == "freeze":  # after any of its writes
        return Blow(kind, life, dice.choice(writes[life]), number, "after", freeze_s=freeze_s)
    when = dice.choice(("before", "after", "later"))
    delay_s = dice.uniform(0, _LATEST_S) if when == "later" else 0.0
    return Blow(kind, life, dice.choice(writes[life]), number, when, delay_s)


class Armed:
    """A blow that waits for its write."""

    def __init__(self, blow: Blow, leader: Replica) -> None:
        self._blow = blow
        self._leader = leader
        self._pid = leader.keeper.pid
        self._timers: list[threading.Timer] = []
        self.struck_s = 0.0
        self.is_over = threading.Event()
        resource, _, subresource = blow.write.target.partition("/")
        match = Match(blow.write.verb, resource, blow.write.name, subresource)
        self._rule = leader.proxy.on(match, self._strike(), nth=blow.write.nth)

    def disarm(self) -> bool:
        """From now on nothing is hit; returns whether the write has come before."""
        self._leader.proxy.heal()
        return self._rule.hits > 0

    def _strike(self) -> Strike:
        if self._blow.when == "before":
            return Strike(before=self._hit, is_lost=True)
        if self._blow.when == "later":
            return Strike(after=lambda: self._later(self._blow.delay_s, self._hit))
        return Strike(after=self._hit)

    def _later(self, seconds: float, work: object) -> None:
        timer = threading.Timer(seconds, work)  # type: ignore[arg-type] # a function
        timer.daemon = True
        timer.start()
        self._timers.append(timer)

    def _hit(self) -> None:
        is_kill = self._blow.kind == "kill"
        self._leader.keeper.send(self._pid, signal.SIGKILL if is_kill else signal.SIGSTOP)
        self.struck_s = time.monotonic()
        if is_kill:
            self.is_over.set()
        else:
            self._later(self._blow.freeze_s, self._wake)

    def _wake(self) -> None:
        self._leader.keeper.send(self._pid, signal.SIGCONT)
        self.is_over.set()

    def wait_over(self) -> None:
        """Wait until the victim has ended, and its successor is ready.

        Raises:
            AssertionError: it does not end.
        """
        keeper = self._leader.keeper
        wait_until(self.is_over.is_set, "end of the blow", _PATIENCE_S)
        wait_until(lambda: keeper.starts > 1, "end of the former leader", _PATIENCE_S)
        ready = "the operator is ready"
        wait_until(lambda: keeper.text.count(ready) >= keeper.starts, "a standby", _PATIENCE_S)
