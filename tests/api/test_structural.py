"""The generator makes structural schemas, and stops at what they cannot express."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, ConfigDict, Field

from tpujob_operator.api.structural import UnsupportedSchemaError, structural_schema, with_defaults


class _Part(BaseModel):
    """A part."""

    size: int = Field(default=2, ge=1, description="Size.")


class _Whole(BaseModel):
    part: _Part = Field(
        default_factory=_Part, description="One.", json_schema_extra={"default": {}}
    )
    maybe: _Part | None = Field(default=None, description="Perhaps one.")
    parts: list[_Part] = Field(default_factory=list)
    by_name: dict[str, _Part] | None = None
    anything: dict[str, Any] | None = None
    text: str | None = Field(default=None, max_length=3)


def test_references_and_optionals_are_flattened() -> None:
    """Nothing but structural keywords is left, and the description nearest to the field wins."""
    part = {"type": "integer", "default": 2, "minimum": 1, "description": "Size."}
    fields = structural_schema(_Whole)["properties"]
    assert fields["part"]["properties"] == {"size": part}
    assert fields["part"]["default"] == {}
    assert fields["maybe"]["description"] == "Perhaps one."
    assert "default" not in fields["maybe"]
    assert fields["parts"]["items"]["description"] == "A part."
    assert fields["by_name"]["additionalProperties"]["properties"] == {"size": part}
    assert fields["anything"] == {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    assert fields["text"] == {"type": "string", "maxLength": 3}


class _Union(BaseModel):
    bad: int | str = 1


class _Tuple(BaseModel):
    bad: tuple[int, str] = (1, "")


class _Constant(BaseModel):
    bad: Literal["a"] = "a"


class _Exclusive(BaseModel):
    bad: float = Field(default=1.0, gt=0)


class _Unique(BaseModel):
    bad: Annotated[set[int], Field()] = set()


class _Closed(BaseModel):
    model_config = ConfigDict(extra="forbid")
    fine: int = 1


class _Foreign(BaseModel):
    bad: int = Field(default=1, json_schema_extra={"x-mine": True})


@pytest.mark.parametrize(
    "model", [_Union, _Tuple, _Constant, _Exclusive, _Unique, _Closed, _Foreign]
)
def test_what_cannot_be_expressed_stops_the_generation(model: type[BaseModel]) -> None:
    """A keyword that is not known to be structural is an error that says where it is."""
    with pytest.raises(UnsupportedSchemaError, match=model.__name__):
        structural_schema(model)


def test_defaults_are_filled_like_the_api_server_does() -> None:
    """Defaults reach into objects, lists and maps, and never into what is absent."""
    value = {"parts": [{}], "by_name": {"a": {}}}
    filled = with_defaults(value, structural_schema(_Whole))
    part = {"size": 2}
    assert filled == {"part": part, "parts": [part], "by_name": {"a": part}}
