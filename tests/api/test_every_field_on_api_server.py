"""Every field with valid, odd and wrong values: refused in words, or built as it was meant."""

from __future__ import annotations

import collections
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from kubernetes import config

from localcluster.cluster import Cluster
from localcluster.kubeapi import Api, ApiError, Object
from tests.api.mutations import Case, cases
from tests.e2e.access import Access
from tpujob_operator.api.models import InvalidJobError, parse_job
from tpujob_operator.core.kinds import JOB_SET, TPU_TRAINING_JOB, Kind
from tpujob_operator.core.manifests import build
from tpujob_operator.core.manifests.options import ManifestOptions

pytestmark = pytest.mark.control_plane

_LEAST = 2000
_IN_WORDS = (400, 422)
_THREADS = 8
_OPTIONS = ManifestOptions("key", "operator", "trainer")


class Judge:
    """What becomes of cases; each thread has a connection of its own."""

    def __init__(self, cluster: Cluster, namespace: str) -> None:
        self._kubeconfig = str(cluster.kubeconfig)
        self._namespace = namespace
        self._local = threading.local()

    @property
    def _api(self) -> Api:
        if not hasattr(self._local, "api"):
            load: Any = config.new_client_from_config
            self._local.api = Access(load(config_file=self._kubeconfig))
        api: Api = self._local.api
        return api

    def outcome(self, case: Case) -> str:
        """One of a few words, or what is wrong."""
        try:
            return self._outcome(case)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is a finding
            return f"{case.name}: {type(error).__name__}: {error}"[:600]

    def _outcome(self, case: Case) -> str:
        raw = case.body("j")
        try:
            stored = self._dry_run(TPU_TRAINING_JOB, raw)
        except ApiError as error:
            return _judged(case, raw, error)
        if reason := _refusal(stored):
            return (
                "refused by the operator" if reason.startswith("spec") else f"{case.name}: {reason}"
            )
        stored["metadata"]["uid"] = "uid-1"
        [jobset] = [
            one
            for one in build(parse_job(stored), attempt=1, options=_OPTIONS)
            if one["kind"] == "JobSet"
        ]
        try:
            self._dry_run(JOB_SET, jobset)
        except ApiError as error:
            return "refused by Kubernetes" if error.status in _IN_WORDS else str(error)
        return "taken"

    def _dry_run(self, kind: Kind, thing: Object) -> Object:
        thing["metadata"].pop("namespace", None)
        return dict(self._api.request("POST", f"{kind.path(self._namespace)}?dryRun=All", thing))


def _judged(case: Case, raw: Object, error: ApiError) -> str:
    """A refusal at admission names the field, and our models refuse the same."""
    if error.status not in _IN_WORDS or "spec" not in str(error):
        return f"{case.name}: {error}"
    return "refused at admission" if _refusal(raw) else f"{case.name}: only by the CRD: {error}"


def _refusal(raw: Object) -> str:
    try:
        parse_job(raw, strict=True)
    except InvalidJobError as refused:
        return str(refused)
    return ""


def test_every_field_is_refused_in_words_or_built(control_plane: Cluster, namespace: str) -> None:
    """No value of any field makes a crash, a silent refusal or a job that nobody can build."""
    judge = Judge(control_plane, namespace)
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
