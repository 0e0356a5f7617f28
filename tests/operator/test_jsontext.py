"""JSON of any depth is read, and what lies too deep is left out."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpujob_operator.shell import jsontext
from tpujob_operator.shell.jsontext import KEPT_LEVELS, decoded

_SCALARS = st.none() | st.booleans() | st.integers() | st.text()
_VALUES = st.recursive(_SCALARS, lambda part: st.lists(part) | st.dictionaries(st.text(), part))


def _levels(value: Any) -> int:
    level, number = [value], 0
    while level := [part for whole in level if isinstance(whole, dict) for part in whole.values()]:
        number += 1
    return number


def test_one_deep_object_hides_no_other() -> None:
    """What stands beside it is read to the last character, brackets in strings included."""
    deep = '{"a":' * 50_000 + "1" + "}" * 50_000
    text = f'{{"items": [{{"x": "}}]\\\\\\""}}, {{"name": "deep", "spec": {deep}, "b": [2]}}, 3]}}'
    first, second, third = decoded(text.encode())["items"]
    assert (first, third) == ({"x": '}]\\"'}, 3)
    assert (second["name"], second["b"]) == ("deep", [2])
    assert _levels(second["spec"]) == KEPT_LEVELS - 3


@given(_VALUES)
def test_what_is_not_deep_stays_as_it_is(value: Any) -> None:
    """Also when something else in the text was the reason to look."""
    text = json.dumps(value)
    assert json.loads(jsontext._shallow(text.encode())) == value


@pytest.mark.parametrize("text", [b"", b"{", b"[" * 50_000, b"nonsense"])
def test_what_is_no_json_is_an_error(text: bytes) -> None:
    """Of the one kind that callers expect."""
    with pytest.raises(ValueError):  # noqa: PT011 - of the library
        decoded(text)
