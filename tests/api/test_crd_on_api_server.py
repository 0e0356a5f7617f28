"""The CRD on a real API server: accepted, and refusing what the models refuse, in good words."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from localcluster.cluster import Cluster
from localcluster.kubeapi import ApiError
from tests.specs import OWN_PROGRAM
from tpujob_operator.api.models import MAX_NAME, InvalidJobError, parse_job
from tpujob_tpu.catalogue import USABLE

pytestmark = pytest.mark.control_plane

Make = Callable[..., dict[str, Any]]
Object = dict[str, Any]
EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.yaml"))


class Server:
    """Dry runs and real writes of jobs in one namespace."""

    def __init__(self, cluster: Cluster, namespace: str) -> None:
        self._api = cluster.api
        self._path = f"/apis/tpujob.dev/v1alpha1/namespaces/{namespace}/tputrainingjobs"

    def create(self, job: Object, *, dry_run: bool = True) -> Object:
        """What the API server makes of a new job."""
        job = copy.deepcopy(job)
        for key in ("namespace", "uid"):
            job["metadata"].pop(key, None)
        query = "?dryRun=All" if dry_run else ""
        return dict(self._api.request("POST", self._path + query, job))

    def merge(self, name: str, patch: Object, subresource: str = "") -> Object:
        """Change a job."""
        return dict(self._api.merge(f"{self._path}/{name}{subresource}", patch))

    def refusal(self, job: Object) -> str:
        """Why the API server refuses a new job; empty: it does not."""
        try:
            self.create(job)
        except ApiError as error:
            return str(error)
        return ""


@pytest.fixture
def server(control_plane: Cluster, namespace: str) -> Server:
    """The API server, with a namespace of one's own."""
    return Server(control_plane, namespace)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_examples_are_accepted(server: Server, path: Path) -> None:
    """The API server takes every example."""
    for document in yaml.safe_load_all(path.read_text()):
        assert server.create(document)["spec"]["slices"] >= 1


def test_defaults_come_from_the_schema(server: Server, make_job: Make) -> None:
    """The stored object holds the defaults that the models would fill in."""
    assert server.create(make_job())["spec"] == parse_job(make_job()).spec.to_json()


def test_open_parts_are_kept(server: Server, make_templated: Make) -> None:
    """Nothing of a pod template is pruned, and unknown fields of the API are."""
    container = {"name": "main", "command": ["x"], "lifecycle": {"preStop": {"sleep": {}}}}
    job = make_templated(container, notYet={"some": 1})
    stored = server.create(job)["spec"]
    assert stored["template"] == job["spec"]["template"]
    assert "notYet" not in stored


