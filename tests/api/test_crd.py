"""The generated files: up to date, structural, described, and equal to the models."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import jsonschema  # type: ignore[import-untyped] # ships no types
import pytest
import yaml

from tpujob_operator.api import crd, generated
from tpujob_operator.api.models import parse_job
from tpujob_operator.api.structural import with_defaults

Make = Callable[..., dict[str, Any]]
ROOT = Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("*.yaml"))


def test_generated_files_are_up_to_date() -> None:
    """Nobody has changed the models, or a generated file, without `make gen`."""
    assert generated.drifted(ROOT, crd.outputs()) == []


def test_drift_is_found_and_repaired(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """--check names what differs and writes nothing; without it, everything is written."""
    assert crd.main(["--check", "--root", str(tmp_path)]) == 1
    assert "run `make gen`" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
    assert crd.main(["--root", str(tmp_path)]) == 0
    assert crd.main(["--check", "--root", str(tmp_path)]) == 0


def _fields(schema: Mapping[str, Any], path: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for name, field in schema.get("properties", {}).items():
        yield f"{path}.{name}", field
        yield from _fields(field, f"{path}.{name}")
    for inner in ("items", "additionalProperties"):
        if inner in schema:
            yield from _fields(schema[inner], f"{path}[]")


def test_every_field_is_described() -> None:
    """`kubectl explain` has something to say about every field, as a sentence."""
    schema = crd.openapi_schema()
    schema["properties"].pop("metadata")
    silent = [
        path for path, field in _fields(schema, "") if not field.get("description", "").strip()
    ]
    assert silent == []


@pytest.mark.parametrize("topology", ["2x4", "16x16"])
def test_defaults_are_the_same_in_models_and_schema(make_job: Make, topology: str) -> None:
    """What the API server fills in is what the models fill in."""
    job = make_job(topology=topology)
    filled = with_defaults(job, crd.openapi_schema())
    assert filled["spec"] == parse_job(job).spec.to_json()


def test_no_field_is_only_in_one_of_them() -> None:
    """Every property of the schema is a field of the models, spelt the same."""
    fields = set(crd.openapi_schema()["properties"])
    assert fields == {"apiVersion", "kind", "metadata", "spec", "status"}


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_examples_fit_the_json_schema(path: Path) -> None:
    """Editors that use the published schema accept the examples."""
    for document in yaml.safe_load_all(path.read_text()):
        jsonschema.validate(document, crd.json_schema())


def test_json_schema_refuses_unknown_fields(make_job: Make) -> None:
    """Editors that use the published schema find a misspelt field."""
    with pytest.raises(jsonschema.ValidationError, match="slicess"):
        jsonschema.validate(make_job(slicess=2), crd.json_schema())


def test_chart_has_the_same_crd() -> None:
    """The chart's CRD differs from the one in crds/ by its template lines only."""
    outputs = crd.outputs()
    plain = outputs["crds/tpujob.dev_tputrainingjobs.yaml"].splitlines()[1:]
    templated = outputs["charts/tpujob-operator/templates/crds/tputrainingjobs.yaml"].splitlines()
    left = [line for line in templated if line not in set(plain)]
    assert all("{{" in line or "annotations" in line or "helm.sh" in line for line in left)
    assert [line for line in templated if line not in left] == plain
