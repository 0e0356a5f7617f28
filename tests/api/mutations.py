"""Jobs with one field changed: every field of the schema, by valid, odd and wrong values."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterator
from typing import Any

from tpujob_operator.api.base import API_VERSION, KIND
from tpujob_operator.api.spec import JobSpec
from tpujob_operator.api.structural import PRESERVE, structural_schema

Spec = dict[str, Any]
Path = tuple[str | int, ...]

_CONTAINER: Spec = {
    "name": "trainer",
    "image": "i",
    "command": ["x"],
    "args": ["y"],
    "env": [{"name": "A", "value": "b"}],
    "resources": {"requests": {"cpu": 1}, "limits": {"memory": "1Gi"}},
    "volumeMounts": [{"name": "v", "mountPath": "/v"}],
}
_COMMON: Spec = {
    "accelerator": "v5e",
    "topology": "2x4",
    "slices": 2,
    "spares": 1,
    "elastic": {"minSlices": 1, "replacementTimeoutSeconds": 60},
    "checkpoint": {
        "directory": "/c",
        "interval": {"policy": "Steps", "steps": 9},
        "keep": 4,
    },
    "recovery": {
        "budgets": dict.fromkeys(
            ("userError", "process", "infrastructure", "straggler", "noProgress"), 5
        ),
        "preload": ["jax"],
        "pods": "InPlace",
    },
    "health": {
        "hang": {"minSeconds": 70, "factor": 6},
        "straggler": {"ratio": 1.2, "action": "Report"},
        "progressPattern": "(?P<step>[0-9]+)",
    },
    "objectives": {"goodput": 0.9, "mfu": 0.5},
    "queueTopologyLabel": "rack",
    "queue": "q",
    "priorityClassName": "high",
    "suspend": True,
    "activeDeadlineSeconds": 900,
    "ttlSecondsAfterFinished": 900,
}
#: Jobs that together have every field.
FULL: dict[str, Spec] = {
    "own": {
        **_COMMON,
        "template": {
            "metadata": {"labels": {"a": "b"}, "annotations": {"a": "b"}},
            "spec": {
                "containers": [_CONTAINER],
                "initContainers": [{**_CONTAINER, "name": "first"}],
                "volumes": [{"name": "v", "emptyDir": {}}],
                "nodeSelector": {"a": "b"},
                "tolerations": [{"key": "a", "operator": "Exists"}],
            },
        },
        "provisioning": {"model": "Reserved", "reservation": {"name": "r", "project": "p"}},
    },
    "bundled": {
        **_COMMON,
        "trainer": {
            "image": "i",
            "config": {"steps": 3},
            "env": [{"name": "A", "value": "b"}],
            "resources": {"requests": {"cpu": 1}, "limits": {"memory": "1Gi"}},
            "volumes": [{"name": "v", "emptyDir": {}}],
            "volumeMounts": [{"name": "v", "mountPath": "/v"}],
            "serviceAccountName": "default",
            "securityContext": {"runAsUser": 7},
        },
        "provisioning": {"model": "FlexStart", "maxRunDurationSeconds": 3600},
        "preflight": "Compile",
    },
}
#: What most jobs are: fields of its own come to it one by one.
_SMALL: dict[str, Spec] = {
    "own": {
        "accelerator": "v5e",
        "topology": "2x2",
        "template": {"spec": {"containers": [{"name": "main", "image": "i", "command": ["x"]}]}},
    },
    "bundled": {
        "accelerator": "v5e",
        "topology": "2x2",
        "trainer": {"config": {}},
        "checkpoint": {"directory": "/c"},
    },
}
_REMOVED = object()
_OTHER_TYPES: tuple[Any, ...] = (None, [], {}, "x", 7, 1.5, True, [None], {"a": None})
_NUMBERS = (-1, 0, 1, 2**31, 2**53, 2**63 - 1, 2**63, 10**300, 1e300, -1e300, 0.5)
_TEXTS = (
    "", " ", "a b", "A", "-a", "a-", "ü", "a\nb", "a\x00b", "../..", "/007/", "١٢", "$(A)",
    "{{ a }}", "*", "a" * 64, "a" * 300, "a" * 5000,
)  # fmt: skip
_TOPOLOGIES = ("4x4", "2x2x1", "1x1", "0x4", "4x4x4x4", "999x999x999", "4X4", " 4x4", "4x4\n")
_PATTERNS = (
    "(?P<step>",
    "(?P<step>a{99999999999})",
    "(?P<step>[[a])",
    "(" * 120 + "(?P<step>x)" + ")" * 120,
)
_ADDRESSES = ("gs://b/c", "s3://b", "gs://", "file:///c", "/", "//", "/c/../d", "x://é")
_AMOUNTS = ("1", "1Gi", "-1", "1Zz", 0, -1, 2**63, 1.5, "1e400")
_MORE: dict[str, tuple[Any, ...]] = {
    "topology": _TOPOLOGIES,
    "accelerator": ("v4", "v6e", "v2", "v8t", "V5E"),
    "health.progressPattern": _PATTERNS,
    "checkpoint.directory": _ADDRESSES,
    "checkpoint.interval": ({}, {"policy": "Auto"}, {"policy": "Seconds", "seconds": 5}),
    "provisioning": ({"model": "Spot"}, {"model": "OnDemand"}, {"model": "FlexStart"}),
    "template.spec.containers[].env[].name": ("TPUJOB_TOKEN", "JAX_PLATFORMS"),
    "template.spec.containers[].name": ("tpujob-agent", "first"),
    "template.spec.volumes[].name": ("tpujob", "tpujob-snapshots"),
    "trainer.env[].name": ("TPUJOB_TOKEN", "JAX_PLATFORMS"),
    "trainer.volumes[].name": ("tpujob",),
    "recovery.pods": ("Recreate",),
    "health.straggler.ratio": (1.04, 1.05, 10, 10.01),
    "template.spec.nodeSelector{}": ("2x4",),
}


@dataclasses.dataclass(frozen=True)
class Case:
    """A job that differs from another one in one field."""

    name: str
    before: Spec
    after: Spec

    def body(self, name: str, *, changed: bool = True) -> dict[str, Any]:
        """The object, with or without the change."""
        spec = copy.deepcopy(self.after if changed else self.before)
        return {"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": name}, "spec": spec}


def cases() -> Iterator[Case]:
    """Every field of each full job, and those that a small one can have."""
    schema = structural_schema(JobSpec)
    for size, jobs in {"full": FULL, "small": _SMALL}.items():
        for kind, spec in jobs.items():
            for field, path, part in _fields(schema, spec, "", ()):
                if size == "full" and kind == "bundled" and path[0] in _COMMON:
                    continue  # the other one has it too
                for number, value in enumerate(_values(field, part)):
                    after = _changed(spec, path, value)
                    if after != spec:
                        yield Case(f"{size} {kind}: {field} #{number}", spec, after)


def _fields(schema: Spec, value: Any, name: str, path: Path) -> Iterator[tuple[str, Path, Spec]]:
    """Fields of a schema below a value that has them, or could: name, place and schema."""
    if name:
        yield name, path, schema
    if isinstance(value, dict):
        for key, part in schema.get("properties", {}).items():
            yield from _fields(part, value.get(key), f"{name}.{key}".strip("."), (*path, key))
        more: Spec = schema.get("additionalProperties", {})
        for key in value if more else ():
            yield from _fields(more, value[key], f"{name}{{}}", (*path, key))
        if PRESERVE in schema:
            yield f"{name}.unknown".strip("."), (*path, "unknown"), {}
    if isinstance(value, list) and value:
        yield from _fields(schema["items"], value[0], f"{name}[]", (*path, 0))


def _changed(spec: Spec, path: Path, value: Any) -> Spec:
    made = copy.deepcopy(spec)
    place: Any = made
    for key in path[:-1]:
        place = place[key]
    if value is not _REMOVED:
        place[path[-1]] = copy.deepcopy(value)
    elif isinstance(place, dict):
        place.pop(path[-1], None)
    else:
        del place[path[-1]]
    return made


def _values(name: str, schema: Spec) -> Iterator[Any]:
    yield _REMOVED
    yield from _OTHER_TYPES
    yield from schema.get("enum", ())
    yield from _MORE.get(name, ())
    kind = schema.get("type")
    if kind in ("integer", "number"):
        yield from _NUMBERS
        for limit in (schema.get("minimum"), schema.get("maximum")):
            yield from () if limit is None else (limit - 1, limit, limit + 1)
    elif kind == "string":
        yield from _TEXTS
        longest = schema.get("maxLength")
        yield from () if longest is None else ("a" * longest, "a" * (longest + 1))
    elif kind == "array":
        yield from (["a"], ["a", "a"], ["a"] * (schema.get("maxItems", 200) + 1))
    elif kind == "object" and "additionalProperties" in schema:
        yield from (
            {"": "x"},
            {"a b": "x"},
            {"é/é": ""},
            {"k" * 400: "v" * 400},
            {"google.com/tpu": 3},
        )
    elif schema.get("x-kubernetes-int-or-string"):
        yield from _AMOUNTS
