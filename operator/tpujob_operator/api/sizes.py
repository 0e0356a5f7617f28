"""How large a job may be: what all of its pods together cost the API server and the operator."""

from __future__ import annotations

import json

from tpujob_operator.api.slicerules import MAX_HOSTS, TOO_MANY_HOSTS
from tpujob_operator.api.spec import JobSpec
from tpujob_tpu.catalogue import SliceShape

#: Each pod is a copy of its template: 16 KiB for each pod of the largest job, or 1 MiB for each of
#: 256. etcd holds 2 GiB by default.
MAX_BYTES = MAX_HOSTS * 16 * 1024


def size_problems(spec: JobSpec, shape: SliceShape) -> list[str]:
    """What is too large, in the words of the rules; CEL cannot measure the open parts of pods."""
    hosts = (spec.slices + spec.spares) * shape.hosts
    if hosts > MAX_HOSTS:
        return [f"spec.slices: {TOO_MANY_HOSTS}; these are {hosts}"]
    program = spec.template or spec.trainer
    size = len(json.dumps(program.to_json())) if program else 0
    if size * hosts <= MAX_BYTES:
        return []
    part = "template" if spec.template else "trainer"
    problem = (
        f"spec.{part}: {size} bytes in each of {hosts} pods are too much for the cluster: at most "
        f"{MAX_BYTES // hosts} bytes fit so many; keep long scripts and files in the image, a "
        "ConfigMap or the bucket"
    )
    return [problem]
