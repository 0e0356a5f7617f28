"""Models: what is accepted, what is refused and in which words."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tpujob_operator.api.base import parse_rfc3339, rfc3339
from tpujob_operator.api.models import MAX_NAME, InvalidJobError, parse_job, parse_status
from tpujob_operator.core.manifests import build
from tpujob_operator.core.manifests.options import ManifestOptions

Make = Callable[..., dict[str, Any]]
EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.yaml"))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_examples_are_valid(path: Path) -> None:
    """Every example is a valid job without a field that does not exist."""
    for document in yaml.safe_load_all(path.read_text()):
        assert parse_job(document, strict=True).spec.slices >= 1


def test_defaults(make_job: Make) -> None:
    """A minimal job gets the documented defaults."""
    spec = parse_job(make_job()).spec
    assert (spec.slices, spec.suspend, spec.recovery.budgets.process) == (1, False, 20)
    assert spec.checkpoint is not None
    assert (spec.checkpoint.keep, spec.checkpoint.interval.policy) == (3, "Auto")


_BAD: list[tuple[dict[str, Any], str]] = [
    ({"topology": "4x5"}, "spec.topology: v5e has no topology 4x5"),
    ({"topology": "4x5"}, "nearest are"),
    ({"accelerator": "v5"}, "spec.accelerator: "),
    ({"accelerator": "v2"}, "not offered by GKE"),
    ({"topology": "4by4"}, "not of the form 4x4"),
    (
        {"trainer": {"config": {}, "resources": {"limits": {"google.com/tpu": 8}}}},
        "limits of google.com/tpu is 8, but a host of v5e 2x4 has 4",
    ),
    ({"slices": 0}, "spec.slices: Input should be greater than or equal to 1"),
    ({"trainer": None}, "exactly one of template and trainer"),
    ({"checkpoint": None}, "trainer needs checkpoint.directory"),
    ({"preflight": "compile"}, "spec.preflight: Input should be 'None' or 'Compile'"),
    ({"checkpoint": {"directory": "/c", "interval": {"policy": "Steps"}}}, "steps belongs to"),
    ({"checkpoint": {"directory": "/c", "interval": {"seconds": 5}}}, "seconds belongs to"),
    ({"checkpoint": {"directory": "/c", "keep": 1}}, "spec.checkpoint.keep: "),
    ({"health": {"straggler": {"ratio": 1.0}}}, "straggler.ratio: must be between 1.05 and 10"),
    ({"health": {"progressPattern": "step="}}, "needs a group named step"),
    ({"health": {"progressPattern": "(?P<step>"}}, "not a regular expression"),
    ({"health": {"progressPattern": "(?P<step>a{99999999999})"}}, "not a regular expression"),
    ({"health": {"progressPattern": "(?P<step>x)" * 30}}, "at most 256 characters"),
    (
        {"accelerator": "v5p", "topology": "16x20x28", "slices": 8},
        "must not have more than 16384 hosts: ask for fewer or smaller slices; these are 17920",
    ),
    (
        {"slices": 512, "trainer": {"config": {"x": "y" * 300_000}}},
        "in each of 1024 pods are too much for the cluster: at most 262144 bytes are allowed",
    ),
    ({"trainer": {"config": {"x": "y" * 300_000}}}, "at most 262144 bytes are allowed"),
    ({"recovery": {"budgets": {"process": -2}}}, "spec.recovery.budgets.process: "),
    ({"trainer": {"config": {}, "env": [{"name": "TPUJOB_X", "value": "1"}]}}, "TPUJOB_X"),
    ({"trainer": {"config": {}, "volumes": [{"name": "tpujob"}]}}, "tpujob is the operator's"),
    ({"trainer": {"config": {}, "volumes": [{"name": "tpujob-snapshots"}]}}, "is the operator's"),
    ({"slices": 2, "elastic": {"minSlices": 3}}, "minSlices: 3 is above slices: give 1 to 2"),
    ({"objectives": {"goodput": 95}}, "spec.objectives.goodput: Input should be less than"),
    ({"slices": 1024, "spares": 1}, "slices and spares together must not be above 1024"),
    ({"provisioning": {"model": "Reserved"}}, "reservation belongs to model Reserved"),
    (
        {"provisioning": {"model": "Spot", "reservation": {"name": "r"}}},
        "reservation belongs to model Reserved",
    ),
    (
        {"provisioning": {"model": "Spot", "maxRunDurationSeconds": 3600}},
        "activeDeadlineSeconds ends a job",
    ),
    (
        {"provisioning": {"model": "FlexStart", "maxRunDurationSeconds": 60}},
        "greater than or equal to 600",
    ),
    (
        {"accelerator": "v4", "topology": "2x2x1", "provisioning": {"model": "FlexStart"}},
        "FlexStart is not offered for v3 and v4",
    ),
    ({"provisioning": {"model": "Reserved", "reservation": {"name": "a/b"}}}, "should match"),
    ({"queue": "Mine"}, "spec.queue: a LocalQueue's name has lower-case letters"),
    ({"queueTopologyLabel": "rack"}, "queueTopologyLabel: belongs to a job in a queue"),
    ({"queue": "q", "queueTopologyLabel": "a b"}, "must be a label such as cloud.google.com"),
]


@pytest.mark.parametrize(("changes", "words"), _BAD, ids=[str(i) for i in range(len(_BAD))])
def test_bad_specs_are_refused(make_job: Make, changes: dict[str, Any], words: str) -> None:
    """A bad value is refused with the field's path and what would be valid."""
    with pytest.raises(InvalidJobError) as refused:
        parse_job(make_job(**changes))
    assert words in str(refused.value)


