"""How much arithmetic a step needs, and how much of the hardware's peak that is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tpujob_tpu.chips import BY_DEVICE_KIND
from tpujob_trainer.config import TrainerConfig

if TYPE_CHECKING:  # the command line counts FLOPs where there is no JAX
    import jax

#: Dense bf16 peak of other chips by JAX's ``device_kind``, FLOP/s, as the vendor publishes it.
_GPU_PEAK_FLOPS: dict[str, float] = {
    "NVIDIA H100 80GB HBM3": 989.5e12,
    "NVIDIA H200": 989.5e12,
}


def flops_per_token(config: TrainerConfig) -> float:
    """FLOPs of forward and backward for one token: ``6 N + 6 layers x dModel x length``.

    ``N`` counts the weights of matrix multiplications (no embedding lookup, no
    scales); backward is twice forward; causal attention counts half of its
    square; what is computed again (remat) does not count.
    """
    m = config.model
    attention = m.d_model * m.d_head * (2 * m.heads + 2 * m.kv_heads)
    matmuls = m.layers * (attention + 3 * m.d_model * m.d_ff) + m.d_model * m.vocab
    scores = 6 * m.layers * m.heads * m.d_head * config.sequence_length
    return 6.0 * matmuls + scores


def peak_flops(devices: Sequence[jax.Device]) -> float | None:
    """Peak of all chips together, or None where the chip is not in the table."""
    kind = devices[0].device_kind
    chip = BY_DEVICE_KIND.get(kind)
    peak = chip.peak_flops if chip else _GPU_PEAK_FLOPS.get(kind)
    return None if peak is None else peak * _chips(devices)


def _chips(devices: Sequence[jax.Device]) -> int:
    # Some generations show two devices a chip, which share its coordinates.
    return len({(getattr(d, "slice_index", 0), _place(d)) for d in devices})


def _place(device: jax.Device) -> tuple[int, ...]:
    coordinates = getattr(device, "coords", None)
    return tuple(coordinates) if coordinates else (device.id,)


def mfu(config: TrainerConfig, devices: Sequence[jax.Device], step_s: float) -> float | None:
    """Model FLOPs utilisation of a step, or None where the peak is unknown (CPU)."""
    peak = peak_flops(devices)
    if peak is None or step_s <= 0:
        return None
    tokens = config.global_batch * config.sequence_length
    return flops_per_token(config) * tokens / step_s / peak
