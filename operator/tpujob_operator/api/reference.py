"""The field reference: the schema as Markdown, for people."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tpujob_operator.api.base import API_VERSION, KIND
from tpujob_operator.api.structural import PRESERVE, VALIDATIONS, Schema

_LIMITS = {
    "minimum": "≥ {}", "maximum": "≤ {}", "minLength": "at least {} characters",
    "maxLength": "at most {} characters", "minItems": "at least {} items",
    "maxItems": "at most {} items", "pattern": "matches `{}`",
}  # fmt: skip


def field_reference(schema: Schema, columns: Sequence[Mapping[str, Any]], note: str) -> str:
    """Markdown with a table per object of the schema, and the printer columns."""
    parts = [
        f"<!-- {note} -->",
        f"# {KIND}",
        (
            f"`apiVersion: {API_VERSION}`, short names `tpujob` and `tj`, namespaced. "
            f"{schema['description']}"
        ),
        *_checks(schema),
        *_objects("spec", schema["properties"]["spec"]),
        *_objects("status", schema["properties"]["status"]),
        "## Columns of `kubectl get tpujob`",
        _table(
            ("Column", "Field", "Shown"),
            [
                (c["name"], f"`{c['jsonPath']}`", "`-o wide`" if c.get("priority") else "always")
                for c in columns
            ],
        ),
    ]
    return "\n\n".join(parts) + "\n"


def _objects(path: str, schema: Mapping[str, Any]) -> Iterator[str]:
    """A section per object, depth first."""
    fields = schema["properties"]
    required = schema.get("required", ())
    yield f"## {path}"
    yield schema["description"]
    rows = [_row(name, field, name in required) for name, field in fields.items()]
    yield _table(("Field", "Type", "Default", "Description"), rows)
    yield from _checks(schema)
    for name, field in fields.items():
        inner, suffix = _element(field)
        if "properties" in inner:
            described = {"description": field.get("description", ""), **inner}
            yield from _objects(f"{path}.{name}{suffix}", described)


def _element(field: Mapping[str, Any]) -> tuple[Mapping[str, Any], str]:
    if "items" in field:
        return field["items"], "[]"
    if "additionalProperties" in field:
        return field["additionalProperties"], ".*"
    return field, ""


def _row(name: str, field: Mapping[str, Any], required: bool) -> tuple[str, ...]:
    default = "**required**" if required else ""
    if "default" in field and field["default"] != {}:
        default = f"`{json.dumps(field['default'])}`"
    limits = [text.format(field[key]) for key, text in _LIMITS.items() if key in field]
    words = [field.get("description", "")]
    if "enum" in field:
        words.append("One of " + ", ".join(f"`{value}`" for value in field["enum"]) + ".")
    if limits:
        words.append("(" + "; ".join(limits) + ")")
    if "properties" not in field:
        words += [f"Checked: {check['message']}." for check in field.get(VALIDATIONS, ())]
    return f"`{name}`", _type(field), default, " ".join(words)


def _type(field: Mapping[str, Any]) -> str:
    if "items" in field:
        return f"list of {_type(field['items'])}"
    if "additionalProperties" in field:
        return f"map to {_type(field['additionalProperties'])}"
    if field.get("format") == "date-time":
        return "time"
    if "x-kubernetes-int-or-string" in field:
        return "quantity"
    return str(field["type"]) + (" (open)" if PRESERVE in field else "")


def _checks(schema: Mapping[str, Any]) -> Iterator[str]:
    found = schema.get(VALIDATIONS, ())
    if found:
        yield "Checked at admission:"
        yield "\n".join(f"- {check['message']}" for check in found)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(_cell(cell) for cell in line) + " |" for line in lines)


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
