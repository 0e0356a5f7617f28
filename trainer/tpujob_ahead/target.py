"""The slices to compile for: checked against the catalogue, then described by the compiler."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from tpujob_tpu.catalogue import SliceShape, slice_shape
from tpujob_tpu.chips import CHIPS, Chip

if TYPE_CHECKING:
    import jax

_LIBRARY = "TPU_LIBRARY_PATH"


class NoCompilerError(RuntimeError):
    """The TPU compiler is not installed here, or does not know the slice."""


@dataclasses.dataclass(frozen=True, slots=True)
class Target:
    """Equal TPU slices that work together."""

    shape: SliceShape
    chip: Chip
    slices: int

    @property
    def chips(self) -> int:
        """Chips of all slices."""
        return self.shape.chips * self.slices

    def __str__(self) -> str:
        count = f"{self.slices} x " if self.slices > 1 else ""
        chips = f"{self.chips} chips" if self.chips > 1 else "1 chip"
        return f"{count}{self.shape.generation.name} {self.shape.topology} ({chips})"


def target(accelerator: str, topology: str, slices: int) -> Target:
    """The slices of that name.

    Raises:
        UnknownSliceError: there are none; the message names the nearest.
    """
    shape = slice_shape(accelerator, topology)
    return Target(shape, CHIPS[shape.generation.name], slices)


def require_compiler() -> None:
    """Look for libtpu without loading it.

    Raises:
        NoCompilerError: it is not there; the message says how to get it.
    """
    path = os.environ.get(_LIBRARY)
    if path and not Path(path).is_file():
        raise NoCompilerError(f"{_LIBRARY} is {path}, where no file is")
    if not path and importlib.util.find_spec("libtpu") is None:
        raise NoCompilerError(
            "the TPU compiler is missing: pip install 'tpujob[tpu]', "
            f"or set {_LIBRARY} to a libtpu.so (in a checkout: bash tools/libtpu.sh .venv)"
        )


def devices_of(wanted: Target) -> list[jax.Device]:
    """The compiler's descriptions of all devices of the slices; nothing can run on them.

    Raises:
        NoCompilerError: the compiler is missing or does not know the slice.
    """
    import jax  # noqa: PLC0415 - arguments are checked before JAX starts
    from jax.experimental import topologies  # noqa: PLC0415

    require_compiler()
    options: dict[str, object] = {}
    if wanted.slices > 1:
        options["num_slices"] = wanted.slices
    if wanted.chip.libtpu_config:
        options["chip_config_name"] = wanted.chip.libtpu_config
    if wanted.shape.chips == 1:
        options["chips_per_host_bounds"] = (1, 1, 1)
    name = f"{wanted.chip.libtpu_name}:{wanted.shape.topology}"
    try:
        with _no_tpu_here(wanted.shape):
            described = topologies.get_topology_desc(platform="tpu", topology_name=name, **options)
    except jax.errors.JaxRuntimeError as error:
        raise NoCompilerError(f"this libtpu does not know {name}: {error}") from error
    return list(described.devices)


@contextlib.contextmanager
def _no_tpu_here(shape: SliceShape) -> Iterator[None]:
    """Tell libtpu what it would otherwise ask a metadata server for, in vain and aloud."""
    told = {
        "TPU_SKIP_MDS_QUERY": "1",
        "TPU_WORKER_HOSTNAMES": "localhost",
        "TPU_WORKER_ID": "0",
        "TPU_ACCELERATOR_TYPE": shape.accelerator_type,
        # No device is opened: its lock would only keep compilers on one machine apart.
        "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
        "TPU_LOG_DIR": "disabled",
    }
    before = {name: os.environ.get(name) for name in told}
    os.environ.update(told)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
