"""Agents and coordinators of releases side by side: the protocol that both know."""

from __future__ import annotations

import pytest

from tests.agent.rig import TOKEN
from tpujob_agent import handshake
from tpujob_agent.handshake import AgentSide
from tpujob_agent.protocol import Challenge, Hello


def _speaks(monkeypatch: pytest.MonkeyPatch, oldest: int, newest: int) -> None:
    monkeypatch.setattr(handshake, "OLDEST_PROTOCOL", oldest)
    monkeypatch.setattr(handshake, "PROTOCOL_VERSION", newest)


@pytest.mark.parametrize(
    ("agent", "coordinator", "common"),
    [((1, 1), (1, 1), 1), ((1, 2), (1, 1), 1), ((1, 1), (1, 2), 1), ((2, 3), (1, 2), 2),
     ((1, 2), (2, 3), 2), ((3, 4), (1, 2), None), ((1, 2), (3, 4), None)],
)  # fmt: skip
def test_peers_one_release_apart_understand_each_other(
    monkeypatch: pytest.MonkeyPatch,
    agent: tuple[int, int],
    coordinator: tuple[int, int],
    common: int | None,
) -> None:
    """They speak the newest protocol that both know; two releases apart there is none."""
    _speaks(monkeypatch, *agent)
    assert handshake.common_protocol(*coordinator) == common


def test_an_agent_says_hello_in_the_older_protocol_or_why_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The coordinator's range is in its challenge."""
    _speaks(monkeypatch, 2, 3)

    def hello(theirs: tuple[int, int]) -> int:
        said = []

        def introduce(nonce: str, version: int) -> Hello:
            said.append(version)
            return Hello(0, 0, "p", "n", "ip", "i", 1, 1, version, nonce)

        AgentSide(TOKEN, introduce).answer(Challenge("ab", theirs[1], theirs[0]))
        return said[0]

    assert hello((1, 2)) == 2
    with pytest.raises(handshake.ForgedError, match="use images of one release"):
        hello((4, 5))
