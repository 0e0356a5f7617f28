"""Checkpoints in two tiers, for any JAX program: in the pod's memory, and with Orbax on storage."""
