"""Both replicas are cut off the API server, while a coordinator and its trainers go on."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from localcluster.kubeapi import Object
from tests.conftest import make_namespace
from tests.operator.pods import PROGRAM, Pods
from tests.operator.rig import OPERATOR_KEY, Jobs, running
from tests.replicas.duo import Replica, two_replicas
from tests.replicas.record import takeovers, trespasses
from tests.replicas.watchman import Watchman
from tests.sweep.play import Theatre
from tests.waiting import wait_until
from tpujob_agent.protocol import Env, EventKind
from tpujob_operator.core.kinds import JOB, JOB_SET, POD

_BESIDE = 20
_CONVERGED_S = 30.0
_GROWN_MB = 20.0
_SLICES = 2
_STEPS = 1_000_000


@dataclasses.dataclass(frozen=True, slots=True)
class Outage:
    """What came of an outage."""

    converged_s: float  # from its end until the status knew all, and what was due was made
    grown_mb: tuple[float, float]  # of each replica, from before it until its end
    settled_mb: tuple[float, float]  # from before it until all had converged
    faults: tuple[str, ...]


def report(theatre: Theatre, cut_s: float, say: Callable[[str], None]) -> bool:
    """Play an outage and print what came of it; returns whether all bars are met."""
    found = play(theatre, cut_s, {})
    say(f"cut off for {cut_s:.0f} s: converged {found.converged_s:.1f} s after it")
    say(f"  memory at its end: {_signed(found.grown_mb)} MB, later: {_signed(found.settled_mb)} MB")
    late = [f"converged later than {_CONVERGED_S:.0f} s"] * (found.converged_s > _CONVERGED_S)
    grown = max(*found.grown_mb, *found.settled_mb)
    large = [f"grown by more than {_GROWN_MB:.0f} MB"] * (grown > _GROWN_MB)
    faults = [*found.faults, *late, *large]
    for fault in faults:
        say(f"  DIFFERS: {fault}")
    return not faults


def play(theatre: Theatre, cut_s: float, env: dict[str, str]) -> Outage:
    """Cut both replicas off for so long; a trainer dies and a job is made meanwhile."""
    namespace = f"c-{uuid.uuid4().hex[:10]}"
    folder = theatre.folder / namespace
    folder.mkdir(parents=True)
    make_namespace(theatre.cluster, namespace)
    theatre.census.population(namespace)
    watchman = Watchman(theatre.census)
    jobs = Jobs(theatre.cluster, namespace)
    with (
        _training(jobs, folder) as pods,
        two_replicas(
            theatre.cluster, theatre.zygote, namespace, folder, {**pods.access, **env}
        ) as pair,
    ):
        jobs.wait_status("j", lambda status: status.get("step", 0) > 0, "steps in the status")
        before, memory = _running(jobs, pods), _memory_mb(pair)
        _be_away(pair, jobs, pods, cut_s)
        at_end, step = _memory_mb(pair), _step(pods)
        started = time.monotonic()
        for replica in pair:
            replica.proxy.reconnect()
        _wait_converged(jobs, step)
        converged_s = time.monotonic() - started
        wait_until(lambda: _all_say(pair, "can be reached again"), "a leader and a standby")
        later = _memory_mb(pair)
        faults = [*_restarted(before, _running(jobs, pods)), *_complaints(pair, jobs, pods)]
        faults += watchman.complaints(namespace)
    theatre.census.forget(namespace)
    return Outage(converged_s, _minus(at_end, memory), _minus(later, memory), tuple(faults))


@contextlib.contextmanager
def _training(jobs: Jobs, folder: Path) -> Iterator[Pods]:
    """A job whose coordinator, agents and trainers are processes, and suspended ones beside it."""
    health = {"hang": {"minSeconds": 3600}}
    jobs.create("j", trainer={"config": {"steps": _STEPS}}, health=health)
    for number in range(_BESIDE):
        jobs.create(f"beside-{number}", suspend=True)
    with contextlib.ExitStack() as stack:
        monkeypatch = stack.enter_context(pytest.MonkeyPatch.context())
        with running(jobs.cluster, folder, jobs.namespace):
            pods = Pods(jobs, folder, monkeypatch, OPERATOR_KEY)
            stack.callback(pods.rig.close)
            found = jobs.wait_pods("j", _SLICES + 1)
            for number in range(_BESIDE):
                jobs.wait_condition(f"beside-{number}", "Suspended")
        pods.rig.start_coordinator()
        for index in range(_SLICES):
            _start_agent(pods, index, found)
        pods.rig.wait_event(EventKind.PROGRESS)
        yield pods


def _start_agent(pods: Pods, index: int, found: list[Object]) -> None:
    names = (str(pod["metadata"]["name"]) for pod in found)
    name = next(name for name in names if name.startswith(f"j-1-slice-{index}-"))
    saved = pods.rig.folder / f"saved-{index}"
    env = {Env.POD_NAME: name, Env.HANG_MIN_S: "3600"}
    # A gate that is there, and a checkpoint every second.
    arguments = [str(saved), str(saved.parent), str(_STEPS), "50"]
    pods.rig.start_agent(index, 0, [sys.executable, "-c", PROGRAM, *arguments], env=env)


def _be_away(pair: tuple[Replica, Replica], jobs: Jobs, pods: Pods, cut_s: float) -> None:
    """Cut the replicas off, and let things happen."""
    is_over = threading.Event()
    timer = threading.Timer(cut_s, is_over.set)
    for replica in pair:
        replica.proxy.cut_off()
    timer.start()
    wait_until(lambda: _all_say(pair, "nothing is written without it"), "closed fences")
    os.kill(pods.rig.trainer_pid(1, 0), signal.SIGKILL)
    jobs.create("late", suspend=True)
    is_over.wait()


def _step(pods: Pods) -> int:
    """The last finished step that the coordinator has told of."""
    return max(int(event["data"]["lastStep"]) for event in pods.rig.events(EventKind.PROGRESS))


def _wait_converged(jobs: Jobs, step: int) -> None:
    """Wait until the status knows what happened, and the job that was made meanwhile is served."""

    def knows(status: Object) -> bool:
        is_told = [incident["cause"] for incident in status["incidents"]] == ["process"]
        return is_told and status["step"] >= step and status["generation"] == 2

    jobs.wait_status("j", knows, f"step {step} and one incident")
    jobs.wait_condition("late", "Suspended")
    jobs.wait(JOB_SET, "late-1")


def _all_say(pair: tuple[Replica, Replica], words: str) -> bool:
    return all(words in replica.keeper.text for replica in pair)


def _running(jobs: Jobs, pods: Pods) -> set[str]:
    """All that must go on: objects by UID, and processes."""
    objects = {
        f"{kind.kind} {obj['metadata']['name']} {obj['metadata']['uid']}"
        for kind in (JOB_SET, JOB, POD)
        for obj in jobs.all(kind, "j")
    }
    processes = [*pods.rig.agents.values(), *filter(None, [pods.rig.coordinator])]
    return objects | {f"process {p.popen.pid}" for p in processes if p.popen.poll() is None}


def _restarted(before: set[str], after: set[str]) -> list[str]:
    return [f"gone: {name}" for name in sorted(before - after)] + [
        f"new: {name}" for name in sorted(after - before)
    ]


def _complaints(pair: tuple[Replica, Replica], jobs: Jobs, pods: Pods) -> list[str]:
    records = [replica.record for replica in pair]
    found = trespasses(records)
    if takeovers(records):
        found.append(f"the Lease changed hands {takeovers(records)} times")
    for number, replica in enumerate(pair):
        if replica.keeper.starts != 1:
            found.append(f"replica {number} was started {replica.keeper.starts} times")
        if "Traceback" in replica.keeper.text:
            found.append(f"the log of replica {number} has a traceback")
    if (restarts := jobs.status("j")["restarts"]) != 1:
        found.append(f"{restarts} restarts in the status, not 1")
    if (worlds := len(pods.rig.events(EventKind.GENERATION_STARTED))) != 2:
        found.append(f"{worlds} worlds, not 2")
    return found


def _memory_mb(pair: tuple[Replica, Replica]) -> tuple[float, float]:
    first, second = (_resident_mb(replica.keeper.pid) for replica in pair)
    return first, second


def _resident_mb(pid: int) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    (kib,) = (int(line.split()[1]) for line in lines if line.startswith("VmRSS"))
    return kib / 1024


def _minus(after: tuple[float, float], before: tuple[float, float]) -> tuple[float, float]:
    return after[0] - before[0], after[1] - before[1]


def _signed(sizes: tuple[float, float]) -> str:
    return " and ".join(f"{size:+.1f}" for size in sizes)
