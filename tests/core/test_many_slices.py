"""Jobs of many slices: what a decision costs grows with their number, and not with its square."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import pytest

from tests.core.stories import training
from tpujob_operator.core.decide import decide


class _Counted(tuple[Any, ...]):
    """A tuple that counts how often somebody goes through it."""

    __slots__ = ()
    walks = 0

    def __iter__(self) -> Iterator[Any]:
        _Counted.walks += 1
        return super().__iter__()


def _walks(monkeypatch: pytest.MonkeyPatch, **spec: Any) -> int:
    """How often a decision about a job goes through all its pods, Jobs or tombstones."""
    monkeypatch.setattr(_Counted, "walks", 0)
    world = training(**spec)
    seen = world.snapshot()
    counted = dataclasses.replace(
        seen,
        pods=_Counted(seen.pods),
        jobs=_Counted(seen.jobs),
        tombstones=_Counted(seen.tombstones),
    )
    decide(counted, world.now_ms)
    return _Counted.walks


@pytest.mark.parametrize("spec", [{}, {"recovery": {"pods": "Recreate"}}])
def test_decisions_do_not_look_at_all_pods_for_each_slice(
    monkeypatch: pytest.MonkeyPatch, spec: dict[str, Any]
) -> None:
    """At a thousand slices that were a million looks in every pass."""
    few = _walks(monkeypatch, slices=3, **spec)
    assert few == _walks(monkeypatch, slices=40, **spec) > 0
