"""Compiled programs that outlive the process, so that a restart compiles nothing.

JAX's own compile cache serves only process 0 of a multi-process CPU run (its key
differs from process to process, and only process 0 writes), and every process
still traces and lowers. Here each process keeps its serialised executables.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import pickle
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import jaxlib.version
from jax.experimental import serialize_executable

from tpujob_trainer import fields
from tpujob_trainer.config import TrainerConfig

#: Parts of the configuration that no program depends on.
_NOT_COMPILED = ("checkpoint", "data", "profile", "logEverySteps")


@dataclasses.dataclass(frozen=True, slots=True)
class Compiled:
    """A program ready to run, and how it came to be."""

    call: Callable[..., Any]
    seconds: float
    from_cache: bool


def fingerprint(config: TrainerConfig, mesh_shape: dict[str, int]) -> str:
    """Changes with anything that a program could depend on: 24 hexadecimal digits."""
    wanted = {k: v for k, v in fields.to_json(config).items() if k not in _NOT_COMPILED}
    client = jax.devices()[0].client
    parts = {
        "config": wanted,
        "segments": config.has_segments,
        "mesh": mesh_shape,
        "versions": [jax.__version__, jaxlib.version.__version__, client.platform_version],
        "devices": [d.device_kind for d in jax.devices()],
        "process": [jax.process_index(), jax.process_count(), jax.local_device_count()],
        "flags": [os.environ.get(name, "") for name in ("XLA_FLAGS", "LIBTPU_INIT_ARGS")],
        "cpu": _cpu_features(),
        "sources": _sources(),
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:24]


def _cpu_features() -> str:
    """What the host's code may use: executables for CPU run nowhere else."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    return next((line for line in lines if line.startswith(("flags", "Features"))), "")


def _sources() -> str:
    """The package's own code: an executable of last week's model would run without complaint."""
    files = sorted(Path(__file__).parent.glob("*.py"))
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()


class ExecutableCache:
    """Serialised executables in a directory; without a directory, it only compiles."""

    def __init__(self, directory: str, key: str, devices: Sequence[jax.Device]) -> None:
        self._directory = Path(directory) if directory else None
        self._key = key
        self._devices = devices  # of the whole world: programs are loaded for them
        if directory:
            # An executable out of JAX's own cache serialises to something that does not load.
            jax.config.update("jax_enable_compilation_cache", False)

    def compile(self, name: str, lower: Callable[[], jax.stages.Lowered]) -> Compiled:
        """The program ``name``: loaded if it is there and intact, else compiled and kept."""
        started = time.perf_counter()
        path = self._directory / f"{name}-{self._key}.bin" if self._directory else None
        loaded = _load(path, self._devices) if path and path.exists() else None
        if loaded is not None:
            return Compiled(loaded, time.perf_counter() - started, from_cache=True)
        fresh = lower().compile()
        if path:
            _store(path, fresh)
        return Compiled(fresh, time.perf_counter() - started, from_cache=False)


def _load(path: Path, devices: Sequence[jax.Device]) -> Any:
    body = path.read_bytes()
    if hashlib.sha256(body[32:]).digest() != body[:32]:
        print(f"compiled program {path} is damaged, compiling anew", flush=True)
        return None
    try:
        payload, in_tree, out_tree = pickle.loads(body[32:])  # noqa: S301 - written by us, into a directory of this pod alone
        return serialize_executable.deserialize_and_load(
            payload, in_tree, out_tree, execution_devices=devices
        )
    except Exception as error:  # noqa: BLE001 - whatever is wrong with it, compiling helps
        print(f"compiled program {path} does not load ({error}), compiling anew", flush=True)
        return None


def _store(path: Path, compiled: jax.stages.Compiled) -> None:
    temporary = path.with_suffix(f".{os.getpid()}.tmp")
    try:
        body = pickle.dumps(serialize_executable.serialize(compiled))
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_bytes(hashlib.sha256(body).digest() + body)
        temporary.replace(path)
    except (OSError, ValueError, NotImplementedError, jax.errors.JaxRuntimeError) as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        print(f"compiled program is not kept in {path.parent}: {error}", flush=True)
