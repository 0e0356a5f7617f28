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
from jax.sharding import Mesh

from tpujob_trainer import fields
from tpujob_trainer.config import TrainerConfig

#: Flags that JAX sets on a TPU host by itself; a program compiled elsewhere lacks them.
_FLAGS_OF_HOST = {"--xla_tpu_use_enhanced_launch_barrier=true"}
#: Parts of the configuration that no program depends on.
_NOT_COMPILED = ("checkpoint", "data", "profile", "logEverySteps")


@dataclasses.dataclass(frozen=True, slots=True)
class Compiled:
    """A program ready to run, and how it came to be."""

    call: Callable[..., Any]
    seconds: float
    from_cache: bool


@dataclasses.dataclass(frozen=True, slots=True)
class Fingerprint:
    """Everything that a compiled program could depend on, by name."""

    parts: dict[str, Any]

    @classmethod
    def of(cls, config: TrainerConfig, mesh: Mesh) -> Fingerprint:
        """The fingerprint of all programs of a run.

        Programs for TPUs are the same for every process and may be compiled on another
        machine, so that nothing of this process or its host counts. A program for CPUs runs
        in its own process and on its own kind of host only.
        """
        device = mesh.devices.flat[0]
        is_tpu = device.platform == "tpu"
        process = [jax.process_index(), jax.process_count(), jax.local_device_count()]
        flags = [os.environ.get(name, "") for name in ("XLA_FLAGS", "LIBTPU_INIT_ARGS")]
        wanted = {k: v for k, v in fields.to_json(config).items() if k not in _NOT_COMPILED}
        versions = [jax.__version__, jaxlib.version.__version__, device.client.platform_version]
        return cls(
            {
                "configuration": {**wanted, "segments": config.has_segments},
                "mesh": dict(mesh.shape),
                "devices": [_place(d) for d in mesh.devices.flat],
                "versions": versions,
                "flags": sorted(set(" ".join(flags).split()) - _FLAGS_OF_HOST),
                "process": None if is_tpu else process,
                "processor": _cpu_features() if device.platform == "cpu" else "",
                "sources": _sources(),
            }
        )

    @property
    def key(self) -> str:
        """Changes with every part: 24 hexadecimal digits."""
        text = json.dumps(self.parts, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:24]


def _place(device: jax.Device) -> list[Any]:
    if device.platform != "tpu":
        return [device.device_kind, device.id]
    core = getattr(device, "core_on_chip", 0)
    return [device.device_kind, getattr(device, "slice_index", 0) or 0, *device.coords, core]


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

    def __init__(
        self, directory: str, fingerprint: Fingerprint, devices: Sequence[jax.Device]
    ) -> None:
        self._directory = Path(directory) if directory else None
        self._fingerprint = fingerprint
        self._devices = devices  # of the whole world: programs are loaded for them
        if directory:
            # An executable out of JAX's own cache serialises to something that does not load.
            jax.config.update("jax_enable_compilation_cache", False)

    def compile(self, name: str, lower: Callable[[], jax.stages.Lowered]) -> Compiled:
        """The program ``name``: loaded if it is there and intact, else compiled and kept."""
        started = time.perf_counter()
        path = self._path(name)
        loaded = _load(path, self._devices) if path and path.exists() else None
        if loaded is not None:
            return Compiled(loaded, time.perf_counter() - started, from_cache=True)
        if path and (differing := _why_missed(path, self._fingerprint)):
            place = f"compiled {name} in {path.parent}"
            print(f"{place} is for another {differing}, compiling anew", flush=True)
        return self._fresh(path, lower, started)

    def keep(self, name: str, lower: Callable[[], jax.stages.Lowered]) -> Compiled:
        """Compile the program and keep it, unless it is there; nothing is loaded."""
        started = time.perf_counter()
        path = self._path(name)
        if path and path.exists() and _is_intact(path.read_bytes()):
            return Compiled(_not_loaded, time.perf_counter() - started, from_cache=True)
        return self._fresh(path, lower, started)

    def _fresh(
        self, path: Path | None, lower: Callable[[], jax.stages.Lowered], started: float
    ) -> Compiled:
        fresh = lower().compile()
        if path:
            _store(path, fresh, self._fingerprint)
        return Compiled(fresh, time.perf_counter() - started, from_cache=False)

    def _path(self, name: str) -> Path | None:
        return self._directory / f"{name}-{self._fingerprint.key}.bin" if self._directory else None


def _not_loaded(*_: Any) -> None:
    raise RuntimeError("this program was found in the cache, but not loaded")


def _why_missed(path: Path, mine: Fingerprint) -> str:
    """Which parts of the most similar program's fingerprint differ; empty if there is none."""
    others = path.name.replace(mine.key, "?" * len(mine.key)).replace(".bin", ".json")
    missed: list[list[str]] = []
    for file in path.parent.glob(others):
        with contextlib.suppress(OSError, ValueError):
            theirs = json.loads(file.read_text())
            missed.append([part for part in mine.parts if theirs.get(part) != mine.parts[part]])
    # Processes on CPUs each have their own, side by side: another's is not missed.
    missed = [parts for parts in missed if "process" not in parts]
    fewest: list[str] = min(missed, key=len, default=[])
    return " and ".join(fewest)


def _load(path: Path, devices: Sequence[jax.Device]) -> Any:
    body = path.read_bytes()
    if not _is_intact(body):
        print(f"compiled program {path} is damaged, compiling anew", flush=True)
        return None
    try:
        payload, in_tree, out_tree = pickle.loads(body[32:])  # noqa: S301 - written by us, into a directory that only this job writes
        return serialize_executable.deserialize_and_load(
            payload, in_tree, out_tree, execution_devices=devices
        )
    except Exception as error:  # noqa: BLE001 - whatever is wrong with it, compiling helps
        print(f"compiled program {path} does not load ({error}), compiling anew", flush=True)
        return None


def _is_intact(body: bytes) -> bool:
    return hashlib.sha256(body[32:]).digest() == body[:32]


def _store(path: Path, compiled: jax.stages.Compiled, fingerprint: Fingerprint) -> None:
    temporary = path.with_suffix(f".{os.getpid()}.tmp")
    try:
        body = pickle.dumps(serialize_executable.serialize(compiled))
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_bytes(hashlib.sha256(body).digest() + body)
        temporary.replace(path)
        path.with_suffix(".json").write_text(json.dumps(fingerprint.parts))
    except (OSError, ValueError, NotImplementedError, jax.errors.JaxRuntimeError) as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        print(f"compiled program is not kept in {path.parent}: {error}", flush=True)
