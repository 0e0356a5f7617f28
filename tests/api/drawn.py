"""Random jobs: what the schema allows, mostly sensible, and at times spoilt in one place."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

from hypothesis import strategies as st

from tpujob_operator.api.base import API_VERSION, KIND
from tpujob_operator.api.spec import JobSpec
from tpujob_operator.api.structural import structural_schema
from tpujob_tpu.catalogue import USABLE

_WORDS = st.sampled_from(["a", "b", "main", "trainer", "x-1"])
_QUANTITIES = st.sampled_from([1, "2", "500m", "1Gi"])
_JSON = st.recursive(
    st.booleans() | st.integers(-9, 9) | _WORDS,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(_WORDS, inner, max_size=2),
    max_leaves=4,
)


def _named(**others: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    item = st.fixed_dictionaries({"name": _WORDS}, optional=others)
    return st.lists(item, max_size=2, unique_by=lambda one: str(one["name"]))


_ENV = _named(value=_WORDS)
_MOUNTS = st.lists(st.fixed_dictionaries({"name": _WORDS, "mountPath": st.just("/m")}), max_size=1)
_AMOUNTS = st.dictionaries(st.sampled_from(["cpu", "memory"]), _QUANTITIES, max_size=2)
_RESOURCES = st.fixed_dictionaries({}, optional={"requests": _AMOUNTS, "limits": _AMOUNTS})
_VOLUMES = _named(emptyDir=st.just({}))
_CONTAINER: dict[str, Any] = {
    "image": st.just("i"),
    "args": st.lists(_WORDS, max_size=2),
    "env": _ENV,
    "resources": _RESOURCES,
    "volumeMounts": _MOUNTS,
}
_COMMAND = st.lists(_WORDS, min_size=1, max_size=2)
_TRAINS = st.fixed_dictionaries(
    {"name": st.just("trainer"), "command": _COMMAND}, optional=_CONTAINER
)
_BESIDE = st.fixed_dictionaries({"name": st.just("beside")}, optional=_CONTAINER)
_POD = st.fixed_dictionaries(
    {"containers": st.tuples(_TRAINS).map(list) | st.tuples(_BESIDE, _TRAINS).map(list)},
    optional={"volumes": _VOLUMES, "nodeSelector": st.just({"zone": "a"})},
)
_PROVISIONING = st.one_of(
    st.sampled_from([{"model": "OnDemand"}, {"model": "Spot"}, {"model": "FlexStart"}]),
    st.just({"model": "Reserved", "reservation": {"name": "r"}}),
    st.just({"model": "FlexStart", "maxRunDurationSeconds": 3600}),
)
_INTERVAL = st.sampled_from(
    [{}, {"policy": "Auto"}, {"policy": "Steps", "steps": 9}, {"policy": "Seconds", "seconds": 9}]
)
#: What no schema tells, by path.
_SENSIBLE: dict[str, st.SearchStrategy[Any]] = {
    "template": st.fixed_dictionaries({"spec": _POD}),
    "trainer.env": _ENV,
    "trainer.resources": _RESOURCES,
    "trainer.volumes": _VOLUMES,
    "trainer.volumeMounts": _MOUNTS,
    "trainer.securityContext": st.just({"runAsUser": 7}),
    "checkpoint.directory": st.sampled_from(["/c", "gs://b/c"]),
    "checkpoint.interval": _INTERVAL,
    "provisioning": _PROVISIONING,
    "elastic.minSlices": st.just(1),
    "health.straggler.ratio": st.sampled_from([1.05, 2, 10]),
    "health.progressPattern": st.sampled_from(["(?P<step>[0-9]+)", "(?P<step>"]),
}


def _value(schema: dict[str, Any], path: str) -> st.SearchStrategy[Any]:
    """What a schema allows."""
    if path in _SENSIBLE:
        return _SENSIBLE[path]
    if "enum" in schema:
        return st.sampled_from(schema["enum"])
    if "properties" in schema:
        fields = {
            name: _value(field, f"{path}.{name}".removeprefix("."))
            for name, field in schema["properties"].items()
        }
        needed = {name: fields.pop(name) for name in schema.get("required", [])}
        return st.fixed_dictionaries(needed, optional=fields)
    least = schema.get("minimum", 0)
    kinds = {
        "boolean": st.booleans(),
        "integer": st.integers(least, min(schema.get("maximum", least + 9), least + 9)),
        "number": st.sampled_from([0, 0.5, 1]),
        "string": _WORDS,
        "array": st.lists(_WORDS, max_size=2),
        "object": st.dictionaries(_WORDS, _JSON, max_size=2),
    }
    return kinds[schema["type"]]


_SPEC = _value(structural_schema(JobSpec), "")
_ODD = st.sampled_from(
    [None, "", "x", "y" * 2000, -2, 0, 10**12, 0.3, True, [], [None], {}, {"name": 3}, "TPUJOB_A"]
)


@st.composite
def jobs(draw: st.DrawFn) -> dict[str, Any]:
    """A job; about half of them are valid."""
    spec: dict[str, Any] = draw(_SPEC)
    generation = draw(st.sampled_from(USABLE))
    spec["accelerator"] = generation.name
    spec["topology"] = draw(st.sampled_from(generation.topologies))
    if draw(st.booleans()):
        spec.pop("template", None)
        spec.setdefault("trainer", {"config": {}})
        spec.setdefault("checkpoint", {"directory": "/c"})
    else:
        spec.pop("trainer", None)
        spec.setdefault("template", {"spec": {"containers": [draw(_TRAINS)]}})
    if draw(st.integers(0, 2)) == 0:
        _spoil(draw, spec)
    return {"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": "j"}, "spec": spec}


def _spoil(draw: st.DrawFn, spec: dict[str, Any]) -> None:
    """Remove something, or put something odd in its place."""
    # Of a list Hypothesis likes the first item best, and few jobs would keep their accelerator.
    place, key = draw(st.randoms(use_true_random=True)).choice([*_places(spec)])
    if draw(st.booleans()):
        place[key] = copy.deepcopy(draw(_ODD))
    else:
        del place[key]


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every place within a value, as its container and key."""
    if isinstance(value, dict):
        keys: list[Any] = [*value]
    else:
        keys = [*range(len(value))] if isinstance(value, list) else []
    for key in keys:
        yield value, key
        yield from _places(value[key])
