"""What is known about TPU generations, one row each, with its sources.

Rows hold facts only; everything that follows from them (hosts, chips of a
topology, labels of a node) is computed in ``catalogue``. Sources:

* [gke] Google Kubernetes Engine, "Plan TPUs in GKE": machine types, labels, topologies.
* [cfg] Cloud TPU, "TPU configurations" of each generation: shapes, largest slice.
* [kuberay] GoogleCloudPlatform/ai-on-gke, ``ray-on-gke/tpu/kuberay-tpu-webhook``: environment.
* [xpk] AI-Hypercomputer/xpk, ``core/system_characteristics.py``: labels, hosts, type names.
"""

from __future__ import annotations

import dataclasses
import enum

#: v4, v5p and v7 slices from 4x4x4 up are made of cubes with edges of this many chips [cfg].
CUBE_EDGE = 4


class Availability(enum.Enum):
    """Whether a generation can be had as a GKE node pool."""

    GKE = "GKE"
    NOT_ON_GKE = "not offered by GKE"
    ANNOUNCED = "announced; its node labels are not published yet"


@dataclasses.dataclass(frozen=True, slots=True)
class Generation:
    """One row of the catalogue.

    Attributes:
        name: The value of ``spec.accelerator``.
        availability: Whether jobs can ask for it.
        chips_per_host: Chips of a machine that is part of a slice of more than one chip.
        cores_per_chip: TensorCores; the numbers in type names such as ``v4-16`` count cores.
        type_prefix: First part of ``TPU_ACCELERATOR_TYPE``.
        gke_label: Value of ``cloud.google.com/gke-tpu-accelerator``.
        gke_single_host_label: The same for slices of one host, where it differs.
        topologies: Shapes by ascending number of chips; for generations with
            cubes the usual ones, see ``max_cube_chips``.
        max_cube_chips: Largest slice made of cubes; 0: none can be made.
        has_process_addresses: Whether libtpu is told a port with each host of its slice.
    """

    name: str
    availability: Availability
    chips_per_host: int = 4
    cores_per_chip: int = 1
    type_prefix: str = ""
    gke_label: str = ""
    gke_single_host_label: str = ""
    topologies: tuple[str, ...] = ()
    max_cube_chips: int = 0
    has_process_addresses: bool = False


# Shapes every 3D generation has [gke] [xpk], then cubes near to a cube's shape.
_SMALL_3D = ("2x2x1", "2x2x2", "2x2x4", "2x4x4")
_CUBES = (
    "4x4x4", "4x4x8", "4x4x12", "4x8x8", "4x4x16", "4x8x12", "8x8x8", "8x8x12", "8x8x16",
    "8x12x12", "8x12x16", "12x12x12", "8x16x16", "12x12x16", "12x16x16", "16x16x16",
)  # fmt: skip
_2D = ("1x1", "2x2", "2x4", "4x4", "4x8", "8x8", "8x16", "16x16")

GENERATIONS: tuple[Generation, ...] = (
    Generation("v2", Availability.NOT_ON_GKE),  # [gke] lists v3 and later only
    Generation(
        name="v3",  # [gke] ct3-hightpu-4t (2x2), ct3p-hightpu-4t; [cfg] 2 cores per chip
        availability=Availability.GKE,
        cores_per_chip=2,
        type_prefix="v3",
        gke_label="tpu-v3-slice",
        gke_single_host_label="tpu-v3-device",
        topologies=("2x2", "4x4", "4x8", "8x8", "8x16", "16x16", "16x32", "32x32"),
    ),
    Generation(
        name="v4",  # [gke] ct4p-hightpu-4t; [cfg] pods of 4,096 chips
        availability=Availability.GKE,
        cores_per_chip=2,
        type_prefix="v4",
        gke_label="tpu-v4-podslice",
        topologies=(*_SMALL_3D, *_CUBES),
        max_cube_chips=4096,
    ),
    Generation(
        name="v5e",  # [gke] ct5lp-hightpu-1t (1x1), -4t; [xpk] 2x4 as two hosts of 4
        availability=Availability.GKE,
        type_prefix="v5litepod",
        gke_label="tpu-v5-lite-podslice",
        topologies=_2D,
    ),
    Generation(
        name="v5p",  # [gke] ct5p-hightpu-4t; [xpk] 16x20x28, a whole pod of 8,960, is the largest
        availability=Availability.GKE,
        cores_per_chip=2,
        type_prefix="v5p",
        gke_label="tpu-v5p-slice",
        topologies=(*_SMALL_3D, *_CUBES, "16x16x20", "16x16x24", "16x20x28"),
        max_cube_chips=8960,
    ),
    Generation(
        name="v6e",  # [gke] ct6e-standard-1t (1x1), -4t; [xpk] 2x4 as two hosts of 4
        availability=Availability.GKE,
        type_prefix="v6e",
        gke_label="tpu-v6e-slice",
        topologies=_2D,
    ),
    Generation(
        name="v7",  # [gke] tpu7x-standard-1t (1x1x1), -4t; [xpk] 16x24x24 is the largest
        availability=Availability.GKE,
        cores_per_chip=2,
        type_prefix="tpu7x",
        gke_label="tpu7x",
        topologies=("1x1x1", *_SMALL_3D, *_CUBES, "16x16x24", "16x24x24"),
        max_cube_chips=9216,
        has_process_addresses=True,  # [kuberay]
    ),
    Generation("v8t", Availability.ANNOUNCED),
    Generation("v8i", Availability.ANNOUNCED),
)
