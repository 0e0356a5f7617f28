"""Checkpoints in buckets: the same promises as on disks, kept by servers that may be away."""

from __future__ import annotations

import http.server
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import jax
import pytest
from etils import epath

from tests.trainer.buckets import Service
from tests.trainer.victims import Rig
from tests.trainer.worlds import PATIENCE_S, ROOT, Launcher, kill, small_config, wait_until
from tpujob_agent.protocol import ExitCode
from tpujob_checkpoint import buckets, checkpoint, claims, storage
from tpujob_checkpoint.errors import CheckpointUnavailableError, CheckpointUnusableError
from tpujob_trainer.executables import Compiled, ExecutableCache
from tpujob_trainer.fingerprint import Fingerprint

pytestmark = pytest.mark.usefixtures("no_garbage")


def _service(scheme: str, directory: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Service]:
    service = Service(scheme, directory)
    for name, value in service.env.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(buckets, "PROBES", 1)
    buckets.open_store.cache_clear()
    service.start()
    yield service
    service.kill()


@pytest.fixture(params=["gs", "s3"])
def service(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Service]:
    """A service of each kind."""
    yield from _service(request.param, tmp_path / "service", monkeypatch)


@pytest.fixture
def gcs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Service]:
    """Where one kind is enough."""
    yield from _service("gs", tmp_path / "service", monkeypatch)


def test_damaged_step_is_put_aside_and_the_older_one_taken(
    service: Service, tmp_path: Path
) -> None:
    """Saved on four devices, restored on two; a bit flipped; then saved again, and the old go."""
    rig, other = Rig(tmp_path, 4, service.url), Rig(tmp_path, 2, service.url)
    with closing(rig.saver()) as saver:
        assert saver.restore(None).state is None
        for step in (4, 9):
            rig.save(saver, step, local=False)
    with closing(other.saver()) as saver:
        restored = saver.restore(None)
        assert restored.step == 9
        assert other.is_state_of(9, restored.state)
    service.flip_a_bit(9)
    with closing(rig.saver()) as saver:
        restored = saver.restore(None)
        assert restored.step == 4
        assert rig.is_state_of(4, restored.state)
        assert service.committed() == [4]
        for step in (9, 14, 19):
            rig.save(saver, step, local=False)
    quarantined = [name for name in service.names() if name.startswith("9.quarantined-")]
    assert len(quarantined) == 1
    assert service.names() == sorted(["9", "14", "19", *quarantined, claims.FILE])


def test_save_that_never_ended_counts_for_nothing(gcs: Service, tmp_path: Path) -> None:
    """Without its mark a step is what a killed process left: cleared, and saved anew."""
    rig = Rig(tmp_path, 2, gcs.url)
    with closing(rig.saver()) as saver:
        for step in (4, 9):
            rig.save(saver, step, local=False)
    (epath.Path(gcs.url) / "9" / storage.COMMITTED).unlink()
    with closing(rig.saver()) as saver:
        assert saver.restore(None).step == 4
        assert gcs.names() == ["4", claims.FILE]
        rig.save(saver, 9, local=False)
    assert gcs.committed() == [4, 9]


def test_two_processes_agree_about_a_damaged_step(
    gcs: Service, launcher: Launcher, tmp_path: Path
) -> None:
    """Both take the older step and finish; what they save together, one alone can restore."""
    rig = Rig(tmp_path, 4, gcs.url)
    with closing(rig.saver()) as saver:
        for step in (4, 9):
            rig.save(saver, step, local=False)
    gcs.flip_a_bit(9)
    config = small_config(checkpoint={"directory": gcs.url})
    world = launcher.start(config, processes=2, devices=2)
    assert [trainer.wait() for trainer in world] == [ExitCode.DONE] * 2, world[0].output()
    assert "checkpoint of step 9 is bad" in world[0].output()
    assert f"restored step 4 from {gcs.url}" in world[0].output()
    assert sorted(world[0].losses()) == list(range(5, 13))
    assert len([name for name in gcs.names() if name.startswith("9.quarantined-")]) == 1
    with closing(rig.saver()) as saver:
        assert saver.restore(None).step == 12


