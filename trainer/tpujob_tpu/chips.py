"""What one chip of each TPU generation can do, and what libtpu calls it.

Sources:

* [spec] Cloud TPU, the specification table of each generation: peak, HBM, DCN.
* [book] jax-ml/scaling-book, chapter "How to think about TPUs": ICI and DCN bandwidths.
* [libtpu] what the compiler itself says (libtpu 0.0.42.1): the HBM it will not exceed.
"""

from __future__ import annotations

import dataclasses

GIB = 2**30


@dataclasses.dataclass(frozen=True, slots=True)
class Chip:
    """One chip; bandwidths and peaks are of the whole chip, memory is of one JAX device.

    Attributes:
        device_kinds: JAX's ``device_kind`` for it.
        peak_flops: Dense bf16, FLOP/s [spec].
        hbm_bytes: What one JAX device can hold, after the runtime's reserve [libtpu].
        hbm_bytes_per_s: Read and write together [spec].
        ici_link_bytes_per_s: One link in one direction [book].
        dcn_bytes_per_s: Egress of one chip to other slices [book].
        devices: JAX devices of one chip.
        torus_edge: Axes of a multiple of this many chips wrap around [book].
        libtpu_name: First half of the compiler's topology name, as in ``v5e:4x4``.
        libtpu_config: The compiler's chip configuration, where its default is not what runs.
    """

    device_kinds: tuple[str, ...]
    peak_flops: float
    hbm_bytes: int
    hbm_bytes_per_s: float
    ici_link_bytes_per_s: float
    dcn_bytes_per_s: float
    torus_edge: int
    libtpu_name: str
    devices: int = 1
    libtpu_config: str = ""


#: By the generation's name in the catalogue.
CHIPS: dict[str, Chip] = {
    "v3": Chip(
        device_kinds=("TPU v3",),
        peak_flops=123e12,
        hbm_bytes=int(15.48 * GIB),
        hbm_bytes_per_s=900e9,
        ici_link_bytes_per_s=100e9,
        dcn_bytes_per_s=6.25e9,
        torus_edge=32,
        libtpu_name="v3",
        devices=2,
    ),
    "v4": Chip(
        device_kinds=("TPU v4",),
        peak_flops=275e12,
        hbm_bytes=int(30.75 * GIB),
        hbm_bytes_per_s=1228e9,
        ici_link_bytes_per_s=45e9,
        dcn_bytes_per_s=6.25e9,
        torus_edge=4,
        libtpu_name="v4",
        libtpu_config="megacore",  # what TPU VMs run: both cores are one device
    ),
    "v5e": Chip(
        device_kinds=("TPU v5 lite",),
        peak_flops=197e12,
        hbm_bytes=int(15.75 * GIB),
        hbm_bytes_per_s=819e9,
        ici_link_bytes_per_s=45e9,
        dcn_bytes_per_s=3.125e9,
        torus_edge=16,
        libtpu_name="v5e",
    ),
    "v5p": Chip(
        device_kinds=("TPU v5", "TPU v5p"),
        peak_flops=459e12,
        hbm_bytes=int(95.74 * GIB),
        hbm_bytes_per_s=2765e9,
        ici_link_bytes_per_s=90e9,
        dcn_bytes_per_s=6.25e9,
        torus_edge=4,
        libtpu_name="v5p",
    ),
    "v6e": Chip(
        device_kinds=("TPU v6 lite",),
        peak_flops=918e12,
        hbm_bytes=int(31.25 * GIB),
        hbm_bytes_per_s=1638e9,
        ici_link_bytes_per_s=90e9,
        dcn_bytes_per_s=12.5e9,
        torus_edge=16,
        libtpu_name="v6e",
    ),
    "v7": Chip(
        device_kinds=("TPU7x",),
        peak_flops=2307e12,
        hbm_bytes=int(94.75 * GIB),
        hbm_bytes_per_s=7380e9,
        ici_link_bytes_per_s=90e9,
        dcn_bytes_per_s=12.5e9,
        torus_edge=4,
        libtpu_name="tpu7x",
        devices=2,
    ),
}

#: JAX's ``device_kind`` → chip.
BY_DEVICE_KIND: dict[str, Chip] = {k: chip for chip in CHIPS.values() for k in chip.device_kinds}
