"""Names and fingerprints of the trees of arrays that a step holds."""

from __future__ import annotations

import hashlib
from typing import Any

import jax

DIGEST = "digest"
STATE = "state"


def leaf_names(tree: Any) -> list[str]:
    """Names of the leaves in the order in which JAX flattens them: ``params/layers/0/query``."""
    paths = jax.tree_util.tree_flatten_with_path(tree)[0]
    return [jax.tree_util.keystr(path, simple=True, separator="/") for path, _ in paths]


def fingerprint(abstract: Any) -> str:
    """Equal for states that can be restored into each other: names, shapes and types."""
    leaves = zip(leaf_names(abstract), jax.tree.leaves(abstract), strict=True)
    text = ";".join(f"{name}:{leaf.dtype}{list(leaf.shape)}" for name, leaf in leaves)
    return hashlib.sha256(text.encode()).hexdigest()[:32]
