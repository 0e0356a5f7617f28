"""The demo's report passes what is right and names what is wrong."""

import io
import json
from pathlib import Path
from typing import Any

from rich.console import Console

from demo import report
from demo.__main__ import with_own_checkpoints
from tests.specs import INCIDENT

STEPS = 40
LOSSES = {step: 5.0 - step / 20 for step in range(1, STEPS + 1)}


def _job(**status: Any) -> dict[str, Any]:
    good = {
        "state": "Succeeded",
        "goodput": {
            "ratio": 0.75,
            "wallSeconds": 40.0,
            "seconds": {"productive": 30.0, "rollback": 4.5, "compile": 5.5},
        },
        "incidents": [INCIDENT],
    }
    return {"status": good | status}


def _build(job: dict[str, Any], losses: dict[int, float] = LOSSES) -> report.Report:
    return report.build(job, losses, LOSSES, steps=STEPS, faults=1)


def test_a_good_run_has_no_problems() -> None:
    """A job that succeeded, adds up and kept its course passes."""
    assert _build(_job()).problems == []


def test_a_failed_job_says_why() -> None:
    """The words of the condition reach the person who runs the demo."""
    failed = {"type": "Failed", "status": "True", "reason": "UserError", "message": "exit code 1"}
    (problem,) = _build(_job(state="Failed", conditions=[failed])).problems
    assert "UserError: exit code 1" in problem


def test_times_that_do_not_add_up_are_a_problem() -> None:
    """A lost second fails the demo."""
    goodput = {"ratio": 0.7, "wallSeconds": 41.0, "seconds": {"productive": 40.0}}
    (problem,) = _build(_job(goodput=goodput)).problems
    assert "40.000" in problem
    assert "41.000" in problem


def test_one_differing_bit_of_a_loss_is_a_problem() -> None:
    """Losses are compared exactly, and the first that differs is named."""
    (problem,) = _build(_job(), LOSSES | {17: LOSSES[17] + 1e-15}).problems
    assert "step 17" in problem


def test_a_missing_loss_is_a_problem() -> None:
    """A step without a loss proves nothing, so it fails the demo."""
    (problem,) = _build(_job(), {s: v for s, v in LOSSES.items() if s != 9}).problems
    assert "the first is 9" in problem


def test_an_incident_nobody_made_is_a_problem() -> None:
    """As many incidents as faults, no more and no fewer."""
    (problem,) = _build(_job(incidents=[])).problems
    assert "1 faults were made, 0 incidents" in problem


def test_resumed_at_is_the_incident_plus_its_recovery() -> None:
    """Times of the API are read to the millisecond."""
    (incident,) = _job()["status"]["incidents"]
    assert report.resumed_at_ms(incident) == report.milliseconds("2026-01-01T00:00:12.750Z")
    assert report.resumed_at_ms({"at": "2026-01-01T00:00:10Z"}) is None


def test_written_report_holds_what_is_shown(tmp_path: Path) -> None:
    """The JSON has the same content as the terminal."""
    result = _build(_job())
    result.write(tmp_path / "out" / "report.json")
    raw = json.loads((tmp_path / "out" / "report.json").read_text())
    assert raw["succeeded"] is True
    assert raw["losses"]["17"] == LOSSES[17]
    shown = io.StringIO()
    report.show(result, Console(file=shown, width=140))
    assert "after 2.25 s" in shown.getvalue()
    assert "40.000" in shown.getvalue()


def test_curve_falls_with_the_loss() -> None:
    """The curve's first point is in its top row and its last one in its bottom row."""
    top, *_, bottom = report.curve(LOSSES, width=20, height=5).splitlines()[:5]
    assert top.index("•") < bottom.rindex("•")


def test_every_run_has_checkpoints_of_its_own() -> None:
    """A second run on the same volume starts at step 0, and the file's own job is left alone."""
    manifest = {"spec": {"checkpoint": {"directory": "/shared/checkpoints"}}}
    fresh = with_own_checkpoints(manifest, "7")
    assert fresh["spec"]["checkpoint"]["directory"] == "/shared/checkpoints-7"
    assert manifest["spec"]["checkpoint"]["directory"] == "/shared/checkpoints"
