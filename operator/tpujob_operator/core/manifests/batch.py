"""Whether the bundled trainer can share out a global batch among so many slices."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from tpujob_operator.api.models import TPUTrainingJob
from tpujob_tpu.chips import CHIPS

#: Mesh axes that do not split the batch.
_OTHER_AXES = ("context", "tensor")


def shares_batch(job: TPUTrainingJob, slices: int) -> bool:
    """Whether every device of so many slices gets as many rows of each micro batch.

    True where it cannot be told: the trainer itself checks its whole configuration, and
    other programs are not known here.
    """
    if not job.spec.trainer:
        return True
    config = job.spec.trainer.config
    rows, micros = _size(config, "globalBatch", 0), _size(config, "accumulation", 1)
    mesh = config.get("mesh", {})
    others = [_size(mesh, axis, 1) for axis in _OTHER_AXES] if isinstance(mesh, Mapping) else [0]
    if not (rows and micros and all(others)):
        return True
    devices = slices * job.shape.chips * CHIPS[job.shape.generation.name].devices
    parts, rest = divmod(devices, math.prod(others))
    return bool(rest) or rows % (micros * parts) == 0


def _size(config: Mapping[str, Any], name: str, default: int) -> int:
    """A size of the configuration; 0: it has none that is fixed."""
    value = config.get(name, default)
    return value if isinstance(value, int) and value > 0 else 0
