"""What the dashboards show: a panel is a title, queries and a unit."""

from __future__ import annotations

import enum
from typing import NamedTuple

from monitoring.rules import BUDGET, FLEET_GOODPUT, badput
from tpujob_operator.core import families as f


class Shape(enum.Enum):
    """How a panel is drawn."""

    CURVES = "curves"
    STACK = "stack"
    NUMBER = "number"
    BARS = "bars"


class Query(NamedTuple):
    """An expression, and the legend of its series."""

    expr: str
    legend: str = ""


class Panel(NamedTuple):
    """One panel; ``unit`` is Grafana's name of it."""

    title: str
    shape: Shape
    unit: str
    queries: tuple[Query, ...]


class Board(NamedTuple):
    """One dashboard; ``of_job``: it shows the job that is chosen above it."""

    name: str
    title: str
    about: str
    panels: tuple[Panel, ...]
    of_job: bool = True


_JOB = 'namespace="$namespace",job="$job"'
_RATE = "[$__rate_interval]"


def _of(series: str, more: str = "") -> str:
    return f"{series}{{{_JOB}{',' if more else ''}{more}}}"


def _curves(title: str, unit: str, *queries: tuple[str, str]) -> Panel:
    return Panel(title, Shape.CURVES, unit, tuple(Query(*query) for query in queries))


def _stack(title: str, unit: str, expr: str, legend: str) -> Panel:
    return Panel(title, Shape.STACK, unit, (Query(expr, legend),))


def _number(title: str, unit: str, expr: str) -> Panel:
    return Panel(title, Shape.NUMBER, unit, (Query(expr),))


def _bars(title: str, unit: str, expr: str, legend: str) -> Panel:
    return Panel(title, Shape.BARS, unit, (Query(expr, legend),))


_STAGE_SUM = f"sum by (stage) ({_of(f.RECOVERY.name + '_sum')})"
_STAGE_COUNT = f"sum by (stage) ({_of(f.RECOVERY.name + '_count')})"
_DURATIONS = f"sum by (le) (rate({f.RECONCILE_TIME.name}_bucket{_RATE}))"

