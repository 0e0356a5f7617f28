"""Hosts whose leaving is announced over HTTP, with real processes on loopback."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from tests.agent.rig import TOKEN, Rig, rig, signature
from tests.agent.test_watched import start
from tpujob_agent.notices import Notice
from tpujob_agent.protocol import STATE_PATH, TELL_PATH, Cause, EventKind


def put(made: Rig, body: Any, token: str = TOKEN) -> int:
    """The status of a request."""
    url = f"http://127.0.0.1:{made.config.http_port}{TELL_PATH}"
    text = json.dumps(body).encode()
    headers = signature(token, "PUT", TELL_PATH, body)
    request = urllib.request.Request(url, text, headers, method="PUT")
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


def test_everybody_saves_before_a_host_goes(tmp_path: Path) -> None:
    """The save is made while training goes on, and the host's silent end has its cause."""
    with rig(tmp_path) as made:
        start(made)
        made.wait_event(EventKind.PROGRESS, count=2)
        notice = Notice("node11", Cause.MAINTENANCE, 0, "it is under maintenance")
        assert put(made, {"notices": [notice.to_json()], "budgets": {"process": 3}}) == 200
        committed = made.wait_event(EventKind.COMMITTED)["data"]["step"]
        assert not made.events(EventKind.LOSS)
        members = made.get(STATE_PATH)["members"]
        assert [one["node"] for one in members if one["notice"]] == ["node11"]
        made.agents[1, 1].kill()
        loss = made.wait_event(EventKind.LOSS)["data"]
        assert (loss["cause"], loss["slice"], loss["host"]) == ("maintenance", 1, 1)
        assert loss["step"] >= committed


def _told(**changes: Any) -> dict[str, Any]:
    return {"notices": [], "budgets": {}, **changes}


@pytest.mark.parametrize(
    "body",
    [
        [],
        {},
        {"notices": [{}]},
        {"notices": 3},
        _told(budgets={"process": "many"}),
        _told(budgets=[]),
        _told(takenAway=3),
        _told(takenAway=["now"]),
    ],
)
def test_nonsense_is_refused(tmp_path: Path, body: Any) -> None:
    """A body without sense, and a wrong token, change nothing."""
    with rig(tmp_path) as made:
        made.start_coordinator()
        made.wait_event(EventKind.COORDINATOR_STARTED)
        assert put(made, body) == 400
        assert put(made, _told(), token="wrong") == 401