@pytest.mark.parametrize(
    ("containers", "words"),
    [
        ([], "spec.template.spec.containers"),
        ([{"name": "a"}], "container a trains and needs a command"),
        ([{"name": "a", "command": []}], "needs a command"),
        ([{"name": "a", "command": ["x"]}, {"name": "b"}], "There are: a, b"),
        ([{"name": "tpujob-agent", "command": ["x"]}], "tpujob-agent is the operator's"),
        ([{"name": "a", "command": ["x"], "env": [{"name": "TPUJOB_JOB"}]}], "TPUJOB_JOB"),
    ],
)
def test_bad_templates_are_refused(
    make_templated: Make, containers: list[dict[str, Any]], words: str
) -> None:
    """A template without exactly one container that can be wrapped is refused in words."""
    with pytest.raises(InvalidJobError) as refused:
        parse_job(make_templated(*containers))
    assert words in str(refused.value)


def test_a_program_of_ones_own_has_no_preflight(make_templated: Make) -> None:
    """Nobody knows how to compile it without its chips."""
    job = make_templated({"name": "a", "command": ["x"]}, preflight="Compile")
    with pytest.raises(InvalidJobError, match=r"spec\.preflight: Compile needs trainer"):
        parse_job(job)


def test_nodes_of_another_kind_are_refused(make_templated: Make) -> None:
    """A node selector that no node of the slice can fulfil is refused."""
    job = make_templated({"name": "a", "command": ["x"]})
    selector = {"cloud.google.com/gke-tpu-topology": "4x4", "zone": "a"}
    job["spec"]["template"]["spec"]["nodeSelector"] = selector
    with pytest.raises(InvalidJobError, match="gke-tpu-topology is 4x4, but a host of v5e 2x4"):
        parse_job(job)


@pytest.mark.parametrize("levels", [70, 100_000])
def test_what_is_nested_deeply_is_refused(make_job: Make, levels: int) -> None:
    """Before anything that would recurse into it."""
    nested: Any = 1
    for _ in range(levels):
        nested = [nested]
    job = make_job()
    job["spec"]["trainer"]["config"]["x"] = nested
    with pytest.raises(InvalidJobError, match="more than 64 levels"):
        parse_job(job)


@pytest.mark.parametrize("name", ["a" * (MAX_NAME + 1), "1a", "a.b", "A", "a-"])
def test_bad_names_are_refused(make_job: Make, name: str) -> None:
    """A name that pods cannot be named after is refused."""
    with pytest.raises(InvalidJobError, match="the name"):
        parse_job(make_job(name))


def test_all_problems_are_told_at_once(make_job: Make) -> None:
    """One answer names every wrong field."""
    with pytest.raises(InvalidJobError) as refused:
        parse_job(make_job(slices=0, topology=3, suspend="perhaps"))
    assert len(str(refused.value).splitlines()) == 3


