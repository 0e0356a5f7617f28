"""The results as a table for people; what its figures mean is said below it."""

from __future__ import annotations

from collections.abc import Sequence

from bench.recovery.measure import Recovery, quantile
from bench.recovery.runner import SAME, TITLES
from bench.recovery.systems import SYSTEMS

MEANING = """\
noticed: seconds from the fault until this operator's coordinator knew of it.
first step: seconds from the fault to the first finished step of the world that goes on.
new step: seconds from the fault to a step that had never been finished before.
lost: steps to do again. Each cell: p50, p95 (nearest rank) and n; "never": not within the limit."""


def rows(found: Sequence[Recovery]) -> list[list[str]]:
    """One row for each fault and system, with the heading first."""
    table = [["fault", "system", "noticed, s", "first step, s", "new step, s", "lost", "load"]]
    for fault, title in TITLES.items():
        for key, system in SYSTEMS.items():
            these = [one for one in found if (one.fault, one.system) == (fault, key)]
            if these:
                table.append([title, system.title, *_cells(these)])
            elif fault in SAME and not system.is_ours and any(one.system == key for one in found):
                table.append([title, system.title, f"as {TITLES[SAME[fault]]}", *[""] * 4])
    return table


def markdown(found: Sequence[Recovery]) -> str:
    """The table as Markdown."""
    heading, *body = rows(found)
    lines = [heading, ["---"] * len(heading), *body]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _cells(these: Sequence[Recovery]) -> list[str]:
    limit_s = max(one.limit_s for one in these)
    lost = [one.lost_steps for one in these if one.lost_steps is not None]
    loads = [one.load for one in these]
    noticed = [one.noticed_s for one in these if one.noticed_s is not None]
    return [
        _seconds([*noticed], limit_s) if noticed else "",
        _seconds([one.first_step_s for one in these], limit_s),
        _seconds([one.new_step_s for one in these], limit_s),
        f"{min(lost)}-{max(lost)}" if lost else "",
        f"{min(loads):.0f}-{max(loads):.0f}",
    ]


def _seconds(values: Sequence[float | None], limit_s: float) -> str:
    known = [value for value in values if value is not None]
    if not known:
        return f"never (watched {limit_s:.0f} s), n {len(values)}"
    shown = f"{quantile(known, 0.5):.1f}, {quantile(known, 0.95):.1f}, n {len(values)}"
    never = len(values) - len(known)
    return f"{shown}; {never} never" if never else shown
