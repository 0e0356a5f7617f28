"""Random jobs on a real API server: admitted and built, or refused in words; nothing between."""

from __future__ import annotations

import collections
import json
import zlib
from typing import Any

import pytest
from hypothesis import given, settings

from localcluster.cluster import Cluster
from localcluster.kubeapi import ApiError, Object
from tests.api.drawn import jobs
from tests.api.judges import IN_WORDS, OPTIONS, DryRuns, refusal
from tpujob_operator.api.models import TPUTrainingJob, parse_job
from tpujob_operator.core.kinds import TPU_TRAINING_JOB, kind_of
from tpujob_operator.core.manifests import build

pytestmark = pytest.mark.control_plane

_JOBS = 1000
#: Of one in so many that are built, the API server is shown all objects.
_SHOWN = 5
#: Each outcome is met at least so often, or the jobs are not worth their name.
_LEAST = 10


class Judge:
    """What becomes of jobs."""

    def __init__(self, cluster: Cluster, namespace: str) -> None:
        self._server = DryRuns(cluster, namespace)
        self.outcomes: collections.Counter[str] = collections.Counter()

    def judge(self, raw: Object) -> None:
        """Have the API server judge a job, then our models, then build it."""
        stored, refused = self._admitted(raw)
        if refused:
            assert refused.status in IN_WORDS, refused
            assert "spec" in str(refused)
            assert refusal(raw), refused
            self.outcomes["refused at admission"] += 1
            return
        if reason := refusal(stored):  # the operator tells it in the status
            assert reason.startswith("spec")
            self.outcomes["refused by the operator"] += 1
            return
        self._build(parse_job(stored), stored)
        self.outcomes["built"] += 1

    def _admitted(self, raw: Object) -> tuple[Object, ApiError | None]:
        """The object with all defaults, or the API server's refusal."""
        try:
            return self._server.create(TPU_TRAINING_JOB, raw), None
        except ApiError as error:
            return {}, error

    def _build(self, job: TPUTrainingJob, stored: Object) -> None:
        assert _without_nulls(job.spec.to_json()) == _without_nulls(stored["spec"])
        objects = build(job, attempt=1, options=OPTIONS)
        assert [thing["kind"] for thing in objects] == _kinds(job)
        if zlib.crc32(json.dumps(stored["spec"]).encode()) % _SHOWN == 0:
            for thing in objects:
                self._show(thing)

    def _show(self, thing: Object) -> None:
        """Kubernetes takes an object, or says what is wrong in the open parts of its pods."""
        try:
            self._server.create(kind_of(thing), thing)
            self.outcomes[f"{thing['kind']} taken"] += 1
        except ApiError as error:
            if thing["kind"] != "JobSet" or error.status not in IN_WORDS:
                raise


def _kinds(job: TPUTrainingJob) -> list[str]:
    """What a job is made of; one that JobSet recreates has no coordinator to talk to."""
    is_alone = job.spec.recovery.recreates_pods
    return ["JobSet"] if is_alone else ["Secret", "Service", "JobSet"]


def _without_nulls(value: Any) -> Any:
    """An object as it is shown: a null is no value."""
    if isinstance(value, dict):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    return [_without_nulls(item) for item in value] if isinstance(value, list) else value


def test_random_jobs_are_built_or_refused(
    control_plane: Cluster, namespace: str, request: pytest.FixtureRequest
) -> None:
    """Never a crash, never a half-built job; what is refused at admission our models refuse too."""
    judge = Judge(control_plane, namespace)
    is_seeded = request.config.getoption("--hypothesis-seed") is not None

    @settings(max_examples=_JOBS, derandomize=not is_seeded, database=None)
    @given(raw=jobs())
    def look(raw: Object) -> None:
        judge.judge(raw)

    look()
    assert min(judge.outcomes.values()) >= _LEAST, judge.outcomes
    assert len(judge.outcomes) == 6
