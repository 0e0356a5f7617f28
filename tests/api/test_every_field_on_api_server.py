"""Every field with valid, odd and wrong values: refused in words, or built as it was meant."""

from __future__ import annotations

import collections
from concurrent.futures import ThreadPoolExecutor

import pytest

from localcluster.cluster import Cluster
from localcluster.kubeapi import ApiError, Object
from tests.api.judges import IN_WORDS, OPTIONS, DryRuns, refusal
from tests.api.mutations import Case, cases
from tpujob_operator.api.models import parse_job
from tpujob_operator.core.kinds import JOB_SET, TPU_TRAINING_JOB
from tpujob_operator.core.manifests import build

pytestmark = pytest.mark.control_plane

_LEAST = 2000
_THREADS = 8


class Judge:
    """What becomes of cases."""

    def __init__(self, server: DryRuns) -> None:
        self._server = server

    def outcome(self, case: Case) -> str:
        """One of a few words, or what is wrong."""
        try:
            return self._outcome(case)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is a finding
            return f"{case.name}: {type(error).__name__}: {error}"[:600]

    def _outcome(self, case: Case) -> str:
        raw = case.body("j")
        try:
            stored = self._server.create(TPU_TRAINING_JOB, raw)
        except ApiError as error:
            return _judged(case, raw, error)
        if reason := refusal(stored):
            return (
                "refused by the operator" if reason.startswith("spec") else f"{case.name}: {reason}"
            )
        stored["metadata"]["uid"] = "uid-1"
        [jobset] = [
            one
            for one in build(parse_job(stored), attempt=1, options=OPTIONS)
            if one["kind"] == "JobSet"
        ]
        try:
            self._server.create(JOB_SET, jobset)
        except ApiError as error:
            return "refused by Kubernetes" if error.status in IN_WORDS else str(error)
        return "taken"


def _judged(case: Case, raw: Object, error: ApiError) -> str:
    """A refusal at admission names the field, and our models refuse the same."""
    if error.status not in IN_WORDS or "spec" not in str(error):
        return f"{case.name}: {error}"
    return "refused at admission" if refusal(raw) else f"{case.name}: only by the CRD: {error}"


def test_every_field_is_refused_in_words_or_built(control_plane: Cluster, namespace: str) -> None:
    """No value of any field makes a crash, a silent refusal or a job that nobody can build."""
    judge = Judge(DryRuns(control_plane, namespace))
    drawn = list(cases())
    assert len(drawn) >= _LEAST
    with ThreadPoolExecutor(_THREADS) as pool:
        found = collections.Counter(pool.map(judge.outcome, drawn))
    expected = {
        "refused at admission", "refused by the operator", "refused by Kubernetes", "taken",
    }  # fmt: skip
    wrong = [outcome for outcome in found if outcome not in expected]
    assert not wrong, "\n".join(wrong[:40]) + f"\n{len(wrong)} of {len(drawn)}"
    assert {*found} == expected
