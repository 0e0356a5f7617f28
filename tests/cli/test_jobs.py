"""Jobs in a cluster by `kubectl tpujob`: made, looked at, waited for, suspended and resumed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Run
from tests.namespaced import Namespaced
from tpujob_operator.api.base import API_VERSION, KIND
from tpujob_operator.cli.__main__ import main
from tpujob_operator.core.kinds import EVENT, TPU_TRAINING_JOB

EXAMPLES = Path(__file__).parents[2] / "examples"


def _condition(kind: str, message: str) -> dict[str, Any]:
    at = "2026-01-01T00:00:00Z"
    parts = {"status": "True", "reason": "Why", "message": message, "lastTransitionTime": at}
    return {"type": kind, **parts}


def _tell(there: Namespaced, **status: Any) -> None:
    path = TPU_TRAINING_JOB.path(there.namespace, "demo", "status")
    there.api.merge(path, {"status": status})


@pytest.mark.control_plane
def test_a_life(there: Namespaced, run: Run) -> None:
    """From the file to its end; what was written is sent as it is, without defaults."""
    demo = str(EXAMPLES / "demo.yaml")
    assert run("submit", demo) == (0, f"created {there.namespace}/demo\n", "")
    job = there.find(TPU_TRAINING_JOB, "demo")
    assert job is not None
    assert "template" not in job["spec"]

    status, _, error = run("submit", demo)
    assert status == 1
    assert "already: choose another name" in error

    assert run("suspend", "demo")[0] == 0
    assert (there.find(TPU_TRAINING_JOB, "demo") or {})["spec"]["suspend"] is True
    assert json.loads(run("resume", "demo", "-o", "json")[1])["spec"]["suspend"] is False

    _tell(there, state="Running", step=7, conditions=[_condition("Stalled", "Do this.")])
    assert "Running" in run("list")[1]
    (item,) = json.loads(run("list", "-o", "json")[1])["items"]
    assert item["metadata"]["name"] == "demo"
    everywhere = json.loads(run("list", "-A", "-o", "json")[1])["items"]
    assert there.namespace in {item["metadata"]["namespace"] for item in everywhere}
    _, shown, _ = run("status", "demo")
    assert "step 7" in shown
    assert "Do this." in shown
    assert json.loads(run("status", "demo", "-o", "json")[1])["step"] == 7


@pytest.mark.control_plane
def test_waiting(there: Namespaced, run: Run) -> None:
    """For an end or a condition; a job that ends otherwise, or in no time, is an error."""
    run("submit", str(EXAMPLES / "demo.yaml"))
    status, _, error = run("wait", "demo", "--timeout", "0")
    assert status == 1
    assert "demo did not come to end within 0 s" in error
    _tell(there, conditions=[_condition("Ready", "All hosts train.")])
    assert run("wait", "demo", "--for", "Ready")[:2] == (0, "demo: Ready: All hosts train.\n")
    _tell(there, conditions=[_condition("Failed", "Budget spent.")])
    assert run("wait", "demo")[:2] == (1, "demo: Failed: Budget spent.\n")
    assert run("wait", "demo", "--for", "Ready")[0] == 1
    assert run("wait", "demo", "--for", "Failed")[0] == 0
    _tell(there, conditions=[_condition("Succeeded", "Done.")])
    assert run("wait", "demo")[0] == 0


@pytest.mark.control_plane
def test_events(there: Namespaced, run: Run) -> None:
    """Those of the job alone, oldest first."""
    run("submit", str(EXAMPLES / "demo.yaml"))
    for minute, (name, kind) in enumerate([("demo", KIND), ("demo", "Pod"), ("demo", KIND)]):
        body = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": f"e{9 - minute}", "namespace": there.namespace},
            "involvedObject": {
                "apiVersion": API_VERSION,
                "kind": kind,
                "name": name,
                "namespace": there.namespace,
            },
            "type": "Normal",
            "reason": f"R{minute}",
            "message": "m",
            "lastTimestamp": f"2026-01-01T00:0{minute}:00Z",
        }
        there.api.request("POST", EVENT.path(there.namespace), body)
    lines = run("events", "demo")[1].splitlines()
    assert [line.split()[2] for line in lines] == ["R0", "R2"]
    found = json.loads(run("events", "demo", "-o", "json")[1])["items"]
    assert [event["reason"] for event in found] == ["R0", "R2"]


@pytest.mark.control_plane
def test_missing_jobs_and_bad_files_are_told(run: Run, tmp_path: Path) -> None:
    """With what to do, and nothing is created."""
    for verb in ("status", "wait", "suspend", "resume"):
        status, _, error = run(verb, "nobody")
        assert status == 1
        assert "there is no TPUTrainingJob nobody in namespace" in error
    path = tmp_path / "job.yaml"
    path.write_text((EXAMPLES / "demo.yaml").read_text().replace("2x4", "4x5"))
    status, _, error = run("submit", str(path))
    assert status == 1
    assert "nearest are 2x4" in error
    assert json.loads(run("list", "-o", "json")[1])["items"] == []


@pytest.mark.parametrize("verb", ["list", "status", "events", "wait", "suspend", "resume"])
def test_missing_kubeconfig_is_told(
    verb: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """No traceback, but what to give."""
    name = [] if verb == "list" else ["j"]
    assert main([verb, *name, "--kubeconfig", str(tmp_path / "none")]) == 1
    assert "give --kubeconfig" in capsys.readouterr().err
