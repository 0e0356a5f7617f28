"""Compiled programs are kept, found again, and never trusted when damaged."""

from __future__ import annotations

import hashlib
import hmac
import os
import pickle
import shutil
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from tests.trainer.libtpu import slices
from tests.waiting import wait_until
from tpujob_trainer import config as configs
from tpujob_trainer import topology
from tpujob_trainer.executables import ExecutableCache
from tpujob_trainer.fingerprint import Fingerprint
from tpujob_trainer.sharding import AXES


def _cache(directory: Path, key: str = "key") -> ExecutableCache:
    fingerprint = Fingerprint({"key": key})
    return ExecutableCache(str(directory), fingerprint, jax.devices()[:1])


def _pod(
    root: Path, number: int, key: str = "key", process: int | None = 0, job_key: str = "a job's"
) -> ExecutableCache:
    """The cache of a pod of one job, whose pods share a folder."""
    fingerprint = Fingerprint({"key": key, "process": process})
    devices = jax.devices()[:1]
    own, shared = str(root / str(number)), str(root / "shared")
    return ExecutableCache(own, fingerprint, devices, shared, job_key)


def _shared(root: Path) -> list[Path]:
    return list((root / "shared").glob("*.bin"))


def _lower() -> jax.stages.Lowered:
    return jax.jit(lambda x: x * 2 + 1).lower(jax.ShapeDtypeStruct((3,), jnp.float32))


def test_program_is_compiled_once(tmp_path: Path) -> None:
    """The second process (here: cache) loads what the first one has compiled."""
    first = _cache(tmp_path).compile("double", _lower)
    second = _cache(tmp_path).compile("double", _lower)
    assert (first.from_cache, second.from_cache) == (False, True)
    assert second.call(jnp.ones(3)).tolist() == [3.0, 3.0, 3.0]


def test_program_refuses_another_shape(tmp_path: Path) -> None:
    """It is not compiled again in silence."""
    program = _cache(tmp_path).compile("double", _lower)
    with pytest.raises(TypeError, match="compiled with"):
        program.call(jnp.ones(4))


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
    (file,) = tmp_path.glob("*.bin")
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    damaged = {"flipped": content, "truncated": content[:1000], "empty": b""}[damage]
    file.write_bytes(bytes(damaged))
    assert not cache.compile("double", _lower).from_cache
    assert "is damaged, or this job did not write it: compiling it" in capsys.readouterr().out
    assert cache.compile("double", _lower).from_cache


def test_without_a_directory_nothing_is_kept(tmp_path: Path) -> None:
    """No cache directory: it compiles, and writes nowhere."""
    assert (
        not ExecutableCache("", Fingerprint({}), jax.devices()[:1])
        .compile("double", _lower)
        .from_cache
    )
    assert list(tmp_path.iterdir()) == []


def test_new_pod_loads_what_an_older_one_has_compiled(tmp_path: Path) -> None:
    """A pod without programs takes the shared ones, and has them for its next start."""
    assert not _pod(tmp_path, 0).compile("double", _lower).from_cache
    wait_until(lambda: _shared(tmp_path), "the shared program")
    second = _pod(tmp_path, 1).compile("double", _lower)
    assert second.from_cache
    assert second.call(jnp.ones(3)).tolist() == [3.0, 3.0, 3.0]
    shutil.rmtree(tmp_path / "shared")
    assert _pod(tmp_path, 1).compile("double", _lower).from_cache


