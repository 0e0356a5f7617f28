"""Coordinators that answer what a job's own program may have made of them."""

from __future__ import annotations

import contextlib
import http.server
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from localcluster.cluster import Cluster
from tests.operator.rig import MEMORY_BYTES, Jobs, OperatorProcess, running
from tests.waiting import wait_until
from tpujob_operator.core.kinds import JOB_SET

pytestmark = pytest.mark.control_plane

_ANSWER_BYTES = 300 << 20
_LIARS = 4


class _Liar(http.server.BaseHTTPRequestHandler):
    """Answers every request with a long epoch; what has been sent of it is counted."""

    protocol_version = "HTTP/1.1"
    answered = 0
    sent = 0

    def do_GET(self) -> None:
        """Say that 300 MB come, and send them until the client is gone."""
        type(self).answered += 1
        begin = b'{"events": [], "last": 0, "nowMs": 1, "epoch": "'
        self.send_response(200)
        self.send_header("Content-Length", str(_ANSWER_BYTES))
        self.end_headers()
        self.wfile.write(begin)
        left = _ANSWER_BYTES - len(begin) - 2
        with contextlib.suppress(ConnectionError):
            while left:
                part = min(left, 1 << 20)
                self.wfile.write(b"x" * part)
                type(self).sent += part
                left -= part
            self.wfile.write(b'"}')

    def log_message(self, *_: object) -> None:
        """Leave standard error alone."""


@pytest.fixture
def liar() -> Iterator[str]:
    """The address at which all coordinators answer 300 MB."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Liar)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def operator(
    control_plane: Cluster, own_jobs: Jobs, tmp_path: Path, liar: str
) -> Iterator[OperatorProcess]:
    """An operator that reaches liars alone."""
    env = {"TPUJOB_COORDINATOR_ACCESS": liar}
    with running(control_plane, tmp_path, own_jobs.namespace, env=env) as process:
        yield process


def test_endless_answers_do_not_fill_the_operators_memory(
    operator: OperatorProcess, own_jobs: Jobs
) -> None:
    """Several jobs answer 300 MB again and again: each says so, and another job starts."""
    names = [f"liar-{number}" for number in range(_LIARS)]
    for name in names:
        own_jobs.create(name)
        own_jobs.run_pods(name, 3)
    for name in names:
        message = own_jobs.wait_condition(name, "Degraded", "CoordinatorUnreachable")
        assert "its answer is longer than" in message
    asked = _Liar.answered
    wait_until(lambda: _Liar.answered >= asked + 2 * _LIARS, "more answers")
    own_jobs.create("other")
    own_jobs.wait(JOB_SET, "other-1")
    assert operator.popen.poll() is None
    assert operator.peak_memory_bytes < MEMORY_BYTES
    assert "Traceback" not in operator.life
