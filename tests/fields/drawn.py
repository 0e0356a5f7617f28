"""The changes that are tried on jobs that run: every case of the mutations, made small."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator

from localcluster.kubeapi import Object
from tests.api.mutations import Case, cases
from tpujob_operator.api.base import API_VERSION, KIND
from tpujob_operator.api.models import InvalidJobError, parse_job

#: With them a job waits, ends, or asks for more pods; they come to it by a change.
_ADDED = (
    "suspend", "queue", "queueTopologyLabel", "preflight", "elastic", "spares",
    "activeDeadlineSeconds", "ttlSecondsAfterFinished",
)  # fmt: skip
_SMALL = {"slices": 1, "topology": "2x2"}
#: A job of more hosts is left out: one machine needs minutes to make that many pods.
_MOST_HOSTS = 64


def drawn(number: int = 0, seed: int = 14) -> list[Case]:
    """Changes of jobs that run, each once, in random order; ``number`` 0: all of them."""
    found: dict[str, Case] = {}
    for case in _changes():
        found.setdefault(json.dumps([case.before, case.after]), case)
    everything = [case for case in found.values() if _hosts(case.after) <= _MOST_HOSTS]
    return random.Random(seed).sample(everything, number or len(everything))


def field_of(case: Case) -> str:
    """Name of the field that a case changes, with ``[]`` and ``{}`` for what is below it."""
    return case.name.partition(": ")[2].rpartition(" #")[0]


def top_of(case: Case) -> str:
    """Name of the field of the spec in which the changed one lies."""
    name = field_of(case)
    return name[: min([name.find(mark) for mark in ".[{" if mark in name], default=len(name))]


def _changes() -> Iterator[Case]:
    for case in cases():
        top = top_of(case)
        before, after = _small(case.before), _small(case.after)
        # What is small for the sake of the job that runs is changed all the same.
        if top in case.after and case.after[top] != case.before.get(top):
            after[top] = case.after[top]
        if before != after:
            yield Case(case.name, before, after)


def _small(spec: Object) -> Object:
    return {**{name: value for name, value in spec.items() if name not in _ADDED}, **_SMALL}


def _hosts(spec: Object) -> int:
    raw = {"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": "j"}, "spec": spec}
    try:
        job = parse_job(raw)
    except InvalidJobError:
        return 0
    return job.shape.hosts * (job.spec.slices + job.spec.spares)