def test_training_goes_on_while_the_service_is_away(
    gcs: Service, launcher: Launcher, tmp_path: Path
) -> None:
    """Killed in the middle of saves: steps go on, the save ends later, nothing is lost."""
    config = small_config(
        steps=1_000_000, checkpoint={"directory": gcs.url, "interval": "steps:2", "keep": 100}
    )
    trainer = launcher.start(config, devices=2)[0]
    wait_until(lambda: len(gcs.committed()) > 1, "two checkpoints")
    gcs.kill()
    seen = max(trainer.losses())
    wait_until(lambda: "is still being written" in trainer.output(), "a checkpoint left out")
    wait_until(lambda: max(trainer.losses()) > seen + 4, "more steps")
    gcs.start()
    before = gcs.committed()
    wait_until(lambda: len(gcs.committed()) > len(before) + 1, "the save, and one more")
    kill(trainer)
    newest = gcs.committed()[-1]
    with closing(Rig(tmp_path, 2, gcs.url).saver()) as saver:
        assert saver.restore(None).step == newest


def test_good_step_is_not_put_aside_because_the_service_is_away(
    gcs: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not to be read is not to be bad: the run ends in words, and the step is there later."""
    rig = Rig(tmp_path, 2, gcs.url)
    with closing(rig.saver()) as saver:
        rig.save(saver, 4, local=False)
    monkeypatch.setattr(buckets, "RETRIES", 0)
    buckets.open_store.cache_clear()
    with closing(rig.saver()) as saver:
        assert saver._checkpoints.listing(None).steps == [4]
        gcs.kill()
        with pytest.raises(CheckpointUnavailableError, match=r"step 4 cannot be read .* stays"):
            saver._checkpoints.restore(4)
        with pytest.raises(CheckpointUnavailableError, match="run cannot be read"):
            saver.restore(None)
        gcs.start()
        assert saver.restore(None).step == 4


def test_save_that_fails_for_good_ends_the_run_in_words(
    gcs: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When no try is left: the step and why; the one before is restored later."""
    rig = Rig(tmp_path, 2, gcs.url)
    monkeypatch.setattr(buckets, "RETRIES", 0)
    buckets.open_store.cache_clear()
    with closing(rig.saver()) as saver:
        rig.save(saver, 4, local=False)
        gcs.kill()
        with pytest.raises(CheckpointUnavailableError, match=r"step 9 could not be .*server"):
            rig.save(saver, 9, local=False)
        gcs.start()
    with closing(rig.saver()) as saver:
        assert saver.restore(None).step == 4


class _Unavailable(http.server.BaseHTTPRequestHandler):
    """Answers every request with 503."""

    def do_GET(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.send_response(http.HTTPStatus.SERVICE_UNAVAILABLE)
        self.send_header("Content-Length", "0")
        self.end_headers()

    do_PUT = do_POST = do_DELETE = do_GET  # noqa: N815 - http.server's names

    def log_message(self, *_: object) -> None:
        """Nothing to say."""


def test_service_that_answers_503_costs_no_step(
    gcs: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However often it is asked: restore and save end as an outage, nothing is put aside."""
    rig = Rig(tmp_path, 2, gcs.url)
    with closing(rig.saver()) as saver:
        for step in (4, 9):
            rig.save(saver, step, local=False)
    monkeypatch.setattr(buckets, "RETRIES", 0)
    buckets.open_store.cache_clear()
    with closing(rig.saver()) as saver:
        assert saver.restore(None).step == 9
        gcs.kill()
        server = http.server.ThreadingHTTPServer(("127.0.0.1", gcs.port), _Unavailable)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            for _ in range(3):
                with pytest.raises(CheckpointUnavailableError, match="step 9 cannot be read"):
                    saver._checkpoints.restore(9)
                with pytest.raises(CheckpointUnavailableError, match="run cannot be read"):
                    saver.restore(None)
            with pytest.raises(CheckpointUnavailableError, match="step 14 could not be written"):
                rig.save(saver, 14, local=False)
        finally:
            server.shutdown()
            server.server_close()
            thread.join()
        gcs.start()
    assert gcs.committed() == [4, 9]
    assert not [name for name in gcs.names() if "." in name and name != claims.FILE]
    with closing(rig.saver()) as saver:
        restored = saver.restore(None)
        assert restored.step == 9
        assert rig.is_state_of(9, restored.state)


_ASKS_ONCE = """
from tpujob_checkpoint import buckets
import tensorstore as ts
store = ts.KvStore.open(buckets.kvstore_spec("gs://bucket/run/", retries=0)).result()
try:
    store.read("a").result()
except ValueError as error:
    print(error)
"""


def test_service_that_never_answers_is_away(tmp_path: Path) -> None:
    """It accepts connections and sends no byte: TensorStore by itself would wait for ever."""
    assert os.environ["TENSORSTORE_CURL_LOW_SPEED_TIME_SECONDS"] == str(buckets.SILENCE_S)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        service = Service("gs", tmp_path)
        service.port = silent.getsockname()[1]
        own = {"TENSORSTORE_CURL_LOW_SPEED_TIME_SECONDS": "1", "PYTHONPATH": str(ROOT / "trainer")}
        command = [sys.executable, "-c", _ASKS_ONCE]
        env = os.environ | service.env | own
        done = subprocess.run(
            command, env=env, check=True, capture_output=True, text=True, timeout=PATIENCE_S
        )
    assert "Operation too slow" in done.stdout


def test_missing_bucket_is_told_before_the_start(service: Service) -> None:
    """With what to do."""
    url = service.url.replace("bucket", "nowhere")
    with pytest.raises(CheckpointUnusableError, match=f"{url}: there is no such bucket"):
        checkpoint.require_writable(url)


def test_service_that_is_away_is_told_before_the_start(service: Service) -> None:
    """After a few tries, and with what to look at."""
    service.kill()
    with pytest.raises(CheckpointUnavailableError, match="the service does not answer"):
        checkpoint.require_writable(service.url)


_WRITTEN = {"name": "any", "bucket": "any", "generation": "1", "metageneration": "1", "size": "0"}


class _Refusing(http.server.ThreadingHTTPServer):
    """Answers as the services do to who may not write, or may write and not list."""

    may_write = False

    class Handler(http.server.BaseHTTPRequestHandler):
        """One request."""

        def do_PUT(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            may_write = self.server.may_write  # type: ignore[attr-defined]
            body = _WRITTEN if may_write else {"error": {"code": 403}}
            self._answer(http.HTTPStatus.OK if may_write else http.HTTPStatus.FORBIDDEN, body)

        do_POST = do_DELETE = do_PUT  # noqa: N815 - http.server's names

        def do_GET(self) -> None:
            self._answer(http.HTTPStatus.FORBIDDEN, {"error": {"code": 403}})

        def _answer(self, status: http.HTTPStatus, body: dict[str, Any]) -> None:
            content = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            """Nothing to say."""


@pytest.mark.parametrize(
    ("scheme", "may_write", "lacking"),
    [("gs", False, "write"), ("gs", True, "list"), ("s3", False, "write")],
)
def test_missing_rights_are_told_before_the_start(
    scheme: str, may_write: bool, lacking: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who may not write or list there is told which field names the account that must."""
    service = Service(scheme, tmp_path)
    for name, value in service.env.items():
        monkeypatch.setenv(name, value)
    server = _Refusing(("127.0.0.1", service.port), _Refusing.Handler)
    server.may_write = may_write
    threading.Thread(target=server.serve_forever, daemon=True).start()
    said = rf"no right to {lacking} .*trainer\.serviceAccountName"
    try:
        with pytest.raises(CheckpointUnusableError, match=said):
            checkpoint.require_writable(service.url)
    finally:
        server.shutdown()
        server.server_close()


def test_programs_are_shared_through_buckets(service: Service, tmp_path: Path) -> None:
    """A service keeps compiled programs for new pods, as a disk does."""
    fingerprint = Fingerprint({"process": 0})

    def pod(number: int) -> Compiled:
        folder, shared = str(tmp_path / str(number)), f"{service.url}/programs"
        cache = ExecutableCache(folder, fingerprint, jax.devices()[:1], shared, "a job's")
        return cache.compile("double", lambda: jax.jit(lambda x: x * 2).lower(1.0))

    assert not pod(0).from_cache
    file = epath.Path(service.url) / "programs" / f"double-{fingerprint.key}.bin"
    wait_until(file.exists, "the shared program")
    assert pod(1).from_cache
    assert pod(1).call(2.0) == 4.0
