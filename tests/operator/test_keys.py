"""The operator's key: made once, never rewritten, missed in words."""

from __future__ import annotations

import base64
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from localcluster.cluster import Cluster
from tests.conftest import make_namespace
from tests.operator.pods import local_pods
from tests.operator.rig import Jobs, running, started
from tests.waiting import PATIENCE_S
from tpujob_operator.core.kinds import JOB_SET, SECRET
from tpujob_operator.core.manifests import secret

pytestmark = pytest.mark.control_plane
_OLD, _NEW = "the key that jobs were made with", "the key of another installation"


@pytest.fixture
def home(control_plane: Cluster) -> Iterator[Jobs]:
    """The operator's own namespace."""
    name = f"home-{uuid.uuid4().hex[:8]}"
    make_namespace(control_plane, name)
    yield Jobs(control_plane, name)
    control_plane.api.request("DELETE", f"/api/v1/namespaces/{name}")


def _env(home: Jobs) -> dict[str, str]:
    return {
        "TPUJOB_OPERATOR_KEY": "",
        "TPUJOB_KEY_SECRET": "the-key",
        "TPUJOB_NAMESPACE": home.namespace,
    }


def _key(home: Jobs) -> str:
    return base64.b64decode(home.wait(SECRET, "the-key")["data"]["key"]).decode()


def _put_keys(home: Jobs, **keys: str) -> None:
    body = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": "the-key", "namespace": home.namespace},
        "stringData": keys,
    }
    home.api.apply(body)


def test_operator_makes_its_key_once(
    control_plane: Cluster, own_jobs: Jobs, home: Jobs, tmp_path: Path
) -> None:
    """Without a key there is one afterwards; the next operator takes it as it is."""
    with running(control_plane, tmp_path, own_jobs.namespace, env=_env(home)):
        own_jobs.create("j")
        key = _key(home)
        assert len(key) >= 16
        own_jobs.wait(SECRET, own_jobs.secret_of("j", key))
    version = home.wait(SECRET, "the-key")["metadata"]["resourceVersion"]
    with running(control_plane, tmp_path, own_jobs.namespace, env=_env(home)) as operator:
        assert key not in operator.text
    assert home.wait(SECRET, "the-key")["metadata"]["resourceVersion"] == version


def test_unusable_key_is_no_start(control_plane: Cluster, home: Jobs, tmp_path: Path) -> None:
    """A key that is too short ends the operator with words about what to do."""
    _put_keys(home, key="short")
    with started(control_plane, tmp_path, home.namespace, env=_env(home)) as operator:
        assert operator.popen.wait(PATIENCE_S) != 0
    assert "holds no usable key" in operator.text
    assert "Traceback" not in operator.text


def test_job_of_an_unknown_key_says_so(
    control_plane: Cluster, own_jobs: Jobs, tmp_path: Path
) -> None:
    """A changed key leaves the Secret of a running attempt alone, and the job tells what to do."""
    with running(control_plane, tmp_path, own_jobs.namespace, env={"TPUJOB_OPERATOR_KEY": _OLD}):
        own_jobs.create("j")
        own_jobs.run_pods("j", 3)
    name = own_jobs.secret_of("j", _OLD)
    before = own_jobs.wait(SECRET, name)
    jobset = own_jobs.wait(JOB_SET, "j-1")["metadata"]["uid"]
    with running(control_plane, tmp_path, own_jobs.namespace, env={"TPUJOB_OPERATOR_KEY": _NEW}):
        message = own_jobs.wait_condition("j", "Degraded", "KeyUnknown")
        assert secret.key_id(_OLD) in message
        assert "delete JobSet j-1" in message
        assert own_jobs.wait(SECRET, name) == before
        assert own_jobs.wait(JOB_SET, "j-1")["metadata"]["uid"] == jobset
        own_jobs.delete(JOB_SET, "j-1", propagationPolicy="Background")
        own_jobs.wait_gone(JOB_SET, "j-1", jobset)
        own_jobs.end_pods("j")
        own_jobs.wait(SECRET, own_jobs.secret_of("j", _NEW))
        own_jobs.wait_condition("j", "Degraded", "AsWanted", "False")


def test_worker_rejoins_after_the_key_was_changed(
    control_plane: Cluster,
    own_jobs: Jobs,
    home: Jobs,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An attempt goes on with the key it was made with, also a worker that comes later."""
    _put_keys(home, key=_OLD)
    env = _env(home)

    def place() -> None:
        own_jobs.run_pods("j", 3)

    with local_pods(
        control_plane, own_jobs, tmp_path, monkeypatch, place, env=env, operator_key=_OLD
    ) as pods:
        _put_keys(home, key=_NEW, previous=_OLD)
        pods.start()
        with running(control_plane, tmp_path, own_jobs.namespace, env={**env, **pods.access}):
            own_jobs.wait_status("j", lambda status: status.get("step", 0) >= 10, "steps")
            pods.rig.agents[1, 0].kill()
            pods.rig.agents[1, 0].wait()
            pods.start_agent(1)
            pods.gate.touch()
            own_jobs.wait_status("j", lambda status: status.get("step", 0) >= 50, "more steps")
    assert own_jobs.status("j")["attempt"] == 1