_TRAINER: Object = {"config": {}}
_OWN: Object = {"spec": {"containers": [{"name": "main", "image": "i", "command": ["x"]}]}}
_BAD: list[tuple[str, Object, str]] = [
    ("unknown topology", {"topology": "4x5"}, "v5e has no such topology; nearest are 2x4, 4x4"),
    ("odd chips", {"topology": "3x5"}, "do not divide into hosts of 4"),
    ("cube order", {"accelerator": "v4", "topology": "4x8x4"}, "nearest are 4x4x4, 4x4x8"),
    ("not a cube", {"accelerator": "v5p", "topology": "4x4x6"}, "v5p has no such topology"),
    ("too large", {"accelerator": "v4", "topology": "16x16x20"}, "16x16x16"),
    ("malformed topology", {"topology": "4by4"}, "must look like 4x4 or 4x4x4"),
    ("unknown generation", {"accelerator": "v9"}, "supported values"),
    ("not on GKE", {"accelerator": "v2"}, "usable are v3, v4"),
    ("announced", {"accelerator": "v8t"}, "announced"),
    ("no slices", {"slices": 0}, "greater than or equal to 1"),
    (
        "one checkpoint",
        {"checkpoint": {"directory": "/c", "keep": 1}},
        "greater than or equal to 2",
    ),
    (
        "too many needed",
        {"slices": 2, "elastic": {"minSlices": 3}},
        "elastic.minSlices must not be above slices",
    ),
    (
        "bundled trainer, recreated",
        {"recovery": {"pods": "Recreate"}},
        "recovery.pods Recreate is for programs in a template",
    ),
    (
        "spares, recreated",
        {**OWN_PROGRAM, "recovery": {"pods": "Recreate"}, "spares": 1},
        "spares and elastic have no use: leave them out, or recover InPlace",
    ),
    (
        "hangs, recreated",
        {**OWN_PROGRAM, "recovery": {"pods": "Recreate"}, "health": {"hang": {"factor": 6}}},
        "need the agent, which recovery.pods Recreate does without",
    ),
    (
        "preload, recreated",
        {**OWN_PROGRAM, "recovery": {"pods": "Recreate", "preload": ["jax"]}},
        "recovery.preload is for the agent",
    ),
    ("too many spares", {"slices": 1024, "spares": 1}, "must not be above 1024"),
    (
        "too many hosts",
        {"accelerator": "v5p", "topology": "16x20x28", "slices": 1, "spares": 7},
        "must not have more than 16384 hosts: ask for fewer or smaller slices",
    ),
    ("long pattern", {"health": {"progressPattern": "(?P<step>x)" * 30}}, "256"),
    ("goodput in percent", {"objectives": {"goodput": 95}}, "less than or equal to 1"),
    ("no program", {"trainer": None}, "exactly one of template"),
    (
        "preflight of another program",
        {"preflight": "Compile", "trainer": None, "template": _OWN},
        "preflight: Compile needs trainer",
    ),
    ("no checkpoint", {"checkpoint": None}, "without checkpoints a restart begins anew"),
    ("relative directory", {"checkpoint": {"directory": "ckpt"}}, "absolute path"),
    (
        "interval without steps",
        {"checkpoint": {"directory": "/c", "interval": {"policy": "Steps"}}},
        "interval.steps belongs to policy Steps",
    ),
    (
        "no reservation",
        {"provisioning": {"model": "Reserved"}},
        "provisioning.reservation belongs to model Reserved: give both or neither",
    ),
    (
        "reservation of spot nodes",
        {"provisioning": {"model": "Spot", "reservation": {"name": "r"}}},
        "provisioning.reservation belongs to model Reserved: give both or neither",
    ),
    (
        "end of spot nodes",
        {"provisioning": {"model": "Spot", "maxRunDurationSeconds": 3600}},
        "provisioning.maxRunDurationSeconds belongs to model FlexStart",
    ),
    (
        "flex-start of old chips",
        {"accelerator": "v4", "topology": "2x2x1", "provisioning": {"model": "FlexStart"}},
        "FlexStart is not offered for v3 and v4",
    ),
    ("straggler", {"health": {"straggler": {"ratio": 1.01}}}, "must be between 1.05 and 10"),
    ("pattern", {"health": {"progressPattern": "step"}}, "needs a group named step"),
    (
        "reserved variable",
        {"trainer": _TRAINER | {"env": [{"name": "TPUJOB_X"}]}},
        "TPUJOB_* are set by the operator",
    ),
    (
        "reserved volume",
        {"trainer": _TRAINER | {"volumes": [{"name": "tpujob"}]}},
        "the volume name tpujob is the operator's",
    ),
    ("queue", {"queue": "Mine"}, "lower-case letters, digits and dashes"),
    ("topology without queue", {"queueTopologyLabel": "rack"}, "give queue, too"),
    (
        "odd label",
        {"queue": "q", "queueTopologyLabel": "a b"},
        "must be the name of a node label, such as cloud.google.com/gke-nodepool",
    ),
]


@pytest.mark.parametrize(
    ("changes", "words"), [bad[1:] for bad in _BAD], ids=[bad[0] for bad in _BAD]
)
def test_bad_specs_are_refused(server: Server, make_job: Make, changes: Object, words: str) -> None:
    """A bad spec is refused at admission, with words that say what would be valid."""
    job = make_job(**changes)
    assert words in server.refusal(job)
    with pytest.raises(InvalidJobError):
        parse_job(job)


_NO_COMMAND = [{"name": "a", "image": "i"}]
_TWO = [{"name": "a", "command": ["x"]}, {"name": "b", "command": ["x"]}]


@pytest.mark.parametrize(
    ("containers", "words"),
    [
        ([], "at least 1 item"),
        (_NO_COMMAND, "the container that trains needs a command"),
        ([{"name": "trainer"}, {"name": "b", "command": ["x"]}], "needs a command"),
        (_TWO, "name one of them trainer"),
        ([*_TWO, _TWO[0]], "Duplicate value"),
        ([{"name": "tpujob-agent", "command": ["x"]}], "is the operator's"),
    ],
    ids=["none", "no command", "trainer without command", "several", "twice", "reserved"],
)
def test_bad_templates_are_refused(
    server: Server, make_templated: Make, containers: list[Object], words: str
) -> None:
    """A template in which nobody can be wrapped is refused at admission."""
    assert words in server.refusal(make_templated(*containers))


def test_program_that_nobody_wraps_needs_no_command(server: Server, make_templated: Make) -> None:
    """With recovery.pods Recreate the entry point of the image will do."""
    job = make_templated({"name": "a", "image": "i"}, recovery={"pods": "Recreate"})
    assert server.create(job)["spec"] == parse_job(job).spec.to_json()


