"""From pydantic's JSON schema to the structural schemas Kubernetes accepts.

It fails closed: a keyword that is not known here stops the generation, rather
than ending up in a CRD where the API server refuses it or, worse, drops it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from pydantic import BaseModel

Schema = dict[str, Any]

PRESERVE = "x-kubernetes-preserve-unknown-fields"
VALIDATIONS = "x-kubernetes-validations"

_DROPPED = {"title"}
_COPIED = {
    "default", "description", "enum", "format", "maxItems", "maxLength", "maximum", "minItems",
    "minLength", "minimum", "pattern", "required", "type",
    PRESERVE, VALIDATIONS, "x-kubernetes-int-or-string", "x-kubernetes-list-map-keys",
    "x-kubernetes-list-type", "x-kubernetes-map-type",
}  # fmt: skip
_ORDER = (
    "description", "type", "format", "enum", "default", "pattern", "minLength", "maxLength",
    "minimum", "maximum", "minItems", "maxItems", "required", "properties",
    "additionalProperties", "items",
)  # fmt: skip


class UnsupportedSchemaError(ValueError):
    """A model uses something a structural schema cannot express; the message says where."""


def structural_schema(model: type[BaseModel], *, without: Iterable[str] = ()) -> Schema:
    """The structural schema of a model, without references.

    Args:
        model: The model.
        without: Fields to leave out, because they belong to somebody else.

    Raises:
        UnsupportedSchemaError: a field needs a keyword that is not known to be allowed.
    """
    schema = model.model_json_schema(by_alias=True, mode="validation")
    definitions = schema.pop("$defs", {})
    left_out = set(without)
    schema["properties"] = {
        name: field for name, field in schema["properties"].items() if name not in left_out
    }
    schema["required"] = [name for name in schema.get("required", ()) if name not in left_out]
    return _convert(schema, definitions, model.__name__)


def _convert(schema: Mapping[str, Any], definitions: Mapping[str, Any], path: str) -> Schema:
    flat = _flatten(schema, definitions, path)
    made: Schema = {}
    for keyword, value in flat.items():
        if keyword in _DROPPED:
            continue
        if keyword in _COPIED:
            made[keyword] = value
        elif keyword in _NESTED:
            made |= _NESTED[keyword](value, definitions, path)
        else:
            raise UnsupportedSchemaError(f"{path}: structural schemas have no {keyword!r}")
    return dict(sorted(made.items(), key=lambda item: _position(item[0])))


def _flatten(schema: Mapping[str, Any], definitions: Mapping[str, Any], path: str) -> Schema:
    """Resolve references and optionals into one object; what stands nearer to the field wins."""
    own = dict(schema)
    if "$ref" in own:
        name = str(own.pop("$ref")).removeprefix("#/$defs/")
        return _flatten(_merged(definitions[name], own), definitions, path)
    if "anyOf" in own:
        choices = [choice for choice in own.pop("anyOf") if choice != {"type": "null"}]
        if len(choices) != 1 or own.get("default", ...) is not None:
            raise UnsupportedSchemaError(
                f"{path}: a union; flatten it into fields and say in CEL which exclude each other"
            )
        del own["default"]  # null, which means: absent
        return _flatten(_merged(choices[0], own), definitions, path)
    return own


def _merged(base: Mapping[str, Any], nearer: Mapping[str, Any]) -> Schema:
    validations = [*base.get(VALIDATIONS, []), *nearer.get(VALIDATIONS, [])]
    return {**base, **nearer, **({VALIDATIONS: validations} if validations else {})}


def _properties(value: Any, definitions: Mapping[str, Any], path: str) -> Schema:
    return {
        "properties": {
            name: _convert(schema, definitions, f"{path}.{name}") for name, schema in value.items()
        }
    }


def _items(value: Any, definitions: Mapping[str, Any], path: str) -> Schema:
    return {"items": _convert(value, definitions, f"{path}[]")}


def _additional(value: Any, definitions: Mapping[str, Any], path: str) -> Schema:
    if value is True:
        return {PRESERVE: True}
    if value is False:
        raise UnsupportedSchemaError(f"{path}: the API server prunes; nothing can be forbidden")
    return {"additionalProperties": _convert(value, definitions, f"{path}{{}}")}


_NESTED: dict[str, Callable[[Any, Mapping[str, Any], str], Schema]] = {
    "properties": _properties,
    "items": _items,
    "additionalProperties": _additional,
}


def _position(keyword: str) -> tuple[int, str]:
    return (_ORDER.index(keyword) if keyword in _ORDER else len(_ORDER), keyword)


def unknown_fields(value: Any, schema: Mapping[str, Any], path: str) -> Iterator[str]:
    """Paths of fields that the API server would prune, because the schema does not know them."""
    if isinstance(value, list):
        for index, item in enumerate(value):
            yield from unknown_fields(item, schema.get("items", {}), f"{path}[{index}]")
    if not isinstance(value, dict) or "properties" not in schema:
        return
    for name, item in value.items():
        if name in schema["properties"]:
            yield from unknown_fields(item, schema["properties"][name], f"{path}.{name}")
        elif PRESERVE not in schema:
            yield f"{path}.{name}"


_TYPES: dict[str, tuple[type, ...]] = {
    "array": (list,),
    "boolean": (bool,),
    "integer": (int,),
    "number": (int, float),
    "object": (dict,),
    "string": (str,),
}


def wrong_types(value: Any, schema: Mapping[str, Any], path: str) -> Iterator[str]:
    """Values that pydantic would convert, such as "4" and True to numbers; the API server refuses.

    A null is none of them: it counts as absent.
    """
    kind = schema.get("type")
    if kind is None or value is None:
        return
    is_flag = isinstance(value, bool)  # which is an integer for Python
    if not isinstance(value, _TYPES[kind]) or is_flag != (kind == "boolean"):
        yield f"{path}: must be of type {kind}"
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from wrong_types(item, schema.get("items", {}), f"{path}[{index}]")
    elif isinstance(value, dict):
        others = schema.get("additionalProperties", {})
        for name, item in value.items():
            known = schema.get("properties", {}).get(name, others)
            yield from wrong_types(item, known, f"{path}.{name}")


def with_defaults(value: Any, schema: Mapping[str, Any]) -> Any:
    """The value with the schema's defaults filled in, as the API server does it."""
    if isinstance(value, dict):
        properties = schema.get("properties", {})
        filled = {
            name: sub["default"]
            for name, sub in properties.items()
            if "default" in sub and name not in value
        }
        return {
            name: with_defaults(item, properties.get(name, schema.get("additionalProperties", {})))
            for name, item in {**value, **filled}.items()
        }
    if isinstance(value, list):
        return [with_defaults(item, schema.get("items", {})) for item in value]
    return value
