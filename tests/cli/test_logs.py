"""`kubectl tpujob logs`: whose logs are meant, and what is said where there are none."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Run
from tpujob_agent.events import Event, EventKind
from tpujob_client.errors import NoLogsError
from tpujob_client.logs import LogLine, after
from tpujob_client.sources import Wanted, place_of, place_of_rank, sources
from tpujob_operator.cli.__main__ import main

EXAMPLES = Path(__file__).parents[2] / "examples"
_RUNNING: dict[str, Any] = {"running": {}}
_ENDED: dict[str, Any] = {"terminated": {"exitCode": 1}}
_WAITING: dict[str, Any] = {"waiting": {"reason": "ContainerCreating"}}


def _pod(
    place: str, state: dict[str, Any] | None = None, restarts: int = 0, role: str = "worker"
) -> dict[str, Any]:
    slice_index, _, host = place.partition("/")
    last = {"lastState": _ENDED} if restarts else {}
    status = {"name": "trainer", "state": state, "restartCount": restarts, **last}
    return {
        "metadata": {
            "name": f"j-1-slice-{slice_index}-{host}-abcde",
            "uid": f"uid-{place}",
            "labels": {"tpujob.dev/role": role, "jobset.sigs.k8s.io/job-index": slice_index},
            "annotations": {"batch.kubernetes.io/job-completion-index": host},
        },
        "spec": {"containers": [{"name": "sidecar"}, {"name": "trainer"}]},
        "status": {"containerStatuses": [{"name": "sidecar"}, status]} if state else {},
    }


def test_workers_are_in_the_order_of_their_places() -> None:
    """By number, not by text; each with the container that trains."""
    found = sources([_pod("10/0", _RUNNING), _pod("2/1"), _pod("2/0", _ENDED)], Wanted("j"))
    assert [one.worker for one in found] == ["2/0", "2/1", "10/0"]
    assert {one.container for one in found} == {"trainer"}


def test_one_worker_is_found_by_its_place() -> None:
    """And nobody, if it is not there."""
    pods = [_pod("0/0"), _pod("0/1"), _pod("1/0")]
    assert [one.worker for one in sources(pods, Wanted("j", place=(0, 1)))] == ["0/1"]
    assert sources(pods, Wanted("j", place=(7, 0))) == []


@pytest.mark.parametrize(
    ("pod", "started", "restarted"),
    [
        (_pod("0/0"), False, False),
        (_pod("0/0", _WAITING), False, False),
        (_pod("0/0", _RUNNING), True, False),
        (_pod("0/0", _ENDED), True, False),
        (_pod("0/0", _WAITING, restarts=1), False, True),
        (_pod("0/0", _RUNNING, restarts=2), True, True),
    ],
    ids=["no container", "waiting", "running", "ended", "restarts", "restarted"],
)
def test_a_container_has_logs_once_it_has_been_started(
    pod: dict[str, Any], *, started: bool, restarted: bool
) -> None:
    """Of its present run and of the one before."""
    (source,) = sources([pod], Wanted("j"))
    assert (source.started, source.restarted) == (started, restarted)


def test_the_coordinator_has_one_container() -> None:
    """Its own, whatever it is called."""
    (source,) = sources([_pod("0/0", role="coordinator")], Wanted("j", coordinator=True))
    assert source.container == "sidecar"


def test_pods_are_selected_by_labels() -> None:
    """So that the API server sends no others."""
    assert Wanted("j").selector == "tpujob.dev/job=j,tpujob.dev/role=worker"
    selector = Wanted("j", attempt=3, coordinator=True).selector
    assert selector == "tpujob.dev/job=j,tpujob.dev/role=coordinator,tpujob.dev/attempt=3"


@pytest.mark.parametrize("worker", ["", "1", "1/", "a/b", "1/2/3", "-1/0", "1/²"])
def test_odd_workers_are_refused(worker: str, capsys: pytest.CaptureFixture[str]) -> None:
    """With the form that is right."""
    with pytest.raises(ValueError, match="give slice/host, such as 0/1"):
        place_of(worker)
    with pytest.raises(SystemExit):
        main(["logs", "j", f"--worker={worker}"])
    assert "give slice/host, such as 0/1" in capsys.readouterr().err


def _log(*worlds: tuple[list[int], int]) -> Iterator[str]:
    """The coordinator's log: slices and hosts of each world."""
    yield "a line that is none of ours"
    yield json.dumps({"log": "a line of ours"})
    yield "7"
    for seq, (slices, hosts) in enumerate(worlds, start=1):
        data = {"slices": slices, "hosts": hosts}
        yield json.dumps(Event(seq, 0, EventKind.GENERATION_STARTED, data).to_json())
        yield json.dumps(Event(seq, 0, EventKind.GENERATION_STOPPED, {}).to_json())


@pytest.mark.parametrize(("rank", "place"), [(0, (0, 0)), (1, (0, 1)), (2, (3, 0)), (3, (3, 1))])
def test_ranks_are_places_of_the_newest_world(rank: int, place: tuple[int, int]) -> None:
    """A spare has replaced slice 1: its hosts have the ranks that come after slice 0's."""
    assert place_of_rank(_log(([0, 1], 4), ([0, 3], 4)), rank) == place


def test_ranks_that_nobody_has_are_told() -> None:
    """Before there is a world, and beyond its end."""
    with pytest.raises(NoLogsError, match="nobody has rank 0 yet"):
        place_of_rank(_log(), 0)
    with pytest.raises(NoLogsError, match="there is no rank 4: there are 0 to 3"):
        place_of_rank(_log(([0, 1], 4)), 4)


def test_streams_are_taken_up_where_they_were_cut() -> None:
    """What was passed on already is left out, to the nanosecond."""
    times = ("00:01.5Z", "00:01.51Z", "00:01.6Z", "00:02Z")
    lines = [LogLine("0/0", f"2026-01-01T00:{at} line at {at}") for at in times]
    everything = [*after("", lines)]
    assert [line.text for _, line in everything] == [f"line at {at}" for at in times]
    for known, (stamp, _) in enumerate(everything, start=1):
        assert [*after(stamp, lines)] == everything[known:]


@pytest.mark.parametrize(
    "arguments",
    [("--worker=0/0", "--rank=1"), ("--rank=1", "--coordinator"), ("-f", "-p"), ("--tail=-1",)],
)
def test_arguments_that_exclude_each_other(
    arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    """Nobody is asked; the message names the argument."""
    with pytest.raises(SystemExit):
        main(["logs", "j", *arguments])
    assert "argument" in capsys.readouterr().err


@pytest.mark.control_plane
def test_jobs_without_logs_are_told(run: Run) -> None:
    """That there is no such job, or that it has no pods."""
    assert "there is no TPUTrainingJob demo" in run("logs", "demo")[2]
    run("submit", str(EXAMPLES / "demo.yaml"))
    status, _, error = run("logs", "demo", "--attempt", "3", "--worker", "0/1")
    assert status == 1
    assert "demo has no pod as 0/1 of attempt 3: logs go with their pods" in error
