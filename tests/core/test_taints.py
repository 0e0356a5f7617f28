"""Taints on suspected nodes: few, in time, and for what is no program's fault."""

from __future__ import annotations

import pytest

from tests.core.histories import CREATED_MS, loss, progress
from tests.core.world import START_MS
from tpujob_operator.core.history import History
from tpujob_operator.core.memory import Memory
from tpujob_operator.core.nodes import NodeView
from tpujob_operator.core.suspects import DAY_MS, Suspect
from tpujob_operator.core.taints import Taints, agreed, plan_taints, suspects_for_all, with_taint

NOW = START_MS
OTHER = {"key": "google.com/tpu", "value": "present", "effect": "NoSchedule"}


def suspect(name: str, until_ms: int = NOW + 10) -> Suspect:
    """A node that some job suspects."""
    return Suspect(name, "x", 0, until_ms)


def nodes(number: int = 20, **tainted: int) -> list[NodeView]:
    """So many nodes, some of them tainted until then."""
    names = [f"n{i}" for i in range(number)]
    return [NodeView(name, "u", 0, suspected_until_ms=tainted.get(name, 0)) for name in names]


@pytest.mark.parametrize(
    ("suspects", "present", "planned"),
    [
        ([suspect("n1")], nodes(), Taints({"n1": NOW + 10})),
        ([suspect("n1")], nodes(9), Taints()),  # one in ten of nine is none
        ([suspect("n1")], nodes(n1=NOW + 5), Taints()),  # it stands until its time is over
        ([suspect("n1")], nodes(n1=NOW), Taints({}, ("n1",))),
        ([suspect("elsewhere"), suspect("n1", NOW)], nodes(), Taints()),
        (
            [suspect("n1"), suspect("n2", NOW + 30), suspect("n3", NOW + 20)],
            nodes(),
            Taints({"n2": NOW + 30, "n3": NOW + 20}),
        ),
        ([suspect("n1"), suspect("n2")], nodes(n5=NOW + 1, n6=NOW + 1), Taints()),
        ([suspect("n1")], nodes(n5=NOW + 1, n6=NOW), Taints({"n1": NOW + 10}, ("n6",))),
        ([suspect("n1"), suspect("n1", NOW + 30)], nodes(), Taints({"n1": NOW + 30})),
    ],
)
def test_one_node_in_ten_at_most(
    suspects: list[Suspect], present: list[NodeView], planned: Taints
) -> None:
    """Those that are suspect for longest come first; a taint that stands keeps its place."""
    assert plan_taints(suspects, present, NOW) == planned


def test_one_namespace_alone_taints_nothing() -> None:
    """What a job tells of its hosts may be made up, by all jobs of one tenant alike."""
    alone = [("a", suspect("n1")), ("a", suspect("n1", NOW + 30)), ("b", suspect("n2"))]
    assert agreed(alone) == ()
    both = [*alone, ("b", suspect("n1", NOW + 20)), ("c", suspect("n1", NOW + 5))]
    assert agreed(both) == (suspect("n1", NOW + 20),)


def test_other_taints_stay() -> None:
    """Ours is added once, and taken away alone."""
    once = with_taint([OTHER], NOW)
    assert with_taint(once, NOW) == once
    assert once[0] == OTHER
    assert with_taint(once, 0) == [OTHER]


def test_the_view_reads_what_was_written() -> None:
    """To the second; what somebody else wrote there is over."""
    meta = {"name": "n", "uid": "u", "creationTimestamp": "2026-01-01T00:00:00Z"}
    for value, until_ms in ((str(NOW // 1000), NOW), ("soon", 1)):
        taint = {"key": "tpujob.dev/suspected", "value": value, "effect": "NoSchedule"}
        view = NodeView.of({"metadata": meta, "spec": {"taints": [OTHER, taint]}})
        assert view.suspected_until_ms == until_ms


@pytest.mark.parametrize(
    ("cause", "is_suspect"), [("node", True), ("straggler", True), ("process", False)]
)
def test_programs_that_die_taint_no_node(cause: str, is_suspect: bool) -> None:
    """The job itself avoids the node then; others may have a better program."""
    history, at = History.start(CREATED_MS), CREATED_MS + DAY_MS
    for at_ms in (at, at + 60_000):
        history = history.apply(loss(at_ms, at_ms, cause=cause, node="n"))
        history = history.apply(progress(at_ms + 1_000, 1, 2))
    assert bool(suspects_for_all(history, Memory(), at + 120_000)) is is_suspect
