"""Compiled programs are kept, found again, and never trusted when damaged."""

from __future__ import annotations

from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

from tpujob_trainer import config as configs
from tpujob_trainer import executables
from tpujob_trainer.executables import ExecutableCache


def _cache(directory: Path, key: str = "key") -> ExecutableCache:
    return ExecutableCache(str(directory), key, jax.devices()[:1])


def _lower() -> jax.stages.Lowered:
    return jax.jit(lambda x: x * 2 + 1).lower(jax.ShapeDtypeStruct((3,), jnp.float32))


def test_program_is_compiled_once(tmp_path: Path) -> None:
    """The second process (here: cache) loads what the first one has compiled."""
    first = _cache(tmp_path).compile("double", _lower)
    second = _cache(tmp_path).compile("double", _lower)
    assert (first.from_cache, second.from_cache) == (False, True)
    assert second.call(jnp.ones(3)).tolist() == [3.0, 3.0, 3.0]


def test_another_key_compiles_anew(tmp_path: Path) -> None:
    """A changed fingerprint never meets an old program."""
    _cache(tmp_path).compile("double", _lower)
    assert not _cache(tmp_path, "other").compile("double", _lower).from_cache


@pytest.mark.parametrize("damage", ["flipped", "truncated", "empty"])
def test_damaged_program_is_compiled_anew_and_replaced(
    tmp_path: Path, damage: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A bad file costs a compilation, is announced, and is good afterwards."""
    cache = _cache(tmp_path)
    cache.compile("double", _lower)
    (file,) = tmp_path.iterdir()
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    damaged = {"flipped": content, "truncated": content[:1000], "empty": b""}[damage]
    file.write_bytes(bytes(damaged))
    assert not cache.compile("double", _lower).from_cache
    assert "is damaged, compiling anew" in capsys.readouterr().out
    assert cache.compile("double", _lower).from_cache


def test_without_a_directory_nothing_is_kept(tmp_path: Path) -> None:
    """No cache directory: it compiles, and writes nowhere."""
    assert not ExecutableCache("", "key", jax.devices()[:1]).compile("double", _lower).from_cache
    assert list(tmp_path.iterdir()) == []


def test_unwritable_directory_only_costs_the_cache(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A cache that cannot be written is said once, and training goes on."""
    (tmp_path / "file").write_text("")
    program = _cache(tmp_path / "file").compile("double", _lower)
    assert program.call(jnp.ones(3)).tolist() == [3.0, 3.0, 3.0]
    assert "is not kept" in capsys.readouterr().out


def test_fingerprint_follows_what_programs_depend_on() -> None:
    """Sizes and mesh change it, the checkpoint directory does not."""
    base = {"checkpoint": {"directory": "a"}}
    mesh = {"fsdp": 2}
    key = executables.fingerprint(configs.load(base), mesh)
    assert key == executables.fingerprint(configs.load({"checkpoint": {"directory": "b"}}), mesh)
    assert key != executables.fingerprint(configs.load({**base, "globalBatch": 4}), mesh)
    assert key != executables.fingerprint(configs.load(base), {"fsdp": 4})
