"""CEL rules that refuse slices that do not exist, made from the TPU catalogue."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping

from tpujob_operator.api.base import rule
from tpujob_tpu.catalogue import (
    TOPOLOGY_PATTERN,
    USABLE,
    chips_of,
    nearest_topologies,
)
from tpujob_tpu.generations import CUBE_EDGE, GENERATIONS, Availability


def _text(value: str) -> str:
    return "'" + value + "'"


def _list(values: Iterable[str]) -> str:
    return "[" + ",".join(values) + "]"


def _map(pairs: Mapping[str, str | int]) -> str:
    return "{" + ",".join(f"{_text(key)}:{value}" for key, value in pairs.items()) + "}"


_NAMES = _list(_text(generation.name) for generation in USABLE)
_TOPOLOGIES = _map({g.name: _list(map(_text, g.topologies)) for g in USABLE})
_MAX_CUBES = _map({g.name: g.max_cube_chips for g in USABLE})
_PER_HOST = _map({g.name: g.chips_per_host for g in USABLE})
#: Pods of a job, without its coordinator: more than three pods' worth of the largest slices. Each
#: costs the API server, JobSet's controller and the operator memory, whoever asked for it.
MAX_HOSTS = 16_384
TOO_MANY_HOSTS = (
    f"slices and spares together must not have more than {MAX_HOSTS} hosts: ask for fewer or "
    "smaller slices"
)

_HOST_SIZES = " or ".join(str(size) for size in sorted({g.chips_per_host for g in USABLE}))

#: Other rules speak when the generation or the form of the topology is wrong.
_CHECKABLE = (
    f"!(self.accelerator in {_NAMES}) || !self.topology.matches({json.dumps(TOPOLOGY_PATTERN)})"
)
_DIMENSIONS = "self.topology.split('x').map(d, int(d))"
_CHIPS = (
    f"[{_DIMENSIONS}].map(d, d[0] * d[1] * (size(d) == 3 ? d[2] : 1))[0]"  # CEL has no variables
)
_IS_CUBES = (
    f"[{_DIMENSIONS}].exists(d, size(d) == 3 && d.all(n, n % {CUBE_EDGE} == 0)"
    f" && d[0] <= d[1] && d[1] <= d[2] && d[0] * d[1] * d[2] <= {_MAX_CUBES}[self.accelerator])"
)


def _nearest() -> str:
    """Text that names the nearest topologies of ``self.accelerator``, for a message.

    The API server refuses expressions whose cost it cannot bound, and it knows the
    length of no string that comes out of a list, a map or a number. Constants and
    their substrings it knows: hence one constant per generation, with a column of
    equal width for each place between two topologies.
    """
    chosen = "''"
    for generation in reversed(USABLE):
        sizes = sorted({chips_of(topology) for topology in generation.topologies})
        texts = [
            f"{generation.name} has no such topology; nearest are "
            + ", ".join(nearest_topologies(generation, chips))
            for chips in (0, *sizes)
        ]
        width = max(map(len, texts))
        column = f"size({json.dumps(sizes)}.filter(c, c <= {_CHIPS}))"
        table = _text("".join(text.ljust(width) for text in texts))
        entry = f"{table}.substring({column} * {width}, ({column} + 1) * {width}).trim()"
        chosen = f"self.accelerator == {_text(generation.name)} ? {entry} : ({chosen})"
    return chosen


def _unavailable(availability: Availability) -> dict[str, str]:
    names = [g.name for g in GENERATIONS if g.availability is availability]
    usable = ", ".join(g.name for g in USABLE)
    return rule(
        f"!(self.accelerator in {_list(map(_text, names))})",
        f"accelerator {' and '.join(names)}: {availability.value}; usable are {usable}",
    )


SLICE_RULES: tuple[dict[str, str], ...] = (
    _unavailable(Availability.NOT_ON_GKE),
    _unavailable(Availability.ANNOUNCED),
    rule(
        f"{_CHECKABLE} || self.topology in {_TOPOLOGIES}[self.accelerator] || {_IS_CUBES}",
        "this accelerator has no such topology",
        message_expression=_nearest(),
    ),
    rule(
        f"{_CHECKABLE} || {_CHIPS} <= {_PER_HOST}[self.accelerator]"
        f" || {_CHIPS} % {_PER_HOST}[self.accelerator] == 0",
        f"the chips of this topology do not divide into hosts of {_HOST_SIZES}",
    ),
    rule(
        f"{_CHECKABLE} || {_CHIPS} <= {_PER_HOST}[self.accelerator] || (self.slices + self.spares)"
        f" * ({_CHIPS} / {_PER_HOST}[self.accelerator]) <= {MAX_HOSTS}",
        TOO_MANY_HOSTS,
    ),
)
