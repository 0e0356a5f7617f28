"""The leader's port: told when it is taken, and never opened by who only looks."""

from __future__ import annotations

import socket
from collections.abc import Callable

import pytest

from tpujob_agent import runs


def test_a_taken_port_is_told() -> None:
    """A process that listens there would be taken for the leader."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        assert "in use by another process" in runs.port_problem(f"10.0.0.1:{port}")
        assert runs.await_leader(f"127.0.0.1:{port}", 10.0)
    assert runs.port_problem(f"10.0.0.1:{port}") == ""


def test_looking_for_the_port_opens_it_to_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """Peers that wait for the leader would start too early."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    refused = []
    bind: Callable[[socket.socket, tuple[str, int]], None] = socket.socket.bind

    def bind_and_dial(probe: socket.socket, address: tuple[str, int]) -> None:
        bind(probe, address)
        refused.append(not runs.await_leader(f"127.0.0.1:{port}", 0.05))

    monkeypatch.setattr(socket.socket, "bind", bind_and_dial)
    assert runs.port_problem(f"10.0.0.1:{port}") == ""
    assert refused == [True]
