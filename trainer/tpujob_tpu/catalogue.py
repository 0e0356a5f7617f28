"""TPU slices: which exist, how many hosts they have, how GKE labels their nodes."""

from __future__ import annotations

import dataclasses
import difflib
import math
import re

from tpujob_tpu.generations import CUBE_EDGE, GENERATIONS, Availability, Generation

ACCELERATOR_LABEL = "cloud.google.com/gke-tpu-accelerator"
TOPOLOGY_LABEL = "cloud.google.com/gke-tpu-topology"
NODE_POOL_LABEL = "cloud.google.com/gke-nodepool"
HOSTNAME_LABEL = "kubernetes.io/hostname"
RESOURCE = "google.com/tpu"

TOPOLOGY_PATTERN = r"^[1-9][0-9]{0,2}x[1-9][0-9]{0,2}(x[1-9][0-9]{0,2})?$"
#: How many neighbours an error message names on each side.
_NEAREST = 2

BY_NAME: dict[str, Generation] = {generation.name: generation for generation in GENERATIONS}
USABLE: tuple[Generation, ...] = tuple(
    generation for generation in GENERATIONS if generation.availability is Availability.GKE
)


class UnknownSliceError(ValueError):
    """No such slice can be had; the message names what can."""


@dataclasses.dataclass(frozen=True, slots=True)
class SliceShape:
    """One slice: its chips, its hosts and what its nodes are called."""

    generation: Generation
    topology: str
    dimensions: tuple[int, ...]

    @property
    def chips(self) -> int:
        """Chips of the whole slice."""
        return math.prod(self.dimensions)

    @property
    def chips_per_host(self) -> int:
        """Chips of one host: what a worker asks for as ``google.com/tpu``."""
        return min(self.chips, self.generation.chips_per_host)

    @property
    def hosts(self) -> int:
        """Machines, and so worker pods, of the slice."""
        return self.chips // self.chips_per_host

    @property
    def gke_accelerator(self) -> str:
        """Value of GKE's accelerator label on the slice's nodes."""
        if self.hosts == 1 and self.generation.gke_single_host_label:
            return self.generation.gke_single_host_label
        return self.generation.gke_label

    @property
    def accelerator_type(self) -> str:
        """Name of the slice as libtpu knows it, such as ``v5litepod-16`` or ``v4-32``."""
        return f"{self.generation.type_prefix}-{self.chips * self.generation.cores_per_chip}"

    @property
    def node_selector(self) -> dict[str, str]:
        """Labels of the nodes that belong to such a slice."""
        return {ACCELERATOR_LABEL: self.gke_accelerator, TOPOLOGY_LABEL: self.topology}


def slice_shape(accelerator: str, topology: str) -> SliceShape:
    """The slice of a generation with a topology.

    Raises:
        UnknownSliceError: there is none; the message names the nearest that exist.
    """
    generation = _usable(accelerator)
    if not re.match(TOPOLOGY_PATTERN, topology):
        raise UnknownSliceError(
            f"topology {topology!r} is not of the form 4x4 or 4x4x4; "
            f"{accelerator} has {', '.join(generation.topologies)}"
        )
    dimensions = tuple(map(int, topology.split("x")))
    if not has_topology(generation, topology):
        raise UnknownSliceError(_no_such_topology(generation, topology, math.prod(dimensions)))
    return SliceShape(generation, topology, dimensions)


def has_topology(generation: Generation, topology: str) -> bool:
    """Whether a well-formed topology exists: listed, or made of cubes in ascending order."""
    if topology in generation.topologies:
        return True
    dimensions = tuple(map(int, topology.split("x")))
    return (
        len(dimensions) == 3
        and all(size % CUBE_EDGE == 0 for size in dimensions)
        and list(dimensions) == sorted(dimensions)
        and math.prod(dimensions) <= generation.max_cube_chips
    )


def chips_of(topology: str) -> int:
    """Chips of a well-formed topology."""
    return math.prod(map(int, topology.split("x")))


def nearest_topologies(generation: Generation, chips: int) -> tuple[str, ...]:
    """Listed topologies with about as many chips: the next smaller and the next larger ones."""
    ordered = sorted(generation.topologies, key=chips_of)
    below = [name for name in ordered if chips_of(name) <= chips]
    above = [name for name in ordered if chips_of(name) > chips]
    return (*below[-_NEAREST:], *above[:_NEAREST])


def _usable(accelerator: str) -> Generation:
    names = [generation.name for generation in USABLE]
    generation = BY_NAME.get(accelerator)
    if generation is None:
        near = difflib.get_close_matches(accelerator, names, n=1, cutoff=0.0)[0]
        raise UnknownSliceError(
            f"unknown accelerator {accelerator!r}; nearest is {near} of {', '.join(names)}"
        )
    if generation.availability is not Availability.GKE:
        raise UnknownSliceError(
            f"accelerator {accelerator} is {generation.availability.value}; "
            f"usable are {', '.join(names)}"
        )
    return generation


def _no_such_topology(generation: Generation, topology: str, chips: int) -> str:
    near = ", ".join(nearest_topologies(generation, chips))
    odd = chips > generation.chips_per_host and chips % generation.chips_per_host
    hosts = (
        f" ({chips} chips do not divide into hosts of {generation.chips_per_host})" if odd else ""
    )
    return f"{generation.name} has no topology {topology}{hosts}; nearest are {near}"
