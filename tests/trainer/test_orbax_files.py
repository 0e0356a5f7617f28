"""What our changes to Orbax leave alone, and what a save holds on to."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import NamedSharding, PartitionSpec
from orbax.checkpoint import v1 as ocp

from tpujob_checkpoint import orbax_files


def _tree(start: int) -> dict[str, jax.Array]:
    return {"a": jnp.arange(start, start + 1000), "b": jnp.ones((7, 3)) * start}


def _is(found: Any, start: int) -> bool:
    same = jax.tree.map(lambda a, b: bool((a == b).all()), found, _tree(start))
    return all(jax.tree.leaves(same))


def _wanted() -> Any:
    mesh = jax.make_mesh((1,), ("x",))
    sharding = NamedSharding(mesh, PartitionSpec())
    return jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding), _tree(0)
    )


def _save(path: Path, tree: Any, guard: Any) -> None:
    orbax_files.save(path, {"state": tree}, 1, guard)


def test_programs_save_with_orbax_by_themselves(tmp_path: Path) -> None:
    """Before, beside and after a save of ours: neither is in the other's way."""
    ocp.save(tmp_path / "before", _tree(1))
    _save(tmp_path / "ours", _tree(2), lambda _: ocp.save(tmp_path / "beside", _tree(3)))
    ocp.save_async(tmp_path / "after", _tree(4)).result()
    theirs = {"before": 1, "beside": 3, "after": 4}
    assert all(_is(ocp.load(tmp_path / name, _wanted()), start) for name, start in theirs.items())
    ours = orbax_files.load(tmp_path / "ours", {"state": _wanted()}, 0)
    assert _is(ours["state"], 2)


def test_what_a_guard_raises_is_raised_and_nothing_is_committed(tmp_path: Path) -> None:
    """The same path can be saved to later, and by Orbax alone: the guard went with its save."""

    def refuse(_: object) -> None:
        raise PermissionError("not this one")

    with pytest.raises(PermissionError, match="not this one"):
        _save(tmp_path / "4", _tree(1), refuse)
    assert not (tmp_path / "4").exists()
    ocp.save(tmp_path / "4", _tree(2))
    assert _is(ocp.load(tmp_path / "4", _wanted()), 2)


def test_arrays_are_let_go_before_the_save_ends(tmp_path: Path) -> None:
    """Their memory on the devices is wanted for the next snapshot while files are written."""
    tree = _tree(1)
    leaves = [weakref.ref(leaf) for leaf in jax.tree.leaves(tree)]
    held: list[int] = []

    def count(_: object) -> None:
        gc.collect()
        held.append(sum(leaf() is not None for leaf in leaves))

    trees = {"state": tree}
    del tree
    orbax_files.save(tmp_path / "1", trees, 1, count)
    assert held == [0]
