"""Jobs on real nodes go through builds of the operator, and through a time without any."""

from __future__ import annotations

import base64
import contextlib
import io
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from helm_python import Config

from demo import install
from faults import control_plane
from localcluster.kubeapi import Object
from tests.e2e.conftest import Installed
from tests.e2e.rig import START_S, Jobs, assert_adds_up, container_restarts, uids
from tests.operator.builds import crd_of, next_build
from tests.waiting import wait_until
from tpujob_operator.core.kinds import JOB_SET, TPU_TRAINING_JOB

pytestmark = pytest.mark.e2e

_CRD = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/tputrainingjobs.tpujob.dev"
_SYSTEM = f"/api/v1/namespaces/{install.NAMESPACE}"
_DEPLOYMENT = f"/apis/apps/v1/namespaces/{install.NAMESPACE}/deployments/tpujob-operator"
_FOLDER = "/builds"


class Life:
    """What a job must keep, whatever becomes of its operator."""

    def __init__(self, jobs: Jobs, job: str) -> None:
        self._jobs = jobs
        self._job = job
        self._before = self._identity()

    def _identity(self) -> tuple[object, ...]:
        pods = self._jobs.pods(self._job) | self._jobs.pods(self._job, "coordinator")
        made = [item["metadata"]["uid"] for item in self._jobs.all(JOB_SET, self._job)]
        return uids(pods), container_restarts(pods), made

    def assert_unbroken(self) -> None:
        """No pod restarts, no incident, no history lost, and the times add up."""
        assert self._identity() == self._before
        status = self._jobs.status(self._job)
        assert (status["generation"], status["attempt"], status.get("restarts")) == (1, 1, 0)
        assert not status.get("incidents")
        assert "HistoryLost" not in self._jobs.events(self._job)
        assert_adds_up(status)


@contextlib.contextmanager
def builds_served(jobs: Jobs, *builds: Path) -> Iterator[None]:
    """Operators can be run from these builds; afterwards all is as before."""
    before = jobs.api.get(_CRD)["spec"]
    files = {f"{build.name}.zip": base64.b64encode(_zipped(build)).decode() for build in builds}
    metadata = {"name": "builds"}
    body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "binaryData": files}
    jobs.api.request("POST", f"{_SYSTEM}/configmaps", body)
    try:
        yield
    finally:
        jobs.api.merge(_CRD, {"spec": before})
        jobs.api.request("DELETE", f"{_SYSTEM}/configmaps/builds")


def _zipped(build: Path) -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted((build / "tpujob_operator").rglob("*.py")):
            archive.write(path, path.relative_to(build))
    return made.getvalue()


def _run(jobs: Jobs, build: Path | None) -> None:
    """Have the operator's pods replaced by those of a build; None: by those of the image."""
    first = f"{_FOLDER}/{build.name}.zip" if build else ""
    change = {} if build else {"$patch": "delete"}
    container = {
        "name": "operator",
        "env": [{"name": "PYTHONPATH", "value": first, **change}],
        "volumeMounts": [{"name": "builds", "mountPath": _FOLDER, **change}],
    }
    volume = {"name": "builds", "configMap": {"name": "builds"}, **change}
    pod = {"spec": {"containers": [container], "volumes": [volume]}}
    jobs.api.request(
        "PATCH",
        _DEPLOYMENT,
        {"spec": {"template": pod}},
        "application/strategic-merge-patch+json",
    )


def _wait_written(jobs: Jobs, job: str, form: int, flavour: str | None) -> None:
    """Wait until a status has been written by the build that writes such."""

    def is_so(status: Object) -> bool:
        return (status["ledger"]["form"], status.get("flavour")) == (form, flavour)

    jobs.wait_status(job, is_so, f"form {form}, flavour {flavour}", START_S)


def _wait_steps(jobs: Jobs, job: str, more: int) -> None:
    jobs.wait_step(job, jobs.status(job)["step"] + more)


def test_a_job_trains_through_builds_and_back(jobs: Jobs, tmp_path: Path) -> None:
    """Next form of the ledger, new field, word and message: nothing restarts."""
    builds = {written: next_build(tmp_path, written) for written in (1, 2)}
    jobs.train("j")
    jobs.wait_step("j", 5)
    life = Life(jobs, "j")
    with builds_served(jobs, *builds.values()):
        jobs.api.merge(_CRD, {"spec": crd_of(builds[1])["spec"]})
        for build, form, flavour in (
            (builds[1], 1, "vanilla"),
            (builds[2], 2, "vanilla"),
            (builds[1], 1, "vanilla"),
            (None, 1, None),
        ):
            _run(jobs, build)
            _wait_written(jobs, "j", form, flavour)
            _wait_steps(jobs, "j", 1)
            life.assert_unbroken()


def test_a_job_trains_without_the_operator_and_is_taken_over_by_the_next_installation(
    e2e_cluster: Installed, jobs: Jobs
) -> None:
    """Uninstalling keeps CRD, jobs, pods and key; what happens until the next one is accounted."""
    jobs.train("j")
    step = jobs.wait_step("j", 5)["step"]
    life = Life(jobs, "j")
    kubeconfig = e2e_cluster.target.kubeconfig
    with Config(
        kubeconfig_path=kubeconfig and str(kubeconfig), namespace=install.NAMESPACE
    ) as helm:
        helm.uninstall(install.RELEASE)
    try:
        wait_until(lambda: not control_plane.operators(jobs.scene("j")), "no operator", START_S)
        assert jobs.find(TPU_TRAINING_JOB, "j") is not None
        wait_until(lambda: max(jobs.losses("j"), default=0) > step + 100, "steps", START_S, 1)
    finally:
        e2e_cluster.install()
    jobs.wait_step("j", step + 100)
    life.assert_unbroken()
    assert "KeyUnknown" not in str(jobs.status("j")["conditions"])
    assert jobs.status("j")["goodput"]["seconds"].get("unattributed", 0) == 0
