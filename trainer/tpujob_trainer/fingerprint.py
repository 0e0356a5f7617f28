"""What a compiled program depends on, and the key that follows from it."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from pathlib import Path
from typing import Any

import jax
import jaxlib.version
from jax.sharding import Mesh

from tpujob_checkpoint import digest, programs
from tpujob_trainer import fields
from tpujob_trainer.config import TrainerConfig

#: Flags that JAX sets on a TPU host by itself; a program compiled elsewhere lacks them.
_FLAGS_OF_HOST = {"--xla_tpu_use_enhanced_launch_barrier=true"}
#: Parts of the configuration that no program depends on.
_NOT_COMPILED = ("checkpoint", "data", "profile", "logEverySteps")


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
    def is_everybodys(self) -> bool:
        """Whether all processes of a world run the very same programs."""
        return self.parts.get("process") is None

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
    """The code that is compiled: an executable of last week's model would run without complaint."""
    of_states = (Path(digest.__file__), Path(programs.__file__))
    files = [*sorted(Path(__file__).parent.glob("*.py")), *of_states]
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()
