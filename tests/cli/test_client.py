"""The Python client: jobs made, watched and looked at from a program, and errors one can catch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from kubernetes import client as kubernetes

from localcluster.cluster import Cluster
from tests.accounts import kubeconfig_of
from tests.namespaced import Namespaced
from tpujob_client import (
    Accelerator,
    Checkpoint,
    Client,
    ConditionType,
    ForbiddenError,
    InvalidJobError,
    Job,
    JobExistsError,
    JobNotFoundError,
    JobSpec,
    NothingToReportError,
    NotInstalledError,
    RefusedError,
    State,
    Trainer,
    UnreachableError,
    WaitTimeoutError,
    new_job,
    watching,
)
from tpujob_client.answers import explained
from tpujob_client.job import manifest
from tpujob_operator.api.base import API_VERSION, KIND
from tpujob_operator.core.kinds import TPU_TRAINING_JOB

pytestmark = pytest.mark.control_plane

SPEC = JobSpec(
    accelerator=Accelerator("v5e"),
    topology="2x4",
    trainer=Trainer(config={"steps": 3}),
    checkpoint=Checkpoint(directory="/checkpoints"),
)
_AT = "2026-01-01T00:00:00Z"


@pytest.fixture
def client(control_plane: Cluster, namespace: str) -> Client:
    """A client with the rights of an administrator."""
    return Client.from_kubeconfig(control_plane.kubeconfig, namespace=namespace)


def _tell(there: Namespaced, state: str, **conditions: str) -> None:
    """What an operator would write: a state, and the messages of the conditions that are True."""
    told = [
        {"type": kind, "status": "True", "reason": "Why", "message": message}
        | {"lastTransitionTime": _AT}
        for kind, message in conditions.items()
    ]
    path = TPU_TRAINING_JOB.path(there.namespace, "j", "status")
    there.api.merge(path, {"status": {"state": state, "conditions": told}})


def test_a_life(client: Client, there: Namespaced) -> None:
    """Made from types, read back with the cluster's defaults, suspended, resumed and deleted."""
    made = client.create(new_job("j", SPEC, labels={"team": "a"}))
    assert (made.name, made.namespace) == ("j", there.namespace)
    stored = there.find(TPU_TRAINING_JOB, "j") or {}
    assert stored["metadata"]["labels"] == {"team": "a"}
    assert client.get("j").spec == SPEC
    assert [job.name for job in client.list()] == ["j"]
    assert there.namespace in {job.namespace for job in client.list(everywhere=True)}
    assert client.suspend("j").spec.suspend is True
    assert client.resume("j").spec.suspend is False
    assert client.get("j").outcome is None
    with pytest.raises(NothingToReportError, match="does the operator run"):
        client.report("j")
    client.delete("j")
    with pytest.raises(JobNotFoundError):
        client.get("j")


def test_only_what_was_set_is_sent() -> None:
    """Defaults are the cluster's, which may be of another release than the client."""
    assert manifest(new_job("j", SPEC)) == {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {"name": "j"},
        "spec": {
            "accelerator": "v5e",
            "topology": "2x4",
            "trainer": {"config": {"steps": 3}},
            "checkpoint": {"directory": "/checkpoints"},
        },
    }


def test_waiting_tells_every_change(client: Client, there: Namespaced) -> None:
    """The caller hears of the job as it is and of each change, and gets it as it ended."""
    client.create(new_job("j", SPEC))
    seen: list[State | None] = []

    def on_change(job: Job) -> None:
        seen.append(job.status.state)
        if job.status.state is None:
            _tell(there, "Starting")
        elif job.status.state is State.STARTING:
            _tell(there, "Running", Ready="All hosts train.")
        elif job.status.state is State.RUNNING:
            _tell(there, "Failed", Failed="Budget spent.")

    ready = client.wait("j", ConditionType.READY, on_change=on_change)
    assert seen == [None, State.STARTING, State.RUNNING]
    assert ready.outcome is None
    ended = client.wait("j", on_change=on_change)
    assert seen[3:] == [State.FAILED]
    assert ended.outcome is not None
    assert (ended.outcome.type, ended.outcome.message) == ("Failed", "Budget spent.")


def test_waiting_has_an_end(client: Client, there: Namespaced) -> None:
    """A job that does not come in time, is deleted meanwhile or never was is an error."""
    client.create(new_job("j", SPEC))
    with pytest.raises(WaitTimeoutError, match=r"j did not come to Ready within 0\.3 s"):
        client.wait("j", ConditionType.READY, timeout_s=0.3)

    def delete(_: Job) -> None:
        there.delete(TPU_TRAINING_JOB, "j")

    with pytest.raises(JobNotFoundError, match="was deleted meanwhile"):
        client.wait("j", on_change=delete)
    with pytest.raises(JobNotFoundError, match="there is no TPUTrainingJob j in namespace"):
        client.wait("j")