def test_damaged_shared_program_is_compiled_anew_and_replaced(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It costs a compilation, is announced, and is good for the pod after that."""
    _pod(tmp_path, 0).compile("double", _lower)
    [file] = wait_until(lambda: _shared(tmp_path), "the shared program")
    whole = file.read_bytes()
    file.write_bytes(whole[:1000])
    assert not _pod(tmp_path, 1).compile("double", _lower).from_cache
    assert f"{file} is damaged, or this job" in capsys.readouterr().out
    wait_until(lambda: len(file.read_bytes()) > 1000, "a good one in its place")
    assert _pod(tmp_path, 2).compile("double", _lower).from_cache


class Hostile:
    """Unpickled, it leaves a file behind."""

    def __init__(self, trace: Path) -> None:
        self._trace = trace

    def __reduce__(self) -> tuple[Any, ...]:
        """Runs where it is unpickled."""
        return Path.touch, (self._trace,)


def _signed(body: bytes, key: str, name: str) -> bytes:
    return hmac.digest(key.encode(), f"tpujob program\n{name}\n".encode() + body, "sha256") + body


@pytest.mark.parametrize("forged", ["checksum", "none", "another job's", "no key"])
def test_hostile_program_in_shared_storage_runs_nothing(
    tmp_path: Path, forged: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whoever can write there, but has not the job's key, costs a compilation and is told of."""
    _pod(tmp_path, 0).compile("double", _lower)
    [file] = wait_until(lambda: _shared(tmp_path), "the shared program")
    trace = tmp_path / "trace"
    body = pickle.dumps(Hostile(trace))
    written = {
        "checksum": hashlib.sha256(body).digest() + body,
        "none": body,
        "another job's": _signed(body, "another job's", file.name),
        "no key": _signed(body, "", file.name),
    }
    file.write_bytes(written[forged])
    found = _pod(tmp_path, 1).compile("double", _lower)
    assert not trace.exists()
    assert not found.from_cache
    assert found.call(jnp.ones(3)).tolist() == [3.0, 3.0, 3.0]
    assert f"{file} is damaged, or this job did not write it" in capsys.readouterr().out


def test_what_the_job_itself_has_signed_is_loaded(tmp_path: Path) -> None:
    """Unpickled, that is: that a hostile file leaves no trace is no accident of the test above."""
    name = _pod(tmp_path, 0)._file("double")
    (tmp_path / "shared").mkdir()
    hostile = pickle.dumps(Hostile(tmp_path / "trace"))
    (tmp_path / "shared" / name).write_bytes(_signed(hostile, "a job's", name))
    _pod(tmp_path, 0).compile("double", _lower)
    assert (tmp_path / "trace").exists()


def test_program_under_another_name_is_not_loaded(tmp_path: Path) -> None:
    """A program of this job's own, copied in the place of another one."""
    _pod(tmp_path, 0).compile("double", _lower)
    [file] = wait_until(lambda: _shared(tmp_path), "the shared program")
    shutil.copy(file, file.with_name(file.name.replace("double", "triple")))
    assert not _pod(tmp_path, 1).compile("triple", _lower).from_cache


def test_another_jobs_program_is_not_loaded(tmp_path: Path) -> None:
    """Of the same configuration: nothing proves who wrote it."""
    _pod(tmp_path, 0).compile("double", _lower)
    wait_until(lambda: _shared(tmp_path), "the shared program")
    assert not _pod(tmp_path, 1, job_key="another").compile("double", _lower).from_cache


def test_nothing_is_shared_without_a_key(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is said, and the pod's own folder serves."""
    pod = _pod(tmp_path, 0, job_key="")
    assert not pod.compile("double", _lower).from_cache
    assert pod.compile("double", _lower).from_cache
    assert "TPUJOB_PROGRAMS_KEY is not set" in capsys.readouterr().out
    assert not (tmp_path / "shared").exists()


_DESCRIPTIONS = {
    "list": b"[1]",
    "torn": b"{",
    "deep list": b"[" * 100_000,
    "deep object": b'{"key": ' * 100_000,
    "no text": b"\xe9",
    "long": b" " * (2 << 20),
}


@pytest.mark.parametrize("kind", _DESCRIPTIONS)
def test_any_description_of_another_program_is_survived(tmp_path: Path, kind: str) -> None:
    """The file beside a program says what it depends on, and anybody can have written it."""
    described = tmp_path / "shared" / f"double-{'0' * 24}.json"
    described.parent.mkdir()
    described.write_bytes(_DESCRIPTIONS[kind])
    assert not _pod(tmp_path, 0).compile("double", _lower).from_cache


def test_pipe_in_the_place_of_a_program_is_not_waited_for(tmp_path: Path) -> None:
    """Nobody would ever write into it."""
    (tmp_path / "shared").mkdir()
    name = _pod(tmp_path, 0)._file("double")
    for pipe in (name, name.replace(".bin", ".json"), f"double-{'0' * 24}.json"):
        os.mkfifo(tmp_path / "shared" / pipe)
    assert not _pod(tmp_path, 0).compile("double", _lower).from_cache


def test_where_nothing_can_be_shared_training_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is said, and the pod's own folder serves."""
    (tmp_path / "shared").write_text("no folder")
    assert not _pod(tmp_path, 0).compile("double", _lower).from_cache
    said = ""

    def is_told() -> bool:
        nonlocal said
        said += capsys.readouterr().out
        return f"is not kept in {tmp_path / 'shared'}" in said

    wait_until(is_told, "the reason")
    assert _pod(tmp_path, 0).compile("double", _lower).from_cache


def test_old_shared_programs_go(tmp_path: Path) -> None:
    """What nobody has written for a month is removed when another one comes."""
    old = tmp_path / "shared" / "train-old.bin"
    old.parent.mkdir()
    old.write_text("of a model that has changed")
    long_ago = time.time() - 31 * 86_400
    os.utime(old, (long_ago, long_ago))
    _pod(tmp_path, 0).compile("double", _lower)
    wait_until(lambda: not old.exists(), "the end of the old one")
    assert _shared(tmp_path)


def test_one_process_shares_what_is_everybodys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Programs for TPUs are written once, those of a process on CPUs by each."""
    monkeypatch.setattr(jax, "process_index", lambda: 1)
    _pod(tmp_path, 1, "everybody's", process=None).compile("double", _lower)
    _pod(tmp_path, 1, "mine", process=1).compile("double", _lower)
    [file] = wait_until(lambda: _shared(tmp_path), "the shared program")
    assert Fingerprint({"key": "mine", "process": 1}).key in file.name


def test_unwritable_directory_only_costs_the_cache(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A cache that cannot be written is said once, and training goes on."""
    (tmp_path / "file").write_text("")
    program = _cache(tmp_path / "file").compile("double", _lower)
    assert program.call(jnp.ones(3)).tolist() == [3.0, 3.0, 3.0]
    assert "is not kept" in capsys.readouterr().out


def _fingerprint(raw: dict[str, Any], fsdp: int = 2) -> Fingerprint:
    sizes = dict.fromkeys(AXES, 1) | {"fsdp": fsdp}
    mesh = topology.make_mesh(sizes, jax.devices()[:fsdp])
    return Fingerprint.of(configs.load({"checkpoint": {"directory": "a"}, **raw}), mesh)


def test_fingerprint_follows_what_programs_depend_on() -> None:
    """Sizes and mesh change it, the checkpoint directory does not."""
    key = _fingerprint({}).key
    assert key == _fingerprint({"checkpoint": {"directory": "b"}}).key
    assert key != _fingerprint({"globalBatch": 4}).key
    assert key != _fingerprint({}, fsdp=4).key


def test_a_miss_says_what_is_different(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A program of another configuration or version is not loaded, and the reason is told."""
    devices = jax.devices()[:1]
    parts = {"configuration": 1, "versions": 2, "process": None}
    ExecutableCache(str(tmp_path), Fingerprint(parts), devices).compile("double", _lower)
    other = Fingerprint({**parts, "versions": 3})
    assert not ExecutableCache(str(tmp_path), other, devices).compile("double", _lower).from_cache
    assert "is for another versions, compiling anew" in capsys.readouterr().out
    another_process = Fingerprint({**parts, "process": 1})
    ExecutableCache(str(tmp_path), another_process, devices).compile("double", _lower)
    assert "another" not in capsys.readouterr().out


def test_programs_for_tpus_depend_on_no_process_and_no_processor() -> None:
    """Whoever compiles for a slice gets the same key; another slice gets another one."""
    config = configs.load({"checkpoint": {"directory": "a"}})
    keys = {}
    for accelerator, name in (("v5e", "2x4"), ("v6e", "2x4"), ("v5e", "4x4")):
        _, devices = slices(accelerator, name)
        mesh = topology.make_mesh(dict.fromkeys(AXES, 1) | {"fsdp": len(devices)}, devices)
        fingerprint = Fingerprint.of(config, mesh)
        assert fingerprint.parts["process"] is None
        assert fingerprint.parts["processor"] == ""
        keys[fingerprint.key] = name
    assert len(keys) == 3
