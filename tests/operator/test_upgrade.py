"""Jobs that train go through builds of the operator and back; the CRD may lag behind."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from localcluster.cluster import Cluster
from localcluster.kubeapi import Object
from tests.operator.builds import crd_of, environment, next_build
from tests.operator.pods import Pods, local_pods
from tests.operator.rig import ROOT, Jobs, running
from tpujob_operator.core.kinds import JOB_SET, POD, TPU_TRAINING_JOB

pytestmark = pytest.mark.control_plane
_CRD = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/tputrainingjobs.tpujob.dev"


@contextlib.contextmanager
def crd_restored(cluster: Cluster) -> Iterator[None]:
    """Other tests need the CRD as it is."""
    before = cluster.api.get(_CRD)["spec"]
    try:
        yield
    finally:
        cluster.api.merge(_CRD, {"spec": before})


def _lineage(jobs: Jobs) -> list[str]:
    """UIDs of what must not be made again."""
    found = [*jobs.all(JOB_SET), *jobs.all(POD)]
    return sorted(item["metadata"]["uid"] for item in found)


def _version(jobs: Jobs) -> str:
    found = jobs.find(TPU_TRAINING_JOB, "j")
    assert found is not None
    return str(found["metadata"]["resourceVersion"])


def _as(build: Path, pods: Pods) -> dict[str, str]:
    return {**pods.access, **environment(build)}


def test_a_job_trains_through_builds_and_back(
    control_plane: Cluster, own_jobs: Jobs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Next form, field, word and message, at first beside the old CRD: nothing restarts."""
    builds = {written: next_build(tmp_path, written) for written in (1, 2)}

    def place() -> None:
        own_jobs.run_pods("j", 3)

    def serve(build: Path, what: str, **expected: Any) -> str:
        """Run a build until the status says so; returns its log."""

        def is_so(status: Object) -> bool:
            found = {**status, "form": (status.get("ledger") or {}).get("form")}
            return all(found.get(name) == value for name, value in expected.items())

        with running(control_plane, tmp_path, own_jobs.namespace, env=_as(build, pods)) as operator:
            own_jobs.wait_status("j", is_so, what)
            assert "Traceback" not in operator.life, operator.text
            return operator.text

    with (
        crd_restored(control_plane),
        local_pods(control_plane, own_jobs, tmp_path, monkeypatch, place) as pods,
    ):
        pods.start()
        now = ROOT / "operator"
        serve(now, "this build", state="Running", step=29, form=1)
        before = _lineage(own_jobs)
        log = serve(builds[1], "next build, old CRD", state=None, flavour=None, form=1)
        assert "lacks status.state=Warm, status.flavour" in log
        control_plane.api.merge(_CRD, {"spec": crd_of(builds[1])["spec"]})
        serve(builds[1], "next build", state="Warm", flavour="vanilla", form=1)
        serve(builds[2], "the one after", state="Warm", flavour="vanilla", form=2)
        serve(builds[1], "back by one", state="Warm", flavour="vanilla", form=1)
        serve(now, "back by two", state="Running", flavour=None, form=1)
        assert _lineage(own_jobs) == before
        assert "HistoryLost" not in own_jobs.events("j")
        with running(control_plane, tmp_path, own_jobs.namespace, env=_as(now, pods)):
            pods.gate.touch()
            own_jobs.wait_condition("j", "Succeeded", "Completed")
    status = own_jobs.status("j")
    assert (status["generation"], status["step"], status.get("restarts")) == (1, 60, 0)
    assert not status.get("incidents")
    goodput = status["goodput"]
    assert sum(goodput["seconds"].values()) == pytest.approx(goodput["wallSeconds"], abs=0.001)


def test_an_operator_rests_beside_an_older_crd(
    control_plane: Cluster, own_jobs: Jobs, tmp_path: Path
) -> None:
    """It says what is lacking, makes the job's objects, and writes nothing for ever."""
    with crd_restored(control_plane):
        older = control_plane.api.get(_CRD)["spec"]
        schema = older["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["status"]
        del schema["properties"]["restarts"]
        schema["properties"]["state"]["enum"].remove("Pending")
        control_plane.api.merge(_CRD, {"spec": older})
        with running(control_plane, tmp_path, own_jobs.namespace) as operator:
            own_jobs.create("j")
            own_jobs.wait_pods("j", 3)
            own_jobs.create("another")
            own_jobs.wait_pods("another", 3)
            version = _version(own_jobs)
            own_jobs.create("third")
            own_jobs.wait_pods("third", 3)
            assert _version(own_jobs) == version
            assert "status.restarts" in operator.text
            assert "status.state=Pending" in operator.text
            assert "tpujob_operator_crd_lacks 2.0" in operator.get("metrics", "/metrics")
        status = own_jobs.status("j")
    assert status["attempt"] == 1
    assert "restarts" not in status
