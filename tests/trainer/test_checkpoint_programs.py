"""Which states can be saved, and what is said of those that cannot."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from tpujob_checkpoint.checkpointer import Checkpointer
from tpujob_checkpoint.programs import Programs
from tpujob_checkpoint.settings import Settings, is_interval


def on_mesh(value: Any, split: PartitionSpec | None = None) -> jax.Array:
    """An array on this machine's devices."""
    mesh = Mesh(np.array(jax.devices()), ("x",))
    array: jax.Array = jax.device_put(value, NamedSharding(mesh, split or PartitionSpec()))
    return array


ROOT = Path(__file__).resolve().parents[2]
TYPES = [jnp.bool_, jnp.int8, jnp.bfloat16, jnp.float32, jnp.uint32, jnp.complex64]


@pytest.mark.parametrize("dtype", TYPES, ids=lambda dtype: dtype.__name__)
def test_digests_of_all_types_see_one_element(dtype: Any) -> None:
    """Truth values and complex numbers too: states are not only a model's weights."""
    values = np.zeros((len(jax.devices()), 3), dtype)
    changed = values.copy()
    changed[-1, 1] = 1j if dtype is jnp.complex64 else 1
    digests = []
    for state in (values, changed, values):
        leaf = on_mesh(state, PartitionSpec("x"))
        programs = Programs.of({"leaf": leaf})
        digests.append(int(programs.digest()(programs.shares()({"leaf": leaf}))[0]))
    assert digests[0] == digests[2] != digests[1]


def test_long_numbers_have_digests_of_both_halves() -> None:
    """Eight bytes, where JAX is told to have such numbers at all."""
    with jax.enable_x64(True):
        found = set()
        for value in (0, 1, 1 << 40):
            leaf = on_mesh(np.array([value, 7], np.int64))
            programs = Programs.of([leaf])
            found.add(int(programs.digest()(programs.shares()([leaf]))[0]))
    assert len(found) == 3


@pytest.mark.parametrize(
    ("leaf", "words"),
    [
        (lambda: np.zeros(3), "w of the state lies on no mesh"),
        (lambda: 1.5, "w of the state lies on no mesh"),
        (lambda: jnp.zeros(3), "jax.device_put"),
        (lambda: on_mesh(jax.random.key(0)), "store keys of jax.random as jax.random.key_data"),
    ],
    ids=["numpy", "number", "one device", "key"],
)
def test_a_state_that_cannot_be_saved_is_told_before_it_trains(
    leaf: Callable[[], Any], words: str
) -> None:
    """The array's name and what to do with it."""
    with pytest.raises(ValueError, match=words):
        Programs.of({"good": on_mesh(np.zeros(3)), "w": leaf()})


def test_a_state_lies_on_one_mesh() -> None:
    """Two meshes have no common place for the digests."""
    other = Mesh(np.array(jax.devices())[::-1].reshape(-1, 1), ("a", "b"))
    elsewhere = jax.device_put(np.zeros(3), NamedSharding(other, PartitionSpec()))
    with pytest.raises(ValueError, match="lies on 2 meshes"):
        Programs.of([on_mesh(np.zeros(3)), elsewhere])


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (Settings("d", "step:5"), "none of steps:N, seconds:S and auto"),
        (Settings("d", "seconds:-1"), "none of"),
        (Settings("d", keep=1), "keep 1 is no whole number from 2"),
        (Settings("d", keep="three"), "keep 'three'"),  # type: ignore[arg-type] # as from outside
        (Settings("d", snapshot_s=-1), "snapshot_s -1"),
    ],
)
def test_settings_that_cannot_be_meant_are_refused(settings: Settings, words: str) -> None:
    """In words, before anything is touched."""
    with pytest.raises(ValueError, match=words):
        Checkpointer(settings, [on_mesh(np.zeros(3))], last=1)


def test_the_job_says_where_and_how_often(tmp_path: Path) -> None:
    """By the agent's environment, as for the bundled trainer; without a directory it says so."""
    env = {"TPUJOB_CHECKPOINT_DIR": str(tmp_path), "TPUJOB_CHECKPOINT_KEEP": "5"}
    assert Settings.from_env(env) == Settings(str(tmp_path), "auto", 5)
    with pytest.raises(ValueError, match=r"give the job checkpoint\.directory"):
        Settings.from_env({})


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("auto", True),
        ("steps:1", True),
        ("seconds:0.5", True),
        ("steps:0", False),
        ("steps:1.5", False),
        ("seconds:inf", False),
        ("seconds:nan", False),
        ("seconds:", False),
        ("", False),
    ],
)
def test_intervals(text: str, expected: bool) -> None:
    """A number of steps, of seconds, or what the coordinator tells."""
    assert is_interval(text) is expected


_DIES = """
import sys
import jax, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from tpujob_checkpoint.checkpointer import Checkpointer
from tpujob_checkpoint.distributed import World
from tpujob_checkpoint.settings import Settings

state = jax.device_put(np.zeros(3), NamedSharding(Mesh(jax.devices(), "x"), PartitionSpec()))
try:
    with Checkpointer(Settings(sys.argv[1]), [state], last=9) as checkpointer:
        checkpointer._world = World(0, int(sys.argv[2]))
        raise KeyError("a fault of the loop's")
except KeyError:
    print("caught")
"""


@pytest.mark.parametrize(("processes", "code", "is_caught"), [(1, 0, True), (2, 1, False)])
def test_an_error_among_several_processes_ends_this_one_at_once(
    tmp_path: Path, processes: int, code: int, is_caught: bool
) -> None:
    """It must not wait for peers, and says what it was; alone it is an error like any other."""
    command = [sys.executable, "-c", _DIES, str(tmp_path), str(processes)]
    env = {**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT / "trainer")}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stderr
    assert ("caught" in done.stdout) is is_caught
    assert ("a fault of the loop's" in done.stderr) is not is_caught