def _point_at_nothing(client: Client) -> str:
    """Have the client ask where nobody answers; returns its own host."""
    configuration: Any = client.api_client.configuration
    configuration.refresh_api_key_hook = None  # it reads the kubeconfig's host again
    host = str(configuration.host)
    configuration.host = "https://127.0.0.1:1"
    return host


class _Interrupted(kubernetes.CustomObjectsApi):
    """Does something before each list, of which every new watch begins with one."""

    def __init__(self, api_client: Any, before: Iterator[object]) -> None:
        super().__init__(api_client)
        self._before = before

    def list_namespaced_custom_object(self, *args: Any, **options: Any) -> Any:
        if not options.get("watch"):
            next(self._before)
        return super().list_namespaced_custom_object(*args, **options)


def test_waiting_outlives_watches_and_outages(
    client: Client, there: Namespaced, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A watch that ends is begun again, an API server that is away is waited for."""
    client.create(new_job("j", SPEC))
    monkeypatch.setattr(watching, "_WATCH_S", 1)
    monkeypatch.setattr(watching, "_PAUSE_S", 0.05)

    def course() -> Iterator[None]:
        yield
        back = _point_at_nothing(client)
        yield
        yield
        client.api_client.configuration.host = back
        _tell(there, "Succeeded", Succeeded="Done.")
        yield

    client._objects = _Interrupted(client.api_client, course())
    outcome = client.wait("j").outcome
    assert outcome is not None
    assert outcome.type == "Succeeded"


def test_unreachable_clusters_are_told_at_once(client: Client) -> None:
    """What was never reached is not waited for: the address may be wrong."""
    _point_at_nothing(client)
    for ask in (client.get, client.wait):
        with pytest.raises(UnreachableError, match=r"127\.0\.0\.1:1 does not answer: is the"):
            ask("j")


def _bad_jobs() -> list[tuple[Mapping[str, Any], str]]:
    good = {"accelerator": "v5e", "topology": "2x4", "trainer": {"config": {}}}
    meta = {"name": "j"}
    return [
        ({}, "metadata: "),
        ({"metadata": meta, "spec": good}, "trainer needs checkpoint.directory"),
        ({"metadata": meta, "spec": good | {"topologie": "2x4"}}, "topologie: there is no such"),
    ]


@pytest.mark.parametrize(("job", "words"), _bad_jobs(), ids=["empty", "incomplete", "misspelt"])
def test_bad_jobs_are_not_sent(client: Client, job: Mapping[str, Any], words: str) -> None:
    """They are refused with every wrong field, before anything is sent."""
    with pytest.raises(InvalidJobError, match=words):
        client.create(job)
    assert client.list() == []


def test_refusals_of_the_cluster_are_errors_of_their_kind(client: Client) -> None:
    """Each says what to do, and can be caught by itself."""
    client.create(new_job("j", SPEC))
    with pytest.raises(JobExistsError, match="choose another name, or delete it first"):
        client.create(new_job("j", SPEC))
    with pytest.raises(RefusedError, match="directory cannot be changed"):
        client._change("j", {"checkpoint": {"directory": "/other"}})
    objects: Any = client._objects
    with (
        pytest.raises(NotInstalledError, match="install the operator's chart"),
        explained(client.api_client, client.namespace, "j"),
    ):
        objects.get_namespaced_custom_object("tpujob.dev", "v0", "x", "tputrainingjobs", "j")
    for verb in (client.suspend, client.delete, client.report):
        with pytest.raises(JobNotFoundError, match="there is no TPUTrainingJob nobody"):
            verb("nobody")


def test_missing_rights_are_told(control_plane: Cluster, namespace: str, tmp_path: Path) -> None:
    """With the role that has them."""
    account = {"apiVersion": "v1", "kind": "ServiceAccount"}
    control_plane.api.apply({**account, "metadata": {"name": "guest", "namespace": namespace}})
    kubeconfig = kubeconfig_of(control_plane, namespace, "guest", tmp_path / "kubeconfig")
    guest = Client.from_kubeconfig(kubeconfig, namespace=namespace)
    with pytest.raises(ForbiddenError, match=rf"in namespace {namespace} .* the role view there"):
        guest.list()
    with pytest.raises(ForbiddenError, match=r"you may not create .* the role edit there"):
        guest.create(new_job("j", SPEC))
