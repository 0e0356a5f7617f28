"""A status as the API server takes it, where its CRD is of another release than the operator.

What the served schema lacks is left out: the API server would drop the fields, so that the status
would differ for ever, and refuse the whole status for a word that it does not know.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from tpujob_operator.api.structural import PRESERVE

Schema = Mapping[str, Any]
_LEFT_OUT = object()


def lacks(ours: Schema, theirs: Schema, path: str = "status") -> Iterator[str]:
    """What the served schema lacks of ours: fields, and words of fields that list theirs."""
    if PRESERVE in theirs:
        return
    for word in ours.get("enum", ()):
        if "enum" in theirs and word not in theirs["enum"]:
            yield f"{path}={word}"
    for name, field in ours.get("properties", {}).items():
        known = theirs.get("properties", {}).get(name)
        if known is None:
            yield f"{path}.{name}"
        else:
            yield from lacks(field, known, f"{path}.{name}")
    for below, mark in (("items", "[]"), ("additionalProperties", ".*")):
        if below in ours and below in theirs:
            yield from lacks(ours[below], theirs[below], f"{path}{mark}")


def fitted(status: Mapping[str, Any], schema: Schema) -> dict[str, Any]:
    """The status without what the served schema lacks."""
    made = _fitted(status, schema)
    return made if isinstance(made, dict) else {}


def _fitted(value: Any, schema: Schema) -> Any:
    if "enum" in schema and value not in schema["enum"]:
        return _LEFT_OUT
    if isinstance(value, list):
        items = (_fitted(item, schema.get("items", {})) for item in value)
        return [item for item in items if item is not _LEFT_OUT]
    if not isinstance(value, Mapping) or PRESERVE in schema:
        return value
    return _object(value, schema)


def _object(value: Mapping[str, Any], schema: Schema) -> Any:
    properties, others = schema.get("properties", {}), schema.get("additionalProperties")
    known = {
        name: _fitted(item, properties.get(name, others))
        for name, item in value.items()
        if name in properties or others is not None
    }
    made = {name: item for name, item in known.items() if item is not _LEFT_OUT}
    # An object that has lost what the schema asks for would be refused with all the rest.
    return made if all(name in made for name in schema.get("required", ())) else _LEFT_OUT
