"""Alerts call when they should and at no other time: run by Prometheus' own promtool."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import yaml

from monitoring import alerts, dashboards, reference, rules
from monitoring.__main__ import outputs
from tests.e2e.prometheus import RULES, program
from tpujob_operator.api import generated
from tpujob_operator.core import families

ROOT = Path(__file__).parents[2]
_J = 'namespace="n",job="j"'
_RUNNING = {f'tpujob_info{{{_J},state="Running"}}': "1x9000"}
_HEALTHY = {
    "tpujob_operator_queue_depth": "0x9000",
    'tpujob_operator_leader{pod="a"}': "1x9000",
    'tpujob_operator_leader{pod="b"}': "0x9000",
    "tpujob_operator_queue_age_seconds": "0x9000",
    "tpujob_operator_watch_age_seconds": "200x9000",
    "tpujob_operator_silent_coordinators": "0x9000",
    'tpujob_operator_api_calls_total{code="200"}': "0+100x9000",
}


class Case(NamedTuple):
    """Series by minute, and which alerts are firing at some moment."""

    what: str
    series: Mapping[str, str]
    at: str
    firing: frozenset[str] = frozenset()


def _case(what: str, at: str, series: dict[str, str], *firing: str) -> Case:
    return Case(what, _HEALTHY | series, at, frozenset(f"TPUJob{name}" for name in firing))


def _times(objective: float | None = None, **per_minute: float) -> dict[str, str]:
    found = {
        f'tpujob_time_seconds_total{{{_J},type="{kind}"}}': f"0+{rate}x9000"
        # All types have a series from a job's beginning.
        for kind, rate in {"productive": 0.0, **per_minute}.items()
    }
    found[f"tpujob_unsettled_seconds{{{_J}}}"] = "0x9000"
    if objective is not None:
        found[f'tpujob_objective_ratio{{{_J},objective="goodput"}}'] = f"{objective}x9000"
    return found


def _quiet(state: str, step_s: float = 1) -> dict[str, str]:
    return {
        f"tpujob_last_progress_timestamp_seconds{{{_J}}}": "0x9000",
        f"tpujob_step_seconds{{{_J}}}": f"{step_s}x9000",
        f'tpujob_info{{{_J},state="{state}"}}': "1x9000",
    }


def _incidents(count: str, cause: str = "hang") -> dict[str, str]:
    return {f'tpujob_incidents_total{{{_J},cause="{cause}",rung="R0"}}': count}


def _recoveries(newest_s: float) -> dict[str, str]:
    name = f'{{{_J},stage="total"}}'
    return {
        f"tpujob_recovery_duration_seconds_sum{name}": f"100x180 {100 + newest_s}x30",
        f"tpujob_recovery_duration_seconds_count{name}": "10x180 11x30",
    }


_MFU = {f"tpujob_mfu_ratio{{{_J}}}": "0.3x9000"}
_SLOW_HOST = f'tpujob_host_slowdown_ratio{{{_J},host="0-1",signal="input"}}'
_BUDGET = f'tpujob_restart_budget_used_ratio{{{_J},budget="process"}}'
_BURNS = tuple(f"GoodputBurn{burn.name.capitalize()}" for burn in rules.BURNS)

CASES = [
    _case("all is well", "10m", _quiet("Running") | _times(0.9, productive=60)),
    _case("no step for 20 minutes", "20m", _quiet("Running"), "NoProgress"),
    _case("no step for 10 minutes", "10m", _quiet("Running")),
    _case("steps take two minutes", "20m", _quiet("Running", 120)),
    _case("suspended", "20m", _quiet("Suspended")),
    _case("never a step", "40m", _RUNNING | _times(image=60), "NoProgress"),
    _case("no nodes yet", "40m", _RUNNING | _times(provisioning=60)),
    _case("all is badput", "2h", _times(0.9, provisioning=60), *_BURNS),
    _case("burns are reachable at any objective", "2h", _times(0.2, image=60), *_BURNS),
    _case("twice the budget", "12h", _times(0.9, productive=48, compile=12), _BURNS[-1]),
    _case("four times the budget", "12h", _times(0.9, productive=36, compile=24), *_BURNS[2:]),
    _case("within the budget", "12h", _times(0.9, productive=55, compile=5)),
    _case("objective far below", "12h", _times(0.4, productive=30, compile=30)),
    _case("nobody asks for goodput", "2h", _times(provisioning=60)),
    _case("a queue is nobody's badput", "2h", _times(0.9, queued=60)),
    _case(
        "steps that are not saved yet",
        "2h",
        _times(0.9, productive=0) | {f"tpujob_unsettled_seconds{{{_J}}}": "0+60x9000"},
    ),
    _case("a first hang", "15m", _incidents("_x10 1x90"), "Hang"),
    _case("a hang long ago", "90m", _incidents("_x10 1x90")),
    _case("a crash", "15m", _incidents("_x10 1x90", "process")),
    _case(
        "a hang that lasts", "5m", {f'tpujob_open_incidents{{{_J},cause="hang"}}': "1x9"}, "Hang"
    ),
    _case("a slow recovery", "190m", _recoveries(200), "RecoverySlow"),
    _case("a recovery like others", "190m", _recoveries(15)),
    _case("MFU below half", "15m", _MFU, "LowMFU"),
    _case(
        "MFU as wanted",
        "15m",
        _MFU | {f'tpujob_objective_ratio{{{_J},objective="mfu"}}': "0.25x90"},
    ),
    _case("a slow host", "10m", {_SLOW_HOST: "1.3x90"}, "Straggler"),
    _case("a host that was slow for a moment", "10m", {_SLOW_HOST: "1.3x3 1.0x90"}),
    _case("budget nearly spent", "1m", {_BUDGET: "0.85x9"}, "BudgetNearlySpent"),
    _case("budget half spent", "1m", {_BUDGET: "0.5x9"}),
    _case(
        "time without a type",
        "1m",
        _times(productive=60, unattributed=1),
        "UnattributedTime",
    ),
    Case("no operator", {}, "10m", frozenset({"TPUJobOperatorDown"})),
    _case(
        "nobody leads",
        "10m",
        {'tpujob_operator_leader{pod="a"}': "0x90"},
        "OperatorWithoutLeader",
    ),
    _case("blind", "5m", {"tpujob_operator_watch_age_seconds": "1000x9"}, "OperatorBlind"),
    _case("stuck", "10m", {"tpujob_operator_queue_age_seconds": "100x99"}, "OperatorStuck"),
    _case(
        "API errors",
        "30m",
        {'tpujob_operator_api_calls_total{code="500"}': "0+50x90"},
        "OperatorApiErrors",
    ),
    _case(
        "silent coordinators",
        "10m",
        {"tpujob_operator_silent_coordinators": "2x99"},
        "CoordinatorUnreadable",
    ),
]


def _promtool(*arguments: str | Path) -> str:
    done = subprocess.run(
        [program("promtool"), *arguments], check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_generated_files_are_up_to_date() -> None:
    """Nobody has changed a source, or a generated file, without `make gen`."""
    assert generated.drifted(ROOT, outputs()) == []


def test_rules_are_valid() -> None:
    """Prometheus takes the file, expressions and templates included."""
    assert f"{len(rules.recording()) + len(alerts.ALERTS)} rules found" in _promtool(
        "check", "rules", RULES
    )


def test_alerts_call_when_they_should(tmp_path: Path) -> None:
    """In every case exactly the expected alerts are firing."""
    tests = [
        {
            "name": case.what,
            "interval": "1m",
            "input_series": [
                {"series": name, "values": values} for name, values in case.series.items()
            ],
            "promql_expr_test": [
                {
                    "expr": 'count by (alertname) (ALERTS{alertstate="firing"})',
                    "eval_time": case.at,
                    "exp_samples": [
                        {"labels": f'{{alertname="{name}"}}', "value": 1} for name in case.firing
                    ],
                }
            ],
        }
        for case in CASES
    ]
    path = tmp_path / "tests.yaml"
    document = {"rule_files": [str(RULES)], "evaluation_interval": "1m", "tests": tests}
    path.write_text(yaml.safe_dump(document))
    _promtool("test", "rules", path)


def test_every_alert_has_a_case() -> None:
    """No alert is shipped that was never seen firing."""
    assert {name for case in CASES for name in case.firing} == {a.name for a in alerts.ALERTS}


def test_runbook_has_a_section_for_each_alert() -> None:
    """The address in an alert's annotation leads to its section."""
    text = alerts.runbook("note")
    for alert in alerts.ALERTS:
        anchor = alert.rule()["annotations"]["runbook_url"].rpartition("#")[2]
        assert anchor in {head.lower() for head in re.findall(r"^## (\w+)$", text, re.MULTILINE)}


