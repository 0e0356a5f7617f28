"""A training loop of your own with the operator's checkpoints in two tiers.

A killed process goes on from memory, seconds back; a lost pod from the newest good checkpoint
of ``checkpoint.directory``; a host that has to go saves first. What this needs of a loop is in
the lines with ``checkpointer``. See docs/checkpoints.md.
"""

import os
import sys

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import tpujob
from tpujob_checkpoint import distributed
from tpujob_checkpoint.checkpointer import Checkpointer
from tpujob_checkpoint.settings import Settings

STEPS = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000
ROWS, WIDTH = 64, 256


def batch(step, rows):
    """Rows that depend on the step alone: whoever resumes sees the same ones."""
    x = jax.random.normal(jax.random.key(step), (ROWS, WIDTH))
    return jax.lax.with_sharding_constraint(x, rows)


def loss_of(params, x):
    """How badly two layers learn to sort."""
    hidden = jax.nn.relu(x @ params["in"])
    return jnp.mean((hidden @ params["out"] - jnp.sort(x, axis=-1)) ** 2)


def on(sharding):
    """A function that says of an array's shape where the array is to lie."""
    return lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)


def main():
    """Train to the last step, from wherever the job has come."""
    distributed.join(distributed.world_from(os.environ))
    mesh = Mesh(jax.devices(), ("data",))
    whole, rows = NamedSharding(mesh, PartitionSpec()), NamedSharding(mesh, PartitionSpec("data"))

    def first_state():
        key_in, key_out = jax.random.split(jax.random.key(0))
        weights_in = jax.random.normal(key_in, (WIDTH, WIDTH)) / 16
        weights_out = jax.random.normal(key_out, (WIDTH, WIDTH)) / 16
        return {"in": weights_in, "out": weights_out, "step": jnp.zeros((), jnp.int32)}

    def train_step(state):
        step = state["step"] + 1
        params = {"in": state["in"], "out": state["out"]}
        loss, grads = jax.value_and_grad(loss_of)(params, batch(step, rows))
        params = jax.tree.map(lambda p, g: p - 0.1 * g, params, grads)
        return {**params, "step": step}, loss

    first_state = jax.jit(first_state, out_shardings=whole)
    train_step = jax.jit(train_step, donate_argnums=0, out_shardings=whole)
    shapes = jax.tree.map(on(whole), jax.eval_shape(first_state))
    with Checkpointer(Settings.from_env(), shapes, last=STEPS) as checkpointer:
        step, state = checkpointer.restore(first_state)
        while step < STEPS:
            state, loss = train_step(state)
            step += 1
            tpujob.step(step, loss=float(loss))
            print(f"step {step} loss {float(loss):.9g}", flush=True)
            checkpointer.after(step, state)


if __name__ == "__main__":
    main()
