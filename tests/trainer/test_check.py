"""``check`` and ``compile`` answer in time, with all faults at once, and never guess."""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import pytest

from tests.trainer.libtpu import slices, with_compiler
from tpujob_agent.preflight import Answer, Verdict
from tpujob_ahead.check import Fit, Memory
from tpujob_ahead.report import advice, report
from tpujob_ahead.roofline import Roofline
from tpujob_ahead.search import changes, nearest_fit
from tpujob_ahead.target import Target, target
from tpujob_ahead.work import matmul_flops
from tpujob_tpu.chips import GIB
from tpujob_trainer import __main__ as program
from tpujob_trainer import config as configs
from tpujob_trainer.config import TrainerConfig
from tpujob_trainer.sharding import ShardingError

SMALL = ["--set", "sequenceLength=128", "--set", "model.layers=1"]


def run(*arguments: str) -> int:
    """The exit code of ``tpujob-trainer``."""
    return program.run(arguments)


def test_all_faults_are_told_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    """Slice, preset and fields: one run names everything that is wrong, and what is near."""
    faults = ("--accelerator", "v5x", "--topology", "4x4", "--slices", "0", "--preset", "1c")
    assert run("check", *faults, "--set", "mesh.tensr=2", "--set", "steps") == 1
    said = capsys.readouterr().err
    assert "unknown accelerator 'v5x'; nearest is v5" in said
    assert "--slices 0: there is at least one" in said
    assert "model.preset: '1c' is none of" in said
    assert "(nearest valid: 1b)" in said
    assert "mesh.tensr: no such field (nearest valid: tensor)" in said
    assert "--set steps: expected PATH=VALUE" in said


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--topology", "4x5", "--preset", "tiny"), "v5e has no topology 4x5"),
        (("--topology", "2x2", "--config", "/nowhere"), "/nowhere cannot be read"),
        (("--topology", "2x2", "--preset", "tiny", "--set", "model.x.y=1"), "model.x: no such"),
        (("--topology", "2x2", "--preset", "tiny", "--set", "steps.x=1"), "steps"),
    ],
)
def test_a_fault_is_told(
    arguments: tuple[str, ...], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A slice that does not exist, a file that is not there, a field that is none."""
    assert run("check", "--accelerator", "v5e", *arguments) == 1
    assert words in capsys.readouterr().err


def test_without_the_compiler_it_says_how_to_get_it(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """No libtpu is an error with the remedy, and a wrong path is named."""
    verdict = tmp_path / "verdict"
    arguments = ["check", "--accelerator", "v5e", "--topology", "2x2", "--preset", "tiny"]
    arguments += ["--verdict", str(verdict)]
    with mock.patch.dict(os.environ):
        os.environ.pop("TPU_LIBRARY_PATH", None)
        assert run(*arguments) == 1
    assert "pip install 'tpujob[tpu]'" in capsys.readouterr().err
    assert Verdict.from_json(verdict.read_text()).answer is Answer.UNABLE
    with mock.patch.dict(os.environ, {"TPU_LIBRARY_PATH": str(tmp_path / "none")}):
        assert run(*arguments) == 1
    assert "where no file is" in capsys.readouterr().err


def test_a_mesh_that_does_not_divide_is_told(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Sizes and slice are compared before anything compiles, with what would divide."""
    verdict = tmp_path / "verdict"
    arguments = ("--accelerator", "v5e", "--topology", "2x2", "--preset", "tiny")
    with with_compiler():
        told = run("check", *arguments, "--set", "mesh.tensor=3", "--verdict", str(verdict))
    assert told == 1
    said = Verdict.from_json(verdict.read_text())
    assert said.answer is Answer.INVALID
    assert "fsdp x tensor can be 4x1, 2x2, 1x4" in said.message
    assert "fsdp x tensor can be 4x1, 2x2, 1x4" in capsys.readouterr().err


def test_too_much_is_not_called_fitting(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """A state of 18 GiB does not fit a chip of 16: what the compiler says becomes numbers."""
    file = tmp_path / "config.json"
    model = {"dModel": 128, "dFF": 128, "layers": 1, "heads": 1, "kvHeads": 1}
    model["vocab"] = 6_291_456  # wide tables, and little to compile
    raw = {"model": model, "globalBatch": 1, "checkpoint": {"directory": "c"}}
    file.write_text(json.dumps(raw))
    where = ("--accelerator", "v5e", "--topology", "1x1", "--config", str(file))
    verdict = tmp_path / "verdict"
    with with_compiler():
        told = run("check", *where, "--tries", "0", "-o", "json", "--verdict", str(verdict))
    assert told == 3
    said = Verdict.from_json(verdict.read_text())
    assert said.answer is Answer.DOES_NOT_FIT
    assert "of 15.75 GiB per chip" in said.message
    assert "nothing near fits (0 changes tried)" in said.message
    answer = json.loads(capsys.readouterr().out)
    assert answer["fits"] is False
    assert answer["memory"]["total"] > answer["hbmBytes"] == int(15.75 * GIB)
    assert answer["memory"]["arguments"] == pytest.approx(3 * 4 * 2 * 128 * 6_291_456, rel=0.01)
    assert (answer["upperBound"], answer["nearestFit"]) == (None, None)


def a_fit(*, arguments: int, **config: Any) -> Fit:
    """A step that does not fit, with a given size of its state."""
    base = {"checkpoint": {"directory": "c"}, "globalBatch": 16, "mesh": {"tensor": 2}}
    loaded = configs.load({**base, **config})
    return Fit(
        target("v5e", "2x2", 1),
        loaded,
        {"slice": 1, "fsdp": 2, "context": 1, "tensor": 2},
        Memory(arguments, 100 * GIB, 0, 0),
        1e12,
        1.0,
        [],
        None,
    )


def test_changes_come_in_the_order_of_their_cost() -> None:
    """First what costs nothing, then recomputation, then accumulation, then chips."""
    words = [change.words for change in changes(a_fit(arguments=GIB))]
    assert words == [
        "mesh.fsdp -1, tensor and context 1",
        "model.remat dots",
        "model.remat full",
        "model.remat full, model.scanLayers true",
        "accumulation 2 with model.remat full, scanLayers true",
        "accumulation 4 with model.remat full, scanLayers true",
        "accumulation 8 with model.remat full, scanLayers true",
        "--topology 2x4",
        "--topology 4x4",
    ]


def test_a_state_that_does_not_fit_is_not_helped_by_recomputing() -> None:
    """Activations are left alone when parameters and moments already are too much."""
    words = [change.words for change in changes(a_fit(arguments=20 * GIB))]
    assert words == ["mesh.fsdp -1, tensor and context 1", "--topology 2x4", "--topology 4x4"]


def test_the_search_is_bounded_and_takes_the_first_that_fits() -> None:
    """At most so many compilations; what does not divide costs none."""
    asked = []
    fit = a_fit(arguments=GIB)
    bound = Roofline(1.0, 0.5, 0.2, 0.1, mfu=0.5)

    def check(config: TrainerConfig, _: Target) -> Fit:
        asked.append(config)
        if len(asked) == 1:
            raise ShardingError("does not divide")
        return dataclasses.replace(fit, roofline=bound if config.model.remat == "full" else None)

    found = nearest_fit(fit, check, tries=2)
    assert found
    assert found[0].words == "model.remat full"
    asked.clear()
    assert nearest_fit(fit, check, tries=1) is None
    assert len(asked) == 2, "one that does not divide, one that is compiled"


def test_the_report_says_what_bounds_the_step() -> None:
    """Bytes by what they hold, and an estimate that is called an upper bound."""
    fit = a_fit(arguments=GIB)
    assert "does not fit: 101.00 of 15.75 GiB per chip (arguments 1.00" in report(fit)
    assert advice(fit, None, 3).endswith(
        "; nothing near fits (3 changes tried): take a larger slice"
    )
    larger = next(one for one in changes(fit) if "topology" in one.words)
    bounded = dataclasses.replace(fit, roofline=Roofline(1.0, 0.5, 0.2, 0.1, mfu=0.5))
    assert "; the nearest that fits: topology 2x4, which fits: 101" in advice(
        fit, (larger, bounded), 3
    )
    assert "upper bound" not in report(fit)
    traffic = [{"axes": ("fsdp",), "kind": "all-gather", "bytes": 2**20, "count": 3}]
    bound = Roofline(1.0, 0.5, 2.0, 0.1, mfu=0.5)
    text = report(dataclasses.replace(fit, roofline=bound, traffic=traffic))
    assert "upper bound: MFU 50.0%, a step of 2000.0 ms, bound by ICI" in text
    assert "fsdp             all-gather              3          1.0" in text


def test_flops_are_counted_through_loops_and_conditions() -> None:
    """A scan counts its turns, a condition the mean of its branches, a map all devices."""
    a = jnp.ones((4, 8))

    def turn(carry: jax.Array, _: None) -> tuple[jax.Array, None]:
        return jax.lax.cond(carry.sum() > 0, lambda x: x @ x.T @ x, lambda x: x, carry), None

    def looped(x: jax.Array) -> jax.Array:
        return jax.lax.scan(turn, x, length=3)[0]

    both = 2 * 4 * 4 * 8 * 2
    assert matmul_flops(jax.make_jaxpr(looped)(a).jaxpr) == 3 * both / 2


def test_a_foreign_program_under_the_right_name_is_compiled_anew(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A program for TPUs where one for CPUs belongs: it does not load, and training goes on."""
    from etils import epath
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    from tpujob_trainer.executables import ExecutableCache
    from tpujob_trainer.fingerprint import Fingerprint

    _, devices = slices("v5e", "2x2")
    everywhere = NamedSharding(Mesh(devices, ("x",)), PartitionSpec())
    shape = jax.ShapeDtypeStruct((3,), jnp.float32, sharding=everywhere)
    for_tpu = ExecutableCache(str(tmp_path), Fingerprint({"for": "tpu"}), devices)
    kept = for_tpu.keep("double", lambda: jax.jit(lambda x: x * 2).lower(shape))
    assert not kept.from_cache
    (file,) = tmp_path.glob("*.bin")
    mine = Fingerprint({"for": "cpu"})
    here = ExecutableCache(str(tmp_path), mine, jax.devices()[:1])
    body = for_tpu._read(epath.Path(file))
    assert body
    here._store(epath.Path(tmp_path) / f"double-{mine.key}.bin", body)
    local = jax.ShapeDtypeStruct((3,), jnp.float32)
    compiled = here.compile("double", lambda: jax.jit(lambda x: x * 2).lower(local))
    assert not compiled.from_cache
    assert "does not load" in capsys.readouterr().out
    assert compiled.call(jnp.ones(3)).tolist() == [2.0, 2.0, 2.0]