FLEET = Board(
    "fleet",
    "TPU jobs: fleet",
    "All training jobs: what they hold, what it costs, and what it is worth.",
    (
        _number("Jobs", "short", f"count({f.INFO.series})"),
        _number("Goodput of all chips", "percentunit", FLEET_GOODPUT),
        _number("Chips held", "short", f"sum({f.CHIPS.series})"),
        _number("Cost of the jobs there are", "currencyUSD", f"sum({f.COST.series})"),
        _bars("Jobs by state", "short", f"count by (state) ({f.INFO.series})", "{{state}}"),
        _stack(
            "What chips are spent on",
            "short",
            f"sum by (type) (rate({f.CHIP_TIME.series}{_RATE})) > 0",
            "{{type}}",
        ),
        _curves("Goodput by job", "percentunit", (f.GOODPUT.series, "{{namespace}}/{{job}}")),
        _bars(
            "Incidents by cause",
            "short",
            f"sum by (cause) ({f.INCIDENTS.series})",
            "{{cause}}",
        ),
        _curves(
            "Seconds since the last step",
            "s",
            (f"time() - {f.LAST_PROGRESS.series}", "{{namespace}}/{{job}}"),
        ),
    ),
    of_job=False,
)
JOB = Board(
    "job",
    "TPU jobs: one job",
    "How far a job is, how fast, and where its time goes.",
    (
        _number("Goodput", "percentunit", _of(f.GOODPUT.series)),
        _number("Step", "short", _of(f.STEP.series)),
        _number("Cost", "currencyUSD", _of(f.COST.series)),
        _number("Since the last step", "s", f"time() - {_of(f.LAST_PROGRESS.series)}"),
        _bars(
            "Where the time went",
            "s",
            f"sum by (type) ({_of(f.TIME.series)}) > 0",
            "{{type}}",
        ),
        _stack(
            "Where the time goes",
            "percentunit",
            f"sum by (type) (rate({_of(f.TIME.series)}{_RATE})) > 0",
            "{{type}}",
        ),
        _curves(
            "Badput of the last five minutes, and what the objective allows",
            "percentunit",
            (_of(badput("5m")), "badput"),
            (_of(BUDGET), "allowed"),
        ),
        _curves(
            "Steps",
            "short",
            (_of(f.STEP.series), "step"),
            (_of(f.CHECKPOINT_STEP.series), "saved"),
        ),
        _curves("Loss", "short", (_of(f.LOSS.series), "loss")),
        _curves("Tokens per second", "short", (_of(f.TOKENS_PER_SECOND.series), "tokens/s")),
        _curves("Time of a step", "s", (_of(f.STEP_TIME.series), "step")),
        _curves(
            "MFU",
            "percentunit",
            (_of(f.MFU.series), "MFU"),
            (_of(f.OBJECTIVE.series, 'objective="mfu"'), "wanted"),
        ),
        _curves("Time not settled yet", "s", (_of(f.UNSETTLED.series), "unsettled")),
        _curves(
            "Saves",
            "s",
            (_of(f.CHECKPOINT_BLOCKED.series), "held training up"),
            (_of(f.CHECKPOINT_LAG.series), "until durable"),
            (_of(f.CHECKPOINT_INTERVAL.series), "planned interval"),
        ),
    ),
)
RECOVERY = Board(
    "recovery",
    "TPU jobs: recovery",
    "What happened to a job, and what each recovery consisted of.",
    (
        _bars(
            "Incidents",
            "short",
            f"sum by (cause, rung) ({_of(f.INCIDENTS.series)})",
            "{{cause}} {{rung}}",
        ),
        _curves("Incidents under way", "short", (_of(f.OPEN_INCIDENTS.series), "{{cause}}")),
        _bars("Mean time of a recovery", "s", f"{_STAGE_SUM} / {_STAGE_COUNT}", "{{stage}}"),
        _curves(
            "Steps lost and kept",
            "short",
            (_of(f.STEPS.series), "{{result}}"),
        ),
        _curves(
            "Time lost",
            "s",
            (_of(f.TIME.series, 'type=~"rollback|detection|teardown|restore"'), "{{type}}"),
        ),
        _curves("Budgets spent", "percentunit", (_of(f.BUDGET_USED.series), "{{budget}}")),
        _curves("Worlds formed", "short", (_of("tpujob_coordinator_generation"), "generation")),
    ),
)
HOSTS = Board(
    "hosts",
    "TPU jobs: hosts",
    "The hosts of a job: who is there, and who keeps the others waiting.",
    (
        _curves("Agents that are present", "short", (_of("tpujob_coordinator_members"), "agents")),
        _curves("Slices", "short", (_of(f.SLICES.series), "{{kind}}")),
        _curves("Chips held", "short", (_of(f.CHIPS.series), "chips")),
        _curves(
            "What the coordinator is doing",
            "short",
            (f"{_of('tpujob_coordinator_stage')} > 0", "{{stage}}"),
        ),
        _curves(
            "Slowdown against the peers",
            "short",
            (_of("tpujob_host_slowdown_ratio"), "{{host}} {{signal}}"),
        ),
    ),
)
OPERATOR = Board(
    "operator",
    "TPU jobs: operator",
    "Whether the operator keeps up.",
    (
        _number("Jobs", "short", f"count({f.INFO.series})"),
        _number("Jobs that wait for a worker", "short", f"sum({f.QUEUE_DEPTH.series})"),
        _number("Coordinators that cannot be read", "short", f"sum({f.SILENT.series})"),
        _number("Age of the picture of the cluster", "s", f"max({f.WATCH_AGE.series})"),
        _curves("Longest wait for a worker", "s", (f"max({f.QUEUE_AGE.series})", "wait")),
        _curves("Replica that acts", "short", (f.LEADER.series, "{{pod}}")),
        _curves(
            "Passes over jobs",
            "ops",
            (f"sum by (result) (rate({f.RECONCILES.series}{_RATE}))", "{{result}}"),
        ),
        _curves(
            "Duration of passes",
            "s",
            (f"histogram_quantile(0.5, {_DURATIONS})", "median"),
            (f"histogram_quantile(0.99, {_DURATIONS})", "99 %"),
        ),
        _stack(
            "Calls of the API",
            "ops",
            f"sum by (verb, resource, code) (rate({f.API_CALLS.series}{_RATE})) > 0",
            "{{verb}} {{resource}} {{code}}",
        ),
    ),
    of_job=False,
)
BOARDS = (FLEET, JOB, RECOVERY, HOSTS, OPERATOR)
