"""Compiled programs that outlive the process, so that a restart compiles nothing.

JAX's own compile cache serves only process 0 of a multi-process CPU run (its key
differs from process to process, and only process 0 writes), and every process
still traces and lowers. Here each process keeps its serialised executables: in its pod, where
a restart finds them, and beside the checkpoints, where a new pod does.

A serialised executable is a pickle with machine code in it: whoever writes one runs code where it
is loaded. So each file has a code that needs the job's key, and is not parsed before that is
found right. Shared storage is used with a key only.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hmac
import json
import pickle
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
from etils import epath
from jax.experimental import serialize_executable

from tpujob_agent.protocol import Env
from tpujob_checkpoint import storage
from tpujob_trainer.fingerprint import Fingerprint

#: What lies beside checkpoints for longer is of a program that has changed, or soon made anew.
_KEPT_S = 30 * 86_400
#: Bytes of the HMAC-SHA256 that a file begins with.
_CODE = 32
#: A description of a program is shorter; in shared storage it could be anything.
_LONGEST_DESCRIPTION = 1 << 20


@dataclasses.dataclass(frozen=True, slots=True)
class Compiled:
    """A program ready to run, and how it came to be."""

    call: Callable[..., Any]
    seconds: float
    from_cache: bool


class ExecutableCache:
    """Serialised executables in directories; without any, it only compiles."""

    def __init__(
        self,
        directory: str,
        fingerprint: Fingerprint,
        devices: Sequence[jax.Device],
        shared: str = "",
        job_key: str = "",
    ) -> None:
        """Look into the directories when asked to compile.

        Args:
            directory: outlives the process; empty: none.
            fingerprint: of all programs.
            devices: of the whole world: programs are loaded for them.
            shared: outlives the pod and is every process's, a bucket's too; empty: none.
            job_key: a secret of the job, without which nothing is shared. Empty: whoever can
                write to ``directory`` is trusted.
        """
        self._directory = storage.path_of(directory) if directory else None
        self._shared = storage.path_of(shared) if shared and job_key else None
        self._job_key = job_key.encode()
        self._fingerprint = fingerprint
        self._devices = devices
        if directory or shared:
            # An executable out of JAX's own cache serialises to something that does not load.
            jax.config.update("jax_enable_compilation_cache", False)
        if shared and not job_key and _is_first():
            print(f"no compiled programs in {shared}: {Env.PROGRAMS_KEY} is not set", flush=True)

    def compile(self, name: str, lower: Callable[[], jax.stages.Lowered]) -> Compiled:
        """The program ``name``: loaded if it is there and intact, else compiled and kept."""
        started = time.perf_counter()
        file = self._file(name)
        for folder in (self._directory, self._shared):
            body = self._read(folder / file) if folder else None
            program = _load(folder / file, body, self._devices) if folder and body else None
            if folder and body and program is not None:
                if self._directory and folder is self._shared:
                    self._store(self._directory / file, body)
                return Compiled(program, time.perf_counter() - started, from_cache=True)
        self._say_why_missed(name)
        return self._fresh(file, lower, started)

    def keep(self, name: str, lower: Callable[[], jax.stages.Lowered]) -> Compiled:
        """Compile the program and keep it, unless it is there; nothing is loaded."""
        started = time.perf_counter()
        file = self._file(name)
        if self._directory and self._read(self._directory / file) is not None:
            return Compiled(_not_loaded, time.perf_counter() - started, from_cache=True)
        return self._fresh(file, lower, started)

    def _fresh(
        self, file: str, lower: Callable[[], jax.stages.Lowered], started: float
    ) -> Compiled:
        fresh = lower().compile()
        body = _serialized(fresh) if self._directory or self._shared else None
        if body and self._directory:
            self._store(self._directory / file, body)
        if body and self._shared and (not self._fingerprint.is_everybodys or _is_first()):
            # No start waits for storage that is far away.
            share = threading.Thread(target=self._share, args=(file, body), daemon=True)
            share.start()
        return Compiled(fresh, time.perf_counter() - started, from_cache=False)

    def _share(self, file: str, body: bytes) -> None:
        assert self._shared is not None
        self._store(self._shared / file, body)
        if _is_first() and not storage.is_in_bucket(self._shared):
            _remove_old(Path(self._shared))

    def _read(self, path: epath.Path) -> bytes | None:
        """The program in a file of this job's, intact; None: there is none."""
        try:
            # Not a pipe or a device, which would never end.
            if not storage.is_in_bucket(path) and not Path(path).is_file():
                return None
            content: bytes = path.read_bytes()
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:  # ValueError: TensorStore's, about a bucket
            print(f"compiled program {path} is not readable: {error}", flush=True)
            return None
        code, body = content[:_CODE], content[_CODE:]
        if not hmac.compare_digest(code, self._code(path.name, body)):
            why = "is damaged, or this job did not write it"
            print(f"compiled program {path} {why}: compiling it", flush=True)
            return None
        return body

    def _store(self, path: epath.Path, body: bytes) -> None:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            storage.write_whole(path, self._code(path.name, body) + body)
            described = json.dumps(self._fingerprint.parts).encode()
            storage.write_whole(path.with_suffix(".json"), described)
        except (OSError, ValueError) as error:
            print(f"compiled program is not kept in {path.parent}: {error}", flush=True)

    def _code(self, file: str, body: bytes) -> bytes:
        """Proves who wrote this program, under this name."""
        made = hmac.new(self._job_key, f"tpujob program\n{file}\n".encode(), "sha256")
        made.update(body)
        return made.digest()

    def _file(self, name: str) -> str:
        return f"{name}-{self._fingerprint.key}.bin"

    def _say_why_missed(self, name: str) -> None:
        for folder in (self._directory, self._shared):
            if folder is None or storage.is_in_bucket(folder):
                continue
            differing = _why_missed(Path(folder / self._file(name)), self._fingerprint)
            if differing:
                place = f"compiled {name} in {folder}"
                print(f"{place} is for another {differing}, compiling anew", flush=True)
                return


