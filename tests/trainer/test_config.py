"""A faulty configuration is answered at once, wholly, and with what would be valid."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tpujob_agent.protocol import Env
from tpujob_trainer import config as configs
from tpujob_trainer import fields
from tpujob_trainer.__main__ import read_config
from tpujob_trainer.fields import ConfigError
from tpujob_trainer.presets import PRESET_NAMES, PRESETS

MINIMAL = {"checkpoint": {"directory": "c"}}


def _problems(raw: Any) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        configs.load(raw)
    return caught.value.problems


def test_defaults_are_complete() -> None:
    """Only the checkpoint directory has to be given, and the preset fills the sizes."""
    config = configs.load(MINIMAL)
    assert (config.model.d_model, config.model.layers, config.model.d_head) == (64, 2, 16)
    assert config.data.source == "stdlib"


def test_given_sizes_win_over_the_preset() -> None:
    """A preset only fills what is not given."""
    config = configs.load({**MINIMAL, "model": {"preset": "llama3-8b", "layers": 3}})
    assert (config.model.d_model, config.model.layers) == (4096, 3)
    assert config.model.rope_theta == 500_000


def test_every_preset_is_a_valid_model() -> None:
    """Presets are found by their names, and none has a fault."""
    assert tuple(PRESETS) == PRESET_NAMES
    for name, preset in PRESETS.items():
        assert configs.load({**MINIMAL, "model": {"preset": name}}).model == preset


def test_all_faults_are_reported_at_once_with_their_paths() -> None:
    """One run of the trainer shows every mistake."""
    problems = _problems(
        {
            "model": {"preset": "tinny", "dmodel": 64},
            "mesh": {"fsdp": -1, "tensor": -1},
            "steps": "100",
            "globalBatch": 0,
            "checkpoint": {"interval": "every 5 minutes"},
        }
    )
    text = "\n".join(problems)
    assert len(problems) == 7, text
    for path in ("model.preset", "model.dmodel", "mesh.tensor", "steps", "globalBatch"):
        assert f"{path}:" in text
    assert "checkpoint.interval:" in text
    assert "checkpoint.directory: is missing" in text


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"model": {"preset": "tinny"}}, "nearest valid: tiny"),
        ({"model": {"dmodel": 64}}, "nearest valid: dModel"),
        ({"steps": "100"}, "expected a whole number, got str '100' (nearest valid: 100)"),
        ({"steps": 1.5}, "nearest valid: 1"),
        ({"steps": True}, "expected a whole number, got bool"),
        ({"globalBatch": 0}, "globalBatch: 0 is below 1 (nearest valid: 1)"),
        ({"sequenceLength": 1}, "sequenceLength: 1 is below 2"),
        ({"model": {"heads": 5}}, "5 does not divide dModel 64 (nearest valid: 4)"),
        ({"model": {"heads": 64, "kvHeads": 64}}, "rotary embedding needs an even head"),
        ({"model": {"kvHeads": 3}}, "3 does not divide heads 4 (nearest valid: 2)"),
        ({"model": {"vocab": 100}}, "model.vocab: 100 is below 256"),
        ({"model": []}, "model: expected an object"),
        ({"model": {"remat": "some"}}, "'some' is none of none, dots, full, offload"),
        (
            {"model": {"tiedEmbeddings": 1}},
            "expected true or false, got int 1 (nearest valid: true)",
        ),
        ({"model": {"lossChunk": 100}}, "does not divide sequenceLength 128 (nearest valid: 128)"),
        ({"accumulation": 3}, "accumulation: 3 does not divide globalBatch 16 (nearest valid: 2)"),
        ({"optimizer": {"schedule": "wsd", "decaySteps": 300}}, "(nearest valid: 200)"),
        ({"optimizer": {"finalShare": 2}}, "2.0 is above 1 (nearest valid: 1)"),
        ({"mesh": {"tensor": 0}}, "mesh.tensor: 0 is no number of devices"),
        ({"optimizer": {"learningRate": 0}}, "learningRate: 0.0 is not above 0.0"),
        ({"optimizer": {"learningRate": float("nan")}}, "is not above"),
        ({"checkpoint": {"directory": "c", "interval": "steps:0"}}, "nearest valid: steps:50"),
        ({"checkpoint": {"directory": "c", "interval": "seconds:-3"}}, "nearest valid: seconds:60"),
        ({"checkpoint": {"directory": "c", "keep": 1}}, "checkpoint.keep: 1 is below 2"),
        ({"checkpoint": {"directory": "gcs://b/c"}}, "is no path, gs://bucket/path or s3://"),
        ({"checkpoint": {"directory": "gs:///c"}}, "is no path, gs://bucket/path or s3://"),
        ({"data": {"buckets": "32,soon"}}, "'32,soon' is no list of lengths"),
        ({"data": {"buckets": "32,64"}}, "not sequenceLength 128 (nearest valid: 32,64,128)"),
        ({"data": {"buckets": "48,128"}}, "48 does not divide sequenceLength 128 (nearest valid: "),
        ({"data": {"maskDocuments": "yes"}}, "data.maskDocuments: expected"),
        ({"profile": {"steps": "9-5"}}, "'9-5' is no range of steps (nearest valid: 100-105)"),
        ({"profile": {"steps": "soon"}}, "'soon' is no range of steps"),
        ({"profile": {"port": 70_000}}, "70000 is no TCP port (nearest valid: 65535)"),
    ],
)
def test_each_fault_names_the_nearest_valid_value(change: dict[str, Any], expected: str) -> None:
    """A message says what to write instead."""
    assert expected in "\n".join(_problems({**MINIMAL, **change}))


@pytest.mark.parametrize(
    ("interval", "steps", "seconds"),
    [("steps:20", 20, float("inf")), ("seconds:1.5", None, 1.5), ("auto", None, 60.0)],
)
def test_intervals(interval: str, steps: int | None, seconds: float) -> None:
    """The three kinds of save interval are understood."""
    config = configs.load({"checkpoint": {"directory": "c", "interval": interval}})
    assert config.checkpoint.interval_steps == steps
    assert config.checkpoint.interval_s == seconds


def test_config_survives_a_round_trip() -> None:
    """What ``to_json`` writes, ``load`` reads back to the same configuration."""
    config = configs.load({**MINIMAL, "model": {"preset": "125m"}, "mesh": {"tensor": 4}})
    assert configs.load(json.loads(json.dumps(fields.to_json(config)))) == config


def test_environment_wins_for_checkpoints(tmp_path: Path) -> None:
    """What the operator sets about checkpoints overrides the file."""
    file = tmp_path / "config.json"
    file.write_text('{"checkpoint": {"directory": "mine", "keep": 2}, "steps": 7}')
    env = {
        Env.CHECKPOINT_DIR: "/ckpt",
        Env.CHECKPOINT_INTERVAL: "steps:9",
        Env.CHECKPOINT_KEEP: "5",
    }
    config = read_config(str(file), env)
    assert config.steps == 7
    assert config.checkpoint == configs.CheckpointConfig("/ckpt", "steps:9", 5)


@pytest.mark.parametrize("where", ["", "env:MINE"])
def test_config_comes_from_a_variable(where: str) -> None:
    """Without --config the operator's variable is read, with env:NAME any other."""
    name = "MINE" if where else Env.TRAINER_CONFIG
    assert read_config(where, {name: json.dumps({**MINIMAL, "steps": 3})}).steps == 3


@pytest.mark.parametrize(
    ("where", "env", "expected"),
    [
        ("", {}, "none given: pass --config FILE or set TPUJOB_TRAINER_CONFIG"),
        ("/no/such/file.json", {}, "/no/such/file.json cannot be read"),
        ("env:MINE", {"MINE": "{steps: 3}"}, "variable MINE is no JSON"),
        ("env:MINE", {"MINE": "[]"}, "expected an object"),
        ("env:MINE", {"MINE": "{}", Env.CHECKPOINT_KEEP: "x"}, "checkpoint.keep: expected a whole"),
    ],
)
def test_unusable_origins_are_named(where: str, env: dict[str, str], expected: str) -> None:
    """A message says where the configuration was looked for."""
    with pytest.raises(ConfigError) as caught:
        read_config(where, env)
    assert expected in str(caught.value)
