"""Whose an object is: copied labels make nothing the operator's."""

from __future__ import annotations

from typing import Any

import pytest

from tpujob_operator.core.kinds import JOB, JOB_SET, POD, TPU_TRAINING_JOB, Kind
from tpujob_operator.core.ownership import owning_job

_LABELS = {"tpujob.dev/job": "j", "tpujob.dev/attempt": "2"}


def _meta(owner: Kind | None, name: str = "", **labels: str) -> dict[str, Any]:
    """Metadata of an object with the labels of attempt 2 of job j."""
    made: dict[str, Any] = {"name": "x", "labels": _LABELS | labels}
    if owner is not None:
        reference = {"apiVersion": owner.api_version, "kind": owner.kind, "name": name, "uid": "u"}
        made["ownerReferences"] = [{**reference, "controller": True}]
    return made


@pytest.mark.parametrize(
    ("kind", "owner", "name"),
    [
        (JOB_SET, TPU_TRAINING_JOB, "j"),
        (JOB, JOB_SET, "j-2"),
        (JOB, TPU_TRAINING_JOB, "j"),
        (POD, JOB, "j-2-slice-0"),
        (POD, JOB, "j-preflight"),
        (POD, JOB, "j-programs"),
    ],
)
def test_what_the_job_has_made_is_its_own(kind: Kind, owner: Kind, name: str) -> None:
    """Directly or through JobSet and the Job controller, also in an earlier attempt."""
    assert owning_job(kind, _meta(owner, name)) == "j"


@pytest.mark.parametrize("kind", [JOB_SET, JOB, POD])
@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (None, ""),
        (Kind("apps", "v1", "replicasets", "ReplicaSet"), "j-2-slice-0"),
        (TPU_TRAINING_JOB, "other"),
        (Kind("example.com", "v1", "jobs", "Job"), "j-2-slice-0"),
        (Kind("example.com", "v1", "jobsets", "JobSet"), "j-2"),
        (JOB_SET, "debug"),
        (JOB, "debug"),
        (JOB, "j-1-slice-0"),
    ],
)
def test_copied_labels_make_nothing_a_jobs_own(kind: Kind, owner: Kind | None, name: str) -> None:
    """Neither without a controller, nor with one that is none of the job's."""
    assert owning_job(kind, _meta(owner, name)) == ""


def test_an_owner_that_is_no_controller_proves_nothing() -> None:
    """Anything may refer to anything so that it is deleted with it."""
    meta = _meta(JOB, "j-2-slice-0")
    meta["ownerReferences"][0]["controller"] = False
    assert owning_job(POD, meta) == ""


def test_what_has_no_label_is_nobodys() -> None:
    """The operator does not watch it."""
    meta = _meta(TPU_TRAINING_JOB, "j")
    del meta["labels"]
    assert owning_job(JOB_SET, meta) == ""
