"""`kubectl tpujob render` prints what would be applied, and says what is wrong with a file."""

from __future__ import annotations

import io
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import yaml

from tpujob_operator.cli.__main__ import main

EXAMPLES = Path(__file__).parents[2] / "examples"
IMAGES = ["--operator-image", "tpujob/operator:test", "--trainer-image", "tpujob/trainer:test"]


@pytest.mark.parametrize("name", ["demo", "own-program", "llama3-8b"])
def test_objects_are_those_that_the_operator_builds(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Equal to the reviewed objects, but for what only a cluster knows."""
    assert main(["render", str(EXAMPLES / f"{name}.yaml"), "-n", "research", *IMAGES]) == 0
    made = list(yaml.safe_load_all(capsys.readouterr().out))
    golden = EXAMPLES.parent / "tests" / "manifests" / "golden" / f"{name}.yaml"
    first, *_ = yaml.safe_load_all(golden.read_text())
    uid = first["metadata"]["ownerReferences"][0]["uid"]
    unknown = golden.read_text().replace(
        _key_id(yaml.safe_load_all(golden.read_text())), _key_id(made)
    )
    # Names end with the first part of the UID, or go on behind it.
    unknown = unknown.replace(f"-{uid[:8]}", "-00000000")
    unknown = unknown.replace(uid, "00000000-0000-0000-0000-000000000000")
    reviewed = list(yaml.safe_load_all(unknown))
    reviewed[0]["data"] = made[0]["data"]
    assert made == reviewed


def _key_id(objects: Iterable[dict[str, Any]]) -> str:
    """Of the key from which the token of the rendered Secret is derived."""
    name = next(item for item in objects if item["kind"] == "Secret")["metadata"]["name"]
    return str(name).rpartition("-")[2]


def test_json_is_a_list_for_kubectl(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Standard input, several documents, another attempt."""
    text = (EXAMPLES / "demo.yaml").read_text()
    other = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: other}\n"
    monkeypatch.setattr("sys.stdin", io.StringIO(f"{other}---\n{text}"))
    assert main(["render", "-", "-o", "json", "--attempt", "3"]) == 0
    made = json.loads(capsys.readouterr().out)
    assert made["kind"] == "List"
    assert [item["kind"] for item in made["items"]] == ["Secret", "Service", "JobSet"]
    assert made["items"][-1]["metadata"]["name"] == "demo-3"
    assert made["items"][-1]["metadata"]["namespace"] == "default"


def test_a_preflight_is_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Where the job asks for one, with the Job that compiles meanwhile."""
    file = tmp_path / "job.yaml"
    demo = (EXAMPLES / "demo.yaml").read_text()
    kept = demo.replace("    config:\n", "    config:\n      checkpoint: { keepPrograms: true }\n")
    file.write_text(kept + "  preflight: Compile\n")
    assert main(["render", str(file)]) == 0
    made = list(yaml.safe_load_all(capsys.readouterr().out))
    assert [thing["kind"] for thing in made] == ["Secret", "Service", "JobSet", "Job", "Job"]
    assert [thing["metadata"]["name"] for thing in made[-2:]] == ["demo-preflight", "demo-programs"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a: [", "not YAML"),
        ("kind: Job", "there is no TPUTrainingJob in it"),
        ("kind: TPUTrainingJob", "metadata: Field required"),
        ("- 1", "there is no TPUTrainingJob in it"),
        ("topologie: 2x4", "spec.topologie: there is no such field"),
        ("topology: 4x5", "v5e has no topology 4x5; nearest are 2x4, 4x4"),
    ],
)
def test_bad_files_are_told(
    text: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the file's name, the field's path, and what would be valid."""
    if text.startswith("topolog"):
        demo = (EXAMPLES / "demo.yaml").read_text()
        text = demo.replace("  slices: 2", f"  slices: 2\n  {text}", 1)
    path = tmp_path / "job.yaml"
    path.write_text(text)
    assert main(["render", str(path)]) == 1
    told = capsys.readouterr().err
    assert words in told
    assert str(path) in told


def test_missing_file_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """No traceback."""
    assert main(["render", str(tmp_path / "none")]) == 1
    assert "No such file" in capsys.readouterr().err
