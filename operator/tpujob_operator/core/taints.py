"""Nodes that are kept from all jobs for a while, where the administrator wants that."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from tpujob_agent.protocol import Cause
from tpujob_operator.core.history import History
from tpujob_operator.core.memory import Memory
from tpujob_operator.core.nodes import SUSPECT_TAINT, NodeView
from tpujob_operator.core.suspects import Suspect, merged, struck

#: What a job tells of its hosts may be made up: so many namespaces must agree on a node.
_WITNESSES = 2
#: Not more than one TPU node in so many.
_ONE_IN = 10
#: A program that dies on the same host each time is no reason to keep others from it.
_CAUSES = (Cause.NODE, Cause.HANG, Cause.STRAGGLER)

Taint = Mapping[str, Any]


@dataclasses.dataclass(frozen=True, slots=True)
class Taints:
    """What is to be changed."""

    add: Mapping[str, int] = dataclasses.field(default_factory=dict)  # node → until, in ms
    remove: tuple[str, ...] = ()


def suspects_for_all(history: History, memory: Memory, now_ms: int) -> tuple[Suspect, ...]:
    """Nodes that one job suspects and others had better avoid, too."""
    incidents = [item for item in history.incidents.newest if item.cause in _CAUSES]
    return struck(incidents, {}, memory.forgiven_ms, now_ms)


def agreed(suspects: Iterable[tuple[str, Suspect]]) -> tuple[Suspect, ...]:
    """Nodes that jobs of several namespaces suspect, each for as long as the second-longest does.

    Args:
        suspects: each with the namespace of the job that suspects it.
    """
    by_node: dict[str, dict[str, Suspect]] = {}
    for namespace, suspect in suspects:
        (longest,) = merged([suspect], [by_node.get(suspect.name, {}).get(namespace, suspect)])
        by_node.setdefault(suspect.name, {})[namespace] = longest
    ordered = (
        sorted(found.values(), key=lambda item: -item.until_ms) for found in by_node.values()
    )
    return tuple(found[_WITNESSES - 1] for found in ordered if len(found) >= _WITNESSES)


def plan_taints(suspects: Iterable[Suspect], nodes: Collection[NodeView], now_ms: int) -> Taints:
    """Taints to add and to remove; one that stands keeps its place until its time is over."""
    tainted = {node.name: node.suspected_until_ms for node in nodes if node.suspected_until_ms}
    ended = tuple(sorted(name for name, until_ms in tainted.items() if until_ms <= now_ms))
    free = len(nodes) // _ONE_IN - (len(tainted) - len(ended))
    names = {node.name for node in nodes} - tainted.keys()
    wanted = sorted(merged(suspects), key=lambda item: (-item.until_ms, item.name))
    added = [item for item in wanted if item.name in names and item.until_ms > now_ms]
    return Taints({item.name: item.until_ms for item in added[: max(0, free)]}, ended)


def with_taint(taints: Iterable[Taint], until_ms: int) -> list[Taint]:
    """A node's taints with ours until then; 0: without it."""
    others = [taint for taint in taints if taint["key"] != SUSPECT_TAINT]
    if not until_ms:
        return others
    ours = {"key": SUSPECT_TAINT, "value": str(until_ms // 1000), "effect": "NoSchedule"}
    return [*others, ours]
