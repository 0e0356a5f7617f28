"""`kubectl tpujob report` tells what status says, in words, JSON and pictures; errors help."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from localcluster.cluster import Cluster
from tests.core.stories import training
from tests.specs import INCIDENT
from tpujob_client import Job, NothingToReportError, Report
from tpujob_operator.api.base import API_VERSION, KIND
from tpujob_operator.cli import picture
from tpujob_operator.cli.__main__ import main
from tpujob_operator.cli.report import show
from tpujob_operator.core.timetypes import TimeType

STATUS: dict[str, Any] = {
    "state": "Running",
    "step": 70,
    "restarts": 1,
    "goodput": {
        "ratio": 0.75,
        "wallSeconds": 40.0,
        "unsettledSeconds": 5.0,
        "seconds": {"productive": 25.0, "rollback": 4.5, "compile": 5.5, "queued": 0.0},
    },
    "cost": {"chipHours": 12.5, "usd": 15.0, "usdPerMillionTokens": 0.3},
    "incidents": [
        INCIDENT,
        {"at": "2026-01-01T00:00:20.000Z", "cause": "coordinator", "rung": "R3", "step": 60},
    ],
}


def _job(status: dict[str, Any] | None = None, namespace: str = "ns") -> dict[str, Any]:
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {"name": "j", "namespace": namespace},
        "spec": training().obj["spec"],
        "status": STATUS if status is None else status,
    }


def _text(report: Report) -> str:
    sink = io.StringIO()
    show(report, Console(file=sink, width=140))
    return sink.getvalue()


def test_text_has_types_kinds_incidents_and_cost() -> None:
    """Both groupings add up to wall time, and what happened is there with its place."""
    shown = _text(Report.of(Job(_job())))
    assert "goodput 75.0 %" in shown
    assert "12.5 chip-hours, $15.00, $0.3000 a million tokens" in shown
    assert "40.000" in shown
    assert "unsettled" in shown
    assert "WASTED_PROGRESS_FROM_DISRUPTION" in shown
    assert "slice 1 host 1 on node3" in shown
    assert "the job" in shown
    assert "after 2.25 s" in shown


def test_json_adds_up() -> None:
    """Scripts find the same numbers: types and kinds each add up to wall time."""
    raw = json.loads(json.dumps(Report.of(Job(_job())).to_json()))
    goodput = raw["goodput"]
    assert sum(goodput["seconds"].values()) + goodput["unsettledSeconds"] == 40
    assert sum(raw["googleKinds"].values()) == 40
    assert raw["googleKinds"]["GOODPUT"] == 30
    assert raw["cost"]["usd"] == 15
    assert [incident["cause"] for incident in raw["incidents"]] == ["process", "coordinator"]


def test_report_of_what_the_operator_writes() -> None:
    """A status as the operator makes it can be reported, with all 18 types."""
    report = Report.of(Job(training().obj))
    assert report.seconds.keys() == {kind.value for kind in TimeType}
    assert "ns/j: Running" in _text(report)


def test_every_type_has_a_colour_of_its_own() -> None:
    """Two types never look alike."""
    assert picture.COLOURS.keys() == set(TimeType)
    assert len(set(picture.COLOURS.values())) == len(TimeType)


def test_picture_is_drawn(tmp_path: Path) -> None:
    """A file of the kind that its name says."""
    picture.draw(Report.of(Job(_job())), tmp_path / "new" / "times.png")
    assert (tmp_path / "new" / "times.png").read_bytes().startswith(b"\x89PNG")


def test_job_without_times_says_what_to_look_at() -> None:
    """Before the operator has seen a job there is nothing, and the reader is told why."""
    with pytest.raises(NothingToReportError, match="does the operator run"):
        Report.of(Job(_job(status={})))


def test_missing_kubeconfig_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """No traceback, but what to give."""
    assert main(["report", "j", "--kubeconfig", str(tmp_path / "none")]) == 1
    assert "give --kubeconfig" in capsys.readouterr().err


@pytest.mark.control_plane
def test_report_from_an_api_server(
    control_plane: Cluster, namespace: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Read with a kubeconfig, as JSON and with a picture; a wrong name or namespace is told."""
    path = f"/apis/{API_VERSION}/namespaces/{namespace}/tputrainingjobs"
    job = _job(namespace=namespace)
    control_plane.api.request("POST", path, job)
    control_plane.api.merge(f"{path}/j/status", {"status": STATUS})
    access = ["-n", namespace, "--kubeconfig", str(control_plane.kubeconfig)]
    drawn = tmp_path / "times.png"
    assert main(["report", "j", *access, "-o", "json", "--picture", str(drawn)]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told == Report.of(Job(job)).to_json()
    assert drawn.exists()
    assert main(["report", "k", *access]) == 1
    assert f"there is no TPUTrainingJob k in namespace {namespace}" in capsys.readouterr().err
