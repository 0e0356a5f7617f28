"""What the agent reads about killings for lack of memory, from both versions of cgroups."""

from __future__ import annotations

from pathlib import Path

import pytest

from tpujob_agent import memory

_EVENTS = "low 0\nhigh 0\nmax 7\noom 2\noom_kill 2\noom_group_kill 0\n"
_CONTROL = "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n"


@pytest.mark.parametrize(
    ("counter", "text", "limit", "kills"),
    [
        ("memory.events", _EVENTS, "memory.max", 2),
        ("memory/memory.oom_control", _CONTROL, "memory/memory.limit_in_bytes", 3),
    ],
    ids=["v2", "v1"],
)
def test_kills_and_limit_are_read(
    tmp_path: Path, counter: str, text: str, limit: str, kills: int
) -> None:
    """Counter and limit, wherever this version of cgroups keeps them."""
    (tmp_path / "memory").mkdir()
    (tmp_path / counter).write_text(text)
    (tmp_path / limit).write_text(f"{192 << 20}\n")
    assert memory.kills(tmp_path) == kills
    assert memory.limit(tmp_path) == "the container's limit is 192 MiB"


@pytest.mark.parametrize("text", ["max\n", "9223372036854771712\n"])
def test_no_limit_means_the_nodes_memory(tmp_path: Path, text: str) -> None:
    """Both versions have their own way to write that there is none."""
    (tmp_path / "memory.max").write_text(text)
    assert "the node's memory" in memory.limit(tmp_path)


def test_without_cgroups_nobody_counts(tmp_path: Path) -> None:
    """An agent outside a container goes on without."""
    assert memory.kills(tmp_path) == 0
    assert "no limit" in memory.limit(tmp_path)