def test_unknown_fields(make_job: Make) -> None:
    """A field of a newer release is ignored, but a file a person wrote may not hold any."""
    job = make_job(notYet={"some": 1})
    assert parse_job(job).spec.slices == 1
    with pytest.raises(InvalidJobError, match=r"spec\.notYet"):
        parse_job(job, strict=True)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"slices": "4"}, "spec.slices: must be of type integer"),
        ({"suspend": "true"}, "spec.suspend: must be of type boolean"),
        ({"spares": True}, "spec.spares: must be of type integer"),
        ({"objectives": {"goodput": "0.9"}}, "spec.objectives.goodput: must be of type number"),
    ],
)
def test_types_are_not_converted(make_job: Make, changes: dict[str, Any], words: str) -> None:
    """The API server would refuse them, so a file a person wrote may not hold any."""
    with pytest.raises(InvalidJobError, match=words):
        parse_job(make_job(**changes), strict=True)


def test_status_cannot_make_a_job_invalid(make_job: Make) -> None:
    """Whatever stands in the status, the job is read, and the readable rest of the status too."""
    job = make_job() | {"status": {"state": "Odd", "attempt": 2, "incidents": [{"at": 3}]}}
    assert parse_job(job).status.attempt is None
    status = parse_status(job)
    assert (status.state, status.attempt, status.incidents) == (None, 2, [])


def test_template_survives_untouched(make_templated: Make) -> None:
    """Fields of pods that the operator does not know come back exactly as they were given."""
    container = {
        "name": "main",
        "command": ["python", "t.py"],
        "lifecycle": {"preStop": {"exec": {"command": ["true"]}}},
        "env": [{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}],
    }
    raw = make_templated(container)
    template = parse_job(raw).spec.template
    assert template is not None
    assert template.to_json() == raw["spec"]["template"]


def test_odd_resources_are_left_to_kubernetes(make_templated: Make) -> None:
    """What stands beside requests and limits of chips is not looked into."""
    odd = {"limits": {"cpu": 1}, "requests": None, "name": 3, "claims": [{"name": "c"}]}
    job = parse_job(make_templated({"name": "a", "command": ["x"], "resources": odd}))
    assert build(job, attempt=1, options=ManifestOptions("key", "operator", "trainer"))


@pytest.mark.parametrize("at_ms", [0, 1, 999, 1_795_248_000_123])
def test_times_round_trip(at_ms: int) -> None:
    """Times are written in milliseconds and read back exactly."""
    assert parse_rfc3339(rfc3339(at_ms)) == at_ms


def test_times_of_kubernetes_are_read() -> None:
    """Times in whole seconds, as Kubernetes writes them, are read; times without a zone are not."""
    assert parse_rfc3339("1970-01-01T00:00:02Z") == 2000
    with pytest.raises(ValueError, match="without a zone"):
        parse_rfc3339("1970-01-01T00:00:02")


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.sampled_from(["", "a", "trainer", "$(x)"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["name", "command", "env", "spec", "containers", "policy"]), inner
        )
    ),
    max_leaves=8,
)
_PATHS = [
    ("metadata",), ("metadata", "name"), ("spec",), ("spec", "slices"), ("spec", "topology"),
    ("spec", "template"), ("spec", "template", "spec"), ("spec", "template", "spec", "containers"),
    ("spec", "template", "spec", "initContainers"), ("spec", "template", "spec", "volumes"),
    ("spec", "template", "metadata"), ("spec", "trainer"), ("spec", "trainer", "env"),
    ("spec", "checkpoint"), ("spec", "checkpoint", "interval"), ("spec", "recovery"),
    ("spec", "health", "progressPattern"), ("spec", "priorityClassName"), ("status",),
]  # fmt: skip


@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(path=st.sampled_from(_PATHS), value=_JSON, is_templated=st.booleans())
def test_garbage_is_refused_in_words(
    path: tuple[str, ...],
    value: Any,
    is_templated: bool,
    make_job: Make,
    make_templated: Make,
) -> None:
    """Whatever stands at a place of a job, it is built or refused with a message; never a crash."""
    job = make_templated({"name": "a", "command": ["x"]}) if is_templated else make_job()
    place = job
    for key in path[:-1]:
        place = place.setdefault(key, {})
    place[path[-1]] = value
    try:
        parsed = parse_job(job, strict=True)
    except InvalidJobError as refused:
        outcome = str(refused)
    else:
        options = ManifestOptions("key", "operator", "trainer")
        outcome = build(parsed, attempt=1, options=options)[-1]["kind"]
    assert outcome


@pytest.mark.parametrize("raw", [None, [], "x", {}, {"spec": 3}, {"metadata": {}, "spec": []}])
def test_what_is_no_job_is_refused(raw: Any) -> None:
    """A document that is no object, or has no spec, is refused like any other bad job."""
    with pytest.raises(InvalidJobError):
        parse_job(raw, strict=True)
