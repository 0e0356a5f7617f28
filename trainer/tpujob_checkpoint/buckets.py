"""Buckets, ``gs://`` and ``s3://``, through TensorStore's own drivers.

Orbax writes arrays by TensorStore and everything else by ``etils.epath``, which asks fsspec
for a file system. The ones below are TensorStore again: one client, which finds credentials
in one way and tries again in one way, and no other package is needed.
"""

from __future__ import annotations

import functools
import io
import os
import secrets
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import fsspec
import tensorstore as ts

from tpujob_checkpoint.storage import COMMITTED

#: A request is tried for four minutes (the pauses grow to 32 s): Orbax's processes wait five
#: for each other.
RETRIES = 12
#: Before a run starts, for half a minute.
PROBES = 5
#: A request whose service sends and takes no byte for so long has failed. TensorStore itself would
#: wait for ever; it reads these variables when it makes its first request.
SILENCE_S = 60
os.environ.setdefault("TENSORSTORE_CURL_LOW_SPEED_TIME_SECONDS", str(SILENCE_S))
os.environ.setdefault("TENSORSTORE_CURL_LOW_SPEED_LIMIT_BYTES", "1")
#: Objects copied at a time, each of which is in memory meanwhile.
_COPIES = 4


def kvstore_spec(path: str, *, retries: int | None = None) -> dict[str, Any]:
    """TensorStore's specification of the keys that begin with a path."""
    scheme, _, rest = path.partition("://")
    bucket, _, key = rest.partition("/")
    driver = {"gs": "gcs", "s3": "s3"}[scheme]
    spec: dict[str, Any] = {"driver": driver, "bucket": bucket, "path": key}
    spec[f"{driver}_request_retries"] = {"max_retries": RETRIES if retries is None else retries}
    if scheme == "s3" and os.environ.get("AWS_ENDPOINT_URL"):
        spec["endpoint"] = os.environ["AWS_ENDPOINT_URL"]
    if scheme == "s3" and os.environ.get("AWS_ACCESS_KEY_ID"):
        # The usual search would log errors about ~/.aws at every save.
        spec["aws_credentials"] = {"type": "environment"}
    return spec


#: What TensorStore says to who has no right.
_REFUSED = ("PERMISSION_DENIED", "UNAUTHENTICATED")
_AWAY = "the service does not answer"
_GRANT = "let the pods' service account (trainer.serviceAccountName) read, write, list and delete"


def why_not_writable(directory: str) -> str:
    """Why a directory in a bucket cannot be listed and written, and what to do; empty: it can."""
    name = f".writable-{secrets.token_hex(8)}"  # process ids are alike in the pods of a job
    try:
        store = ts.KvStore.open(kvstore_spec(f"{directory}/", retries=PROBES)).result()
        store.write(name, b"").result()
        is_listed = name.encode() in store.list(ts.KvStore.KeyRange(name, f"{name}0")).result()
        store.write(name, None).result()
    except ValueError as error:
        text = str(error).split(" [", maxsplit=1)[0]
        if "NOT_FOUND" in text:
            return f"there is no such bucket ({text}): make it, or correct the name"
        if any(sign in text for sign in _REFUSED):
            return f"no right to write there ({text}): {_GRANT}"
        return f"{_AWAY} ({text}): see that it can be reached from the pods"
    # TensorStore takes a refused listing for an empty one, and a run would start afresh in silence.
    return "" if is_listed else f"no right to list what is there: {_GRANT}"


def is_away(reason: str) -> bool:
    """Whether ``why_not_writable`` gave a reason that may pass by itself."""
    return reason.startswith(_AWAY)


def names(path: str) -> list[str]:
    """Names of all objects below a path, from there on."""
    scheme, _, rest = path.partition("://")
    bucket, _, key = rest.partition("/")
    store = open_store(f"{scheme}://{bucket}") / f"{key.rstrip('/')}/"
    return sorted(name.decode() for name in store.list().result())


class _Buckets(fsspec.AbstractFileSystem):  # type: ignore[misc]
    """The buckets of one kind as a file system, as far as Orbax and checkpoints need one."""

    cachable = False

    def _at(self, path: str) -> tuple[ts.KvStore, str]:
        bucket, _, key = self._strip_protocol(path).partition("/")
        return open_store(f"{self.protocol}://{bucket}"), key

    def ls(self, path: str, detail: bool = True, **_: Any) -> list[Any]:
        store, key = self._at(path)
        folder = f"{key}/" if key else ""
        within = (name.decode().partition("/") for name in (store / folder).list().result())
        kinds = {name: "directory" if slash else "file" for name, slash, _ in within}
        path = self._strip_protocol(path)
        found = [{"name": f"{path}/{name}", "type": kind} for name, kind in sorted(kinds.items())]
        return found if detail else [entry["name"] for entry in found]

    def info(self, path: str, **_: Any) -> dict[str, Any]:
        store, key = self._at(path)
        entry = {"name": self._strip_protocol(path), "size": 0, "type": "directory"}
        # Read, not listed: a listing that is refused looks like an empty one.
        if key and store.read(key).result().state == "value":
            return entry | {"type": "file"}
        if self.ls(path):
            return entry
        raise FileNotFoundError(path)

    def _open(self, path: str, mode: str = "rb", **_: Any) -> io.BytesIO:
        store, key = self._at(path)
        if "r" not in mode:
            return _Upload(store, key)
        found = store.read(key).result()
        if found.state != "value":
            raise FileNotFoundError(path)
        return io.BytesIO(found.value)

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        """There are no directories: a name is there while something lies below it."""

    def mkdir(self, path: str, create_parents: bool = True, **_: Any) -> None:
        """Like ``makedirs``."""

    def mv(self, path1: str, path2: str, **_: Any) -> None:
        (source, key), (target, target_key) = self._at(path1), self._at(path2)
        source, target = source / f"{key}/", target / f"{target_key}/"

        def copy(name: bytes) -> None:
            target.write(name, source.read(name).result().value).result()

        with ThreadPoolExecutor(_COPIES) as pool:
            list(pool.map(copy, source.list().result()))
        self.rm(path1, recursive=True)

    def rm(self, path: str, recursive: bool = False, **_: Any) -> None:
        store, key = self._at(path)
        if not recursive:
            store.write(key, None).result()
            return
        # Without its mark, what is left of a checkpoint is none if this process is killed now.
        store.write(f"{key}/{COMMITTED}", None).result()
        store.delete_range(ts.KvStore.KeyRange(f"{key}/", f"{key}0")).result()


class _Upload(io.BytesIO):
    """A file that is written when it is closed."""

    def __init__(self, store: ts.KvStore, key: str) -> None:
        super().__init__()
        self._store, self._key = store, key

    def close(self) -> None:
        if not self.closed:
            self._store.write(self._key, self.getvalue()).result()
        super().close()


@functools.cache
def open_store(bucket: str) -> ts.KvStore:
    """The objects of a bucket, with one connection for all who ask."""
    return ts.KvStore.open(kvstore_spec(f"{bucket}/")).result()


for _scheme, _known_as in (("gs", "gcs"), ("s3", "s3")):
    _kind = type(f"_Buckets_{_scheme}", (_Buckets,), {"protocol": _scheme})
    fsspec.register_implementation(_known_as, _kind, clobber=True)
