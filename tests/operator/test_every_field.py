"""Every field changed under a running operator: an effect or a condition, and back again exactly.

A sample; ``TPUJOB_TEST_EVERY_FIELD`` is the number of cases, or 0 for all.
"""

from __future__ import annotations

import json
import os
import random
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pytest

from localcluster.cluster import Cluster
from localcluster.kubeapi import ApiError, Object
from tests.api.mutations import Case, cases
from tests.operator.rig import Jobs, running
from tests.waiting import wait_until
from tpujob_operator.core.kinds import JOB_SET, TPU_TRAINING_JOB

pytestmark = pytest.mark.control_plane

#: Jobs that live at the same time.
_BATCH = 12
_SAMPLE = 24
#: Without them a job is made at once, of few pods, and stays.
_LEFT_OUT = (
    "suspend", "queue", "queueTopologyLabel", "preflight", "elastic", "spares",
    "activeDeadlineSeconds", "ttlSecondsAfterFinished",
)  # fmt: skip
_SMALL = {"slices": 1, "topology": "2x2"}


def _spec(spec: Object) -> Object:
    return {**{k: v for k, v in spec.items() if k not in _LEFT_OUT}, **_SMALL}


def _drawn() -> list[Case]:
    """Cases that change what is left, each once."""
    found = {}
    for case in cases():
        before, after = _spec(case.before), _spec(case.after)
        if before != after:
            found[json.dumps([before, after])] = Case(case.name, before, after)
    everything = [*found.values()]
    number = int(os.environ.get("TPUJOB_TEST_EVERY_FIELD", _SAMPLE)) or len(everything)
    return random.Random(14).sample(everything, number)


class Changed:
    """One job that is changed, and changed back."""

    def __init__(self, jobs: Jobs, case: Case, name: str) -> None:
        self.case = case
        self._jobs = jobs
        self.name = name
        self._path = TPU_TRAINING_JOB.path(jobs.namespace, name)
        jobs.submit(case.body(name, changed=False))

    def settled(self) -> Object:
        """What its newest JobSet is made of, when the operator has seen the newest spec."""
        try:
            return wait_until(self._settled, f"{self.case.name}: a JobSet")
        except AssertionError as error:
            raise AssertionError(f"{error}: {self._jobs.status(self.name)}") from error

    def _settled(self) -> Object | None:
        alive = [
            one
            for one in self._jobs.all(JOB_SET, self.name)
            if not one["metadata"].get("deletionTimestamp")
        ]
        if len(alive) != 1 or not self._is_seen():
            return None
        attempt = alive[0]["metadata"]["labels"]["tpujob.dev/attempt"]
        is_newest = str(self._jobs.status(self.name).get("attempt")) == attempt
        return _of_any_attempt(alive[0], self.name, attempt) if is_newest else None

    def _is_seen(self) -> bool:
        job: Any = self._jobs.find(TPU_TRAINING_JOB, self.name)
        return bool(job["status"].get("observedGeneration") == job["metadata"]["generation"])

    def is_taken(self) -> bool:
        """Change it; whether the API server takes the change."""
        try:
            self._replace(self.case.after)
        except ApiError as error:
            if error.status != HTTPStatus.UNPROCESSABLE_ENTITY or "spec" not in str(error):
                raise
            return False
        return True

    def change_back(self) -> None:
        """Give it the spec it began with."""
        self._replace(self.case.before)

    def _replace(self, spec: Object) -> None:
        patch: Any = [{"op": "replace", "path": "/spec", "value": spec}]
        self._jobs.api.request("PATCH", self._path, patch, "application/json-patch+json")

    def wait_answer(self) -> None:
        """Wait until the operator has seen the change; a condition that refuses it says why."""
        wait_until(self._is_seen, f"{self.case.name}: seen")
        for condition in self._jobs.status(self.name)["conditions"]:
            if condition["type"] in ("Stalled", "Failed") and condition["status"] == "True":
                assert len(condition["message"]) > len("spec"), self.case.name


def _of_any_attempt(jobset: Object, job: str, attempt: str) -> Object:
    """The JobSet's spec, with the attempt's number taken out of names, labels and variables."""
    text = json.dumps(jobset["spec"], sort_keys=True)
    for before, after in (
        (f"{job}-{attempt}", f"{job}-N"),
        (f'"tpujob.dev/attempt": "{attempt}"', '"tpujob.dev/attempt": "N"'),
        (
            f'"name": "TPUJOB_ATTEMPT", "value": "{attempt}"',
            '"name": "TPUJOB_ATTEMPT", "value": "N"',
        ),
        (f'\\"attempt\\": {attempt},', '\\"attempt\\": N,'),
        (f'\\"attempt\\":{attempt},', '\\"attempt\\":N,'),
    ):
        text = text.replace(before, after)
    made: Object = json.loads(text)
    return made


def test_a_change_has_an_effect_and_can_be_taken_back(
    control_plane: Cluster, own_jobs: Jobs, tmp_path: Path
) -> None:
    """Refused at once, or answered; then the old spec makes the old children; never a traceback."""
    drawn, taken = _drawn(), 0
    with running(control_plane, tmp_path, own_jobs.namespace) as operator:
        for first in range(0, len(drawn), _BATCH):
            batch = [
                Changed(own_jobs, case, f"c-{first + number}")
                for number, case in enumerate(drawn[first : first + _BATCH])
            ]
            before = [one.settled() for one in batch]
            changed = [one.is_taken() for one in batch]
            for one, is_taken in zip(batch, changed, strict=True):
                if is_taken:
                    one.wait_answer()
                    one.change_back()
            for one, was in zip(batch, before, strict=True):
                assert one.settled() == was, one.case.name
            taken += sum(changed)
            for one in batch:
                own_jobs.delete(TPU_TRAINING_JOB, one.name)
        assert "Traceback" not in operator.life, operator.text
    assert taken >= len(drawn) // 5
