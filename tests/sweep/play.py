"""Plays lives: with one plan's fault or without any, and says what came of it."""

from __future__ import annotations

import contextlib
import dataclasses
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from localcluster.cluster import Cluster
from tests.conftest import make_namespace
from tests.faultproxy.proxy import FaultProxy
from tests.operator.nodes import kubelets, make_node
from tests.operator.rig import NODE, Jobs
from tests.sweep.access import Access
from tests.sweep.canonical import State, imbalance, state_of
from tests.sweep.census import Census, Population
from tests.sweep.kubelet import Kubelet
from tests.sweep.lives import ELECTED, LIVES, Stage
from tests.sweep.operators import Keeper, Zygote, zygote
from tests.sweep.plans import Armed, Plan, Recording
from tests.waiting import PATIENCE_S
from tpujob_operator.core.kinds import TPU_TRAINING_JOB

#: After its life a job must become what it becomes without faults within this time, and stay so.
_SETTLE_S = PATIENCE_S
_QUIET_S = 1.5


@dataclasses.dataclass(frozen=True, slots=True)
class Outcome:
    """What there was at the end of a life."""

    state: State
    made: dict[str, int]
    deleted: dict[str, int]
    faults: tuple[str, ...]  # what is wrong whatever other lives show
    is_hit: bool
    seconds: float
    starts: int = 1  # of operators


@dataclasses.dataclass(frozen=True, slots=True)
class Theatre:
    """What all lives share: one control plane, and whoever serves it."""

    cluster: Cluster
    census: Census
    kubelet: Kubelet
    zygote: Zygote
    folder: Path
    has_lease: bool = False  # in all lives

    def play(
        self, life: str, plan: Plan | None, is_settled: Callable[[State], bool] | None
    ) -> tuple[Outcome, Recording]:
        """Play a life in a namespace of its own.

        Args:
            life: its name.
            plan: the fault; none for a life without one.
            is_settled: whether a state is one that lives without faults end in.
        """
        started = time.monotonic()
        namespace = f"s-{uuid.uuid4().hex[:10]}"
        folder = self.folder / namespace
        folder.mkdir(parents=True)
        make_namespace(self.cluster, namespace)
        population = self.census.population(namespace)
        stage = Stage(Jobs(self.cluster, namespace), population, self.kubelet)
        with (
            FaultProxy(self.cluster.kubeconfig, folder) as proxy,
            self._keeper(life, proxy, namespace) as keeper,
        ):
            armed = Armed(plan, proxy, keeper) if plan else None
            steps, faults = _run(life, stage, armed)
            is_hit = armed is None or armed.is_hit
            if armed is not None:
                armed.end()
            _settle(population, namespace, is_settled)
            outcome = Outcome(
                state=state_of(population, namespace),
                made=_repeated(population.made),
                deleted=_repeated(population.deleted),
                faults=(*faults, *imbalance(population), *_complaints(keeper, plan)),
                is_hit=is_hit,
                seconds=time.monotonic() - started,
                starts=keeper.starts,
            )
            journal = proxy.journal
            recording = Recording(tuple(journal.writes), tuple(journal.events), steps)
        self._clear(namespace)
        return outcome, recording

    def _keeper(self, life: str, proxy: FaultProxy, namespace: str) -> Keeper:
        has_lease = self.has_lease or life in ELECTED
        folder = self.folder / namespace
        return Keeper(self.zygote, proxy.kubeconfig, namespace, folder, has_lease=has_lease)

    def _clear(self, namespace: str) -> None:
        # The namespace stays: its end is a look at every kind there is, 70 requests.
        self.cluster.api.request("DELETE", TPU_TRAINING_JOB.path(namespace))
        self.census.forget(namespace)


def _run(life: str, stage: Stage, armed: Armed | None) -> tuple[int, list[str]]:
    number, step = 0, ""
    try:
        for number, step in enumerate(LIVES[life](stage), start=1):  # noqa: B007 - the last step's
            if armed is not None:
                armed.begin_step(number - 1)
    except AssertionError as error:
        return number, [f"step '{step}': {error}"]
    return number, []


def _settle(
    population: Population, namespace: str, is_settled: Callable[[State], bool] | None
) -> None:
    """Wait until a state is as it should be, or at least changes no more; and some time more."""
    deadline = time.monotonic() + _SETTLE_S
    state, taken, since = state_of(population, namespace), population.taken, time.monotonic()
    while time.monotonic() < deadline:
        time.sleep(0.1)
        if population.taken != taken:  # states of all lives at once are much to compute
            taken, before = population.taken, state
            state = state_of(population, namespace)
            since = since if state == before else time.monotonic()
        is_quiet = time.monotonic() - since > _QUIET_S
        if is_quiet and (is_settled is None or is_settled(state)):
            return


def _repeated(counter: Any) -> dict[str, int]:
    return dict(sorted(counter.items()))


def _complaints(keeper: Keeper, plan: Plan | None) -> list[str]:
    text = keeper.text
    found = []
    if "Traceback" in text:
        found.append("the operator's log has a traceback")
    if plan is None and keeper.starts > 1:
        found.append(f"the operator ended by itself {keeper.starts - 1} times")
    return found


@contextlib.contextmanager
def theatre(cluster: Cluster, folder: Path, *, has_lease: bool = False) -> Iterator[Theatre]:
    """Whoever serves lives on a control plane that runs; ``has_lease``: with elections."""
    make_node(cluster, NODE)
    with (
        kubelets(cluster, NODE),
        Census(Access(cluster.kubeconfig)) as census,
        zygote() as source,
    ):
        yield Theatre(cluster, census, Kubelet(census), source, folder, has_lease)
