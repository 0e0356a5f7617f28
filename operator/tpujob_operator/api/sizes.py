"""How large a job may be: what all of its pods together cost the API server and the operator."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from tpujob_operator.api.slicerules import MAX_HOSTS, TOO_MANY_HOSTS
from tpujob_operator.api.spec import JobSpec
from tpujob_tpu.catalogue import SliceShape

#: Each pod is a copy of its template: 16 KiB for each pod of the largest job, or 256 KiB for each
#: of 1,024. etcd holds 2 GiB by default.
MAX_BYTES = MAX_HOSTS * 16 * 1024
#: Who lists pods reads hundreds of them at once.
MAX_POD_BYTES = 256 * 1024
#: What lies deeper is no field of Kubernetes; Python's own parsers stop at about 1,000 levels.
MAX_LEVELS = 64
_TOO_DEEP = (
    f"spec: more than {MAX_LEVELS} levels of lists and objects lie in each other; at most "
    f"{MAX_LEVELS} are read"
)


def depth_problems(spec: Any) -> list[str]:
    """What is nested too deeply to be worked on; to be asked before anything recurses into it."""
    level = [spec]
    for _ in range(MAX_LEVELS):
        level = [part for whole in level for part in _parts(whole)]
    return [_TOO_DEEP] if level else []


def _parts(whole: Any) -> Iterable[Any]:
    if isinstance(whole, Mapping):
        return whole.values()
    return whole if isinstance(whole, list) else ()


def size_problems(spec: JobSpec, shape: SliceShape) -> list[str]:
    """What is too large, in the words of the rules; CEL cannot measure the open parts of pods."""
    hosts = (spec.slices + spec.spares) * shape.hosts
    if hosts > MAX_HOSTS:
        return [f"spec.slices: {TOO_MANY_HOSTS}; these are {hosts}"]
    program = spec.template or spec.trainer
    size = len(json.dumps(program.to_json())) if program else 0
    most = min(MAX_BYTES // hosts, MAX_POD_BYTES)
    if size <= most:
        return []
    part = "template" if spec.template else "trainer"
    problem = (
        f"spec.{part}: {size} bytes in each of {hosts} pods are too much for the cluster: at most "
        f"{most} bytes are allowed; keep long scripts and files in the image, a "
        "ConfigMap or the bucket"
    )
    return [problem]