def _is_first() -> bool:
    return jax.process_index() == 0


def _not_loaded(*_: Any) -> None:
    raise RuntimeError("this program was found in the cache, but not loaded")


def _why_missed(path: Path, mine: Fingerprint) -> str:
    """Which parts of the most similar program's fingerprint differ; empty if there is none."""
    others = path.name.replace(mine.key, "?" * len(mine.key)).replace(".bin", ".json")
    missed: list[list[str]] = []
    for file in path.parent.glob(others):
        theirs = _described(file)
        if theirs:
            missed.append([part for part in mine.parts if theirs.get(part) != mine.parts[part]])
    # Processes on CPUs each have their own, side by side: another's is not missed.
    missed = [parts for parts in missed if "process" not in parts]
    fewest: list[str] = min(missed, key=len, default=[])
    return " and ".join(fewest)


def _described(file: Path) -> dict[str, Any]:
    """What another program depends on, as somebody has written it; empty if it cannot be read."""
    with contextlib.suppress(OSError, ValueError, RecursionError):
        if file.is_file() and file.stat().st_size <= _LONGEST_DESCRIPTION:
            found = json.loads(file.read_text())
            return found if isinstance(found, dict) else {}
    return {}


def _load(path: epath.Path, body: bytes, devices: Sequence[jax.Device]) -> Any:
    try:
        payload, in_tree, out_tree = pickle.loads(body)  # noqa: S301 - a process of this job wrote it, see _read
        return serialize_executable.deserialize_and_load(
            payload, in_tree, out_tree, execution_devices=devices
        )
    except Exception as error:  # noqa: BLE001 - whatever is wrong with it, compiling helps
        print(f"compiled program {path} does not load ({error}), compiling anew", flush=True)
        return None


def _serialized(compiled: jax.stages.Compiled) -> bytes | None:
    try:
        return pickle.dumps(serialize_executable.serialize(compiled))
    except (ValueError, NotImplementedError, jax.errors.JaxRuntimeError) as error:
        print(f"compiled program is not kept: {error}", flush=True)
        return None


def _remove_old(folder: Path) -> None:
    with contextlib.suppress(OSError):
        for file in folder.iterdir():
            if time.time() - file.stat().st_mtime > _KEPT_S:
                file.unlink(missing_ok=True)
