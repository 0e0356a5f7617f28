"""Matrix products in int8, forward and backward, by Qwix: twice bfloat16's pace on most TPUs."""

from __future__ import annotations

import jax
import jax.numpy as jnp

# Qwix exports this only through providers that look for Flax modules, which we have none of.
from qwix._src.core.dot_general_qt import DotGeneralQtConfig, dot_general_qt

_CONFIG = DotGeneralQtConfig(
    lhs_qtype="int8", rhs_qtype="int8", dlhs_grad_qtype="int8", drhs_grad_qtype="int8"
)


def dot_general(
    lhs: jax.Array, rhs: jax.Array, dimension_numbers: jax.lax.DotDimensionNumbers
) -> jax.Array:
    """``jax.lax.dot_general`` of operands scaled to int8 by their largest value.

    Each row of the left and each column of the right operand has its own scale, and so do
    the incoming gradients of the backward pass.
    """
    return jnp.asarray(dot_general_qt(lhs, rhs, dimension_numbers, _CONFIG))