def _expressions() -> list[str]:
    shown = [query for _, text in dashboards.outputs() for _, query in dashboards.queries(text)]
    document = yaml.safe_load(RULES.read_text())
    return shown + [rule["expr"] for group in document["groups"] for rule in group["rules"]]


def test_nobody_asks_for_a_metric_that_nobody_has() -> None:
    """All names in alerts and panels are declared families, recorded ones, or the detector's."""
    known = {"tpujob_host_slowdown_ratio", *(rule["record"] for rule in rules.recording())}
    for family in (*families.OF_JOBS, *families.OF_OPERATOR, *reference.of_coordinator()):
        known |= {f"{family.series}{end}" for end in ("", "_sum", "_count", "_bucket")}
    named = re.findall(r"\b(?:\w+:)?tpujob_\w+(?::\w+)?", " ".join(_expressions()))
    assert set(named) <= known


def test_panels_ask_in_good_promql(tmp_path: Path) -> None:
    """Every query of every dashboard can be parsed."""
    shown = [query.replace("$__rate_interval", "1m") for query in _expressions()]
    found = [{"record": f"r:{place}", "expr": query} for place, query in enumerate(shown)]
    path = tmp_path / "queries.yaml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "g", "rules": found}]}))
    assert f"{len(found)} rules found" in _promtool("check", "rules", path)


def test_dashboards_have_names_of_their_own() -> None:
    """Grafana knows a dashboard by its uid; every panel has a title and a place of its own."""
    boards = [json.loads(text) for _, text in dashboards.outputs()]
    assert len({board["uid"] for board in boards}) == len(boards) == 5
    for board in boards:
        assert all(p["gridPos"]["x"] + p["gridPos"]["w"] <= 24 for p in board["panels"])
        places = {(p["gridPos"]["x"], p["gridPos"]["y"]) for p in board["panels"]}
        assert len(places) == len({p["title"] for p in board["panels"]}) == len(board["panels"])
