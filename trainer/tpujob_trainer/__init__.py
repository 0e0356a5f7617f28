"""The bundled trainer: a sharded JAX language model."""
