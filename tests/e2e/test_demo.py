"""The demo itself: the bundled trainer on four hosts, hit twice, against an unhit run."""

from __future__ import annotations

import dataclasses
import io
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from rich.console import Console

import demo.__main__ as demo
from demo.kube import Kube
from demo.report import TOLERANCE_S
from tests.e2e.conftest import Installed
from tpujob_operator.core.timetypes import TimeType

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]


_STEPS = 100


@pytest.fixture
def shorter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The demo at half its length; where it writes to."""
    job = yaml.safe_load(demo._MANIFEST.read_text())
    faults = [dataclasses.replace(fault, at_step=fault.at_step // 2) for fault in demo._FAULTS]
    assert job["spec"]["trainer"]["config"]["steps"] == 2 * _STEPS
    job["spec"]["trainer"]["config"]["steps"] = _STEPS
    (tmp_path / "demo.yaml").write_text(yaml.safe_dump(job))
    monkeypatch.setattr(demo, "_MANIFEST", tmp_path / "demo.yaml")
    monkeypatch.setattr(demo, "_FAULTS", tuple(faults))
    monkeypatch.setattr(demo, "_ROOT", tmp_path)
    monkeypatch.setattr(demo, "_OUT", tmp_path / "demo")
    return tmp_path / "demo"


@pytest.fixture
def target(e2e_cluster: Installed) -> Iterator[Installed]:
    """The cluster, without the demo's namespace afterwards."""
    yield e2e_cluster
    Kube(e2e_cluster.target.kubeconfig, "demo").delete_namespace()


def test_demo_survives_its_faults_and_reports_every_second(
    target: Installed, shorter: Path
) -> None:
    """Exit code 0, a report whose times add up, the losses of a run that was never hit."""
    said = io.StringIO()
    code = demo.Demo(Console(file=said, width=120))._run_on(target.target)
    assert code == 0, said.getvalue()
    report = json.loads((shorter / "report.json").read_text())
    assert report["succeeded"] is True
    assert report["problems"] == []
    assert {*report["seconds"]} <= {kind.value for kind in TimeType}
    assert sum(report["seconds"].values()) == pytest.approx(report["wallSeconds"], abs=TOLERANCE_S)
    killed, deleted = report["incidents"]
    assert (killed["cause"], killed["rung"]) == ("process", "R0")
    assert (deleted["cause"], deleted["rung"]) == ("preemption", "R2")
    assert [int(step) for step in report["losses"]] == [*range(1, _STEPS + 1)]
    assert report["losses"][str(_STEPS)] < report["losses"]["1"]
    assert (shorter / "timeline.png").read_bytes().startswith(b"\x89PNG")
    for words in ("SIGKILL a trainer", "delete a worker pod", "Where every second went"):
        assert words in said.getvalue()
