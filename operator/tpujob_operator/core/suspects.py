"""Nodes that the next attempt of a job avoids: struck twice within a day, or dead."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

from tpujob_agent.protocol import Cause
from tpujob_operator.core.incidents import Incident
from tpujob_operator.core.stored import items, known_fields

#: Incidents of which a node may be the reason.
_BLAMED = frozenset({Cause.NODE, Cause.HANG, Cause.PROCESS, Cause.STRAGGLER})
#: So many of them, independent of each other and within this time, make a node suspect.
_STRIKES = 2
DAY_MS = 86_400_000
_MOST = 16


@dataclasses.dataclass(frozen=True, slots=True)
class Suspect:
    """A node to be avoided."""

    name: str
    reason: str
    since_ms: int
    until_ms: int
    pool: str = ""  # a slice of several hosts has a node pool to itself, and avoids the whole


@dataclasses.dataclass(frozen=True, slots=True)
class Avoided:
    """What the worker pods of an attempt keep away from."""

    nodes: tuple[str, ...] = ()
    pools: tuple[str, ...] = ()

    @classmethod
    def of(cls, suspects: Iterable[Suspect]) -> Avoided:
        """Nodes and pools of suspects."""
        known = tuple(suspects)
        return cls(
            tuple(sorted({item.name for item in known})),
            tuple(sorted({item.pool for item in known if item.pool})),
        )


def dead(name: str, pool: str, proof: str, now_ms: int) -> Suspect:
    """A node that is dead for certain; it is suspect until it is ready again, or deleted."""
    return Suspect(name, proof, now_ms, now_ms + DAY_MS, pool)


def struck(
    incidents: Iterable[Incident], pools: Mapping[str, str], since_ms: int, now_ms: int
) -> tuple[Suspect, ...]:
    """Nodes with repeated incidents, none of which was over when the next one came.

    Args:
        incidents: oldest first.
        pools: node pools by node, as far as they are known.
        since_ms: what was before is forgiven.
        now_ms: the time.
    """
    strikes: dict[str, list[Incident]] = {}
    for incident in incidents:
        known = strikes.get(incident.node, [])
        is_recent = incident.at_ms > max(since_ms, now_ms - DAY_MS)
        is_other = not known or 0 <= known[-1].recovered_after_ms < incident.at_ms - known[-1].at_ms
        if incident.node and incident.cause in _BLAMED and is_recent and is_other:
            strikes[incident.node] = [*known, incident]
    return tuple(
        _struck(name, items, pools.get(name, ""))
        for name, items in strikes.items()
        if len(items) >= _STRIKES
    )


def _struck(name: str, items: list[Incident], pool: str) -> Suspect:
    causes = ", ".join(item.cause.value for item in items)
    reason = f"{len(items)} incidents within 24 h: {causes}"
    return Suspect(name, reason, items[-1].at_ms, items[-_STRIKES].at_ms + DAY_MS, pool)


def merged(*groups: Iterable[Suspect]) -> tuple[Suspect, ...]:
    """One entry for each node, the longest suspicion; in the order of their names."""
    by_name: dict[str, Suspect] = {}
    for suspect in (item for group in groups for item in group):
        known = by_name.get(suspect.name)
        if known is None or suspect.until_ms > known.until_ms:
            by_name[suspect.name] = suspect
    newest = sorted(by_name.values(), key=lambda item: item.until_ms)[-_MOST:]
    return tuple(sorted(newest, key=lambda item: item.name))


def to_json(suspects: Iterable[Suspect]) -> list[dict[str, Any]]:
    """A JSON array from which ``from_json`` makes equal suspects."""
    return [dataclasses.asdict(item) for item in suspects]


def from_json(raw: object) -> tuple[Suspect, ...]:
    """Inverse of ``to_json``; keys of other versions are ignored."""
    return tuple(Suspect(**known_fields(Suspect, item)) for item in items(raw))