@pytest.mark.parametrize(
    ("name", "words"),
    [("a" * (MAX_NAME + 1), f"at most {MAX_NAME} characters"), ("1a", "begin with a letter")],
)
def test_bad_names_are_refused(server: Server, make_job: Make, name: str, words: str) -> None:
    """A name that pods cannot be named after is refused."""
    assert words in server.refusal(make_job(name))
    assert server.refusal(make_job("a" * MAX_NAME)) == ""


_SAMPLE = (
    "1x1", "2x2", "2x4", "4x2", "3x5", "16x16", "16x32",
    "1x1x1", "2x2x1", "2x2x3", "4x4x4", "4x4x6", "4x12x8", "12x12x36", "4x4x100", "100x100x100",
)  # fmt: skip


def test_topologies_are_judged_alike(server: Server, make_job: Make) -> None:
    """API server and models agree on every topology of a wide sample, for each generation."""
    for generation in USABLE:
        for topology in {*_SAMPLE, *generation.topologies[-1:]}:
            job = make_job(accelerator=generation.name, topology=topology)
            try:
                parse_job(job)
                is_valid = True
            except InvalidJobError:
                is_valid = False
            assert (server.refusal(job) == "") == is_valid, (generation.name, topology)


def test_the_checkpoint_directory_cannot_be_changed(server: Server, make_job: Make) -> None:
    """A new attempt would resume from nothing; the message says what to do."""
    server.create(make_job(), dry_run=False)
    with pytest.raises(ApiError, match="delete the job and create a new one"):
        server.merge("j", {"spec": {"checkpoint": {"directory": "/other"}}})


def test_program_cannot_be_exchanged(server: Server, make_job: Make) -> None:
    """A job stays with its template or its trainer."""
    server.create(make_job(), dry_run=False)
    template = {"spec": {"containers": [{"name": "a", "command": ["x"]}]}}
    with pytest.raises(ApiError, match="cannot be exchanged"):
        server.merge("j", {"spec": {"trainer": None, "template": template}})


def test_the_rest_can_be_changed(server: Server, make_job: Make) -> None:
    """What shapes pods makes a new attempt, all other fields change in place."""
    server.create(make_job(), dry_run=False)
    patch = {
        "accelerator": "v6e",
        "topology": "4x4",
        "slices": 2,
        "trainer": {"config": {"steps": 4}, "image": "other"},
        "provisioning": {"model": "FlexStart", "maxRunDurationSeconds": 3600},
        "suspend": True,
        "ttlSecondsAfterFinished": 5,
        "activeDeadlineSeconds": 50,
        "checkpoint": {"keep": 9, "interval": {"policy": "Steps", "steps": 7}},
        "recovery": {"budgets": {"process": 1}, "preload": ["numpy"]},
        "health": {"progressPattern": "(?P<step>[0-9]+)"},
    }
    changed = server.merge("j", {"spec": patch})
    assert changed["spec"]["suspend"] is True
    assert changed["spec"]["checkpoint"]["keep"] == 9
    assert changed["metadata"]["generation"] == 2


def test_status_is_a_subresource(server: Server, make_job: Make) -> None:
    """Status is written by itself, keeps the operator's own bookkeeping, and never the spec."""
    server.create(make_job(), dry_run=False)
    status = {"state": "Running", "step": 3, "ledger": {"anything": [1, {"goes": True}]}}
    written = server.merge("j", {"status": status, "spec": {"suspend": True}}, "/status")
    assert written["status"]["ledger"] == status["ledger"]
    assert written["spec"]["suspend"] is False
    assert "status" not in server.merge("j", {"status": {"step": 9}}) or (
        server.merge("j", {})["status"]["step"] == 3
    )


def test_printed_columns(
    control_plane: Cluster, namespace: str, server: Server, make_job: Make
) -> None:
    """`kubectl get` shows state, progress and the newest incident under the short name."""
    server.create(make_job(), dry_run=False)
    at = "2026-11-21T08:00:00.000Z"
    incidents = [{"at": at, "cause": "node"}, {"at": at, "cause": "process"}]
    status = {"state": "Running", "progress": {"percent": 41.2}, "incidents": incidents}
    server.merge("j", {"status": status}, "/status")
    shown = control_plane.kubectl("get", "tj", "-n", namespace, "-o", "wide").stdout.split("\n")
    assert shown[0].split()[:4] == ["NAME", "STATE", "SLICES", "STEP"]
    assert {"Running", "41.2", "process"} <= set(shown[1].split())
