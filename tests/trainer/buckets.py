"""Servers that speak as Google's and Amazon's object storage do, built when a test wants them."""

from __future__ import annotations

import subprocess
from pathlib import Path

import tensorstore as ts

from localcluster import binaries
from tests.trainer.worlds import PATIENCE_S, free_port
from tpujob_agent.runs import await_leader
from tpujob_checkpoint import buckets, storage

BUCKET = "bucket"


class Service:
    """One server with one bucket, which keeps its objects when it dies."""

    def __init__(self, scheme: str, directory: Path) -> None:
        self.url = f"{scheme}://{BUCKET}/run"
        self._scheme, self._directory = scheme, directory
        self.port = free_port()
        self._process: subprocess.Popen[bytes] | None = None
        (directory / BUCKET).mkdir(parents=True, exist_ok=True)

    @property
    def env(self) -> dict[str, str]:
        """What makes TensorStore go there and not to the real service."""
        address = f"http://127.0.0.1:{self.port}"
        if self._scheme == "gs":
            return {"TENSORSTORE_GCS_HTTP_URL": address, "GOOGLE_AUTH_TOKEN_FOR_TESTING": "any"}
        keys = {"AWS_ACCESS_KEY_ID": "any", "AWS_SECRET_ACCESS_KEY": "any"}
        return {"AWS_ENDPOINT_URL": address, "AWS_REGION": "us-east-1"} | keys

    def start(self) -> None:
        """Start, or start again, and wait until it answers."""
        with (self._directory / "log").open("ab") as log:
            self._process = subprocess.Popen(self._command(), stdout=log, stderr=log)
        assert await_leader(f"127.0.0.1:{self.port}", PATIENCE_S)

    def _command(self) -> list[str]:
        name = "fake-gcs-server" if self._scheme == "gs" else "gofakes3"
        program = str(binaries.ensure({name})[name])
        files = str(self._directory)
        if self._scheme == "s3":
            place = ["-backend", "fs", "-fs.path", files, "-fs.create", "-initialbucket", BUCKET]
            return [program, *place, "-host", f"127.0.0.1:{self.port}", "-quiet"]
        place = ["-backend", "filesystem", "-filesystem-root", files]
        address = ["-scheme", "http", "-host", "127.0.0.1", "-port", str(self.port)]
        return [program, *place, *address, "-log-level", "error"]

    def kill(self) -> None:
        """SIGKILL; what it was told to keep stays."""
        if self._process:
            self._process.kill()
            self._process.wait()

    def names(self) -> list[str]:
        """Whatever lies below the checkpoint directory."""
        store = self._objects()
        return sorted({key.decode().partition("/")[0] for key in store.list().result()})

    def committed(self) -> list[int]:
        """Steps whose save came to its end."""
        marks = [key.decode().split("/") for key in self._objects().list().result()]
        return sorted(int(m[0]) for m in marks if m[0].isdecimal() and m[1:] == [storage.COMMITTED])

    def flip_a_bit(self, step: int) -> None:
        """In the middle of the largest object with arrays of this step."""
        store = self._objects() / f"{step}/"
        data = {key: store[key] for key in store.list().result() if b"/d/" in key}
        key = max(data, key=lambda k: len(data[k]))
        content = bytearray(data[key])
        content[len(content) // 2] ^= 0x10
        store[key] = bytes(content)

    def _objects(self) -> ts.KvStore:
        spec = buckets.kvstore_spec(f"{self.url}/")
        return ts.KvStore.open(spec).result()
