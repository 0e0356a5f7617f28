"""What came of a simulated job, as numbers, as a table and as JSON."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

from tpujob_operator.core.timetypes import TimeType
from tpujob_operator.sim.faults import DAY_MS
from tpujob_operator.sim.job import Job
from tpujob_operator.sim.scenario import SOURCES, Features, Scenario

#: Groups of badput that a table has room for.
_GROUPS: Mapping[str, tuple[TimeType, ...]] = {
    "lost": (TimeType.ROLLBACK,),
    "saves": (TimeType.CHECKPOINT_STALL,),
    "noticing": (TimeType.DETECTION, TimeType.TEARDOWN, TimeType.BACKOFF),
    "pods": (TimeType.PROVISIONING, TimeType.IMAGE),
    "starting": (TimeType.RUNTIME_INIT, TimeType.RESTORE, TimeType.COMPILE, TimeType.SETUP),
}


@dataclasses.dataclass(frozen=True, slots=True)
class Outcome:
    """One simulated job. Shares are of wall time."""

    name: str
    goodput: float  # productive time by the ledger, whatever the size of the world
    work: float  # steps done, of those that the whole job does in this time undisturbed
    predicted: float  # by the formula of core.interval from what the job measured; 0: unknown
    shares: Mapping[str, float]
    faults: int
    restarts: int
    interval_s: float
    mtbf_s: float

    def to_json(self) -> dict[str, Any]:
        """All of it as a JSON object."""
        return dataclasses.asdict(self) | {"shares": dict(self.shares)}


def simulate(name: str, scenario: Scenario, seed: int) -> Outcome:
    """Run a scenario to its end; equal arguments give equal outcomes."""
    faults = scenario.draw(seed)
    job = Job(scenario)
    job.run(faults)
    view = job.history.ledger.view(job.now_ms)
    booked = view.by_type_ms
    costs = job.core.pacing.measures.costs(scenario.chips)
    return Outcome(
        name=name,
        goodput=view.goodput_ratio,
        work=job.step * scenario.times.step * 1000 / view.wall_ms,
        predicted=costs.goodput(job.interval_ms / 1000) if costs else 0.0,
        shares={
            group: sum(booked.get(kind, 0) for kind in kinds) / view.wall_ms
            for group, kinds in _GROUPS.items()
        },
        faults=len(faults),
        restarts=job.history.incidents.restarts,
        interval_s=job.interval_ms / 1000,
        mtbf_s=costs.mtbf_s if costs else 0.0,
    )


def ladder(scenario: Scenario, rungs: Mapping[str, Features], seed: int) -> list[Outcome]:
    """The same faults met with more and more features."""
    return [
        simulate(name, dataclasses.replace(scenario, features=features), seed)
        for name, features in rungs.items()
    ]


def table(outcomes: Iterable[Outcome]) -> str:
    """A Markdown table; shares in percent, worth in points over the row above."""
    groups = list(_GROUPS)
    head = ["what the product does", "work done", "worth", "goodput", "formula", *groups]
    head += ["restarts", "interval"]
    lines = [_row(head), _row(["---", *["---:"] * (len(head) - 1)])]
    before: float | None = None
    for outcome in outcomes:
        worth = "" if before is None else f"{100 * (outcome.work - before):+.2f}"
        before = outcome.work
        cells = [outcome.name, _percent(outcome.work), worth]
        cells += [_percent(outcome.goodput), _percent(outcome.predicted)]
        cells += [f"{100 * outcome.shares[group]:.2f}" for group in groups]
        lines.append(_row([*cells, str(outcome.restarts), f"{outcome.interval_s:.0f} s"]))
    return "\n".join(lines)


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _percent(share: float) -> str:
    return f"{100 * share:.2f} %"


def title(scenario: Scenario, seed: int) -> str:
    """What is simulated, in a line."""
    faults = scenario.faults
    per_day = faults.per_chip_day * scenario.chips
    unplanned = (
        f"{faults.unplanned} unplanned" if faults.unplanned is not None else f"{per_day:.1f} a day"
    )
    return (
        f"{scenario.name}: {scenario.chips:,} chips in {scenario.slices} slices, "
        f"{scenario.duration_ms / DAY_MS:g} days, faults: {unplanned}"
        + (f" and {faults.planned} planned" if faults.planned else "")
        + f", seed {seed}"
    )


def assumptions(scenario: Scenario) -> str:
    """Everything that was put in, with where it comes from."""
    times = scenario.times
    lines = [f"- {name} {getattr(times, name):g} s: {source}." for name, source in SOURCES.items()]
    share = 100 * scenario.faults.host_share
    lines.append(
        f"- {share:.0f} % of the unplanned faults take a host, and with it its slice; the others "
        "are crashes of a process (Llama 3 report: about 78 % hardware)."
    )
    lines.append(
        "- Not simulated: slow hosts, hangs, storage outages, damaged checkpoints, restarts of "
        "coordinator and operator, queueing. Restores come from durable storage only."
    )
    lines.append(
        "- A fault that hits an idle slice costs nothing, and spares do not fail before they are "
        "used: about 2 % fewer restarts in the rows with a spare."
    )
    return "\n".join(lines)
