"""The answers of ``check`` for people."""

from __future__ import annotations

from tpujob_ahead.check import Fit
from tpujob_ahead.roofline import Roofline
from tpujob_ahead.search import Change
from tpujob_tpu.chips import GIB

_MIB = 2**20


def report(fit: Fit) -> str:
    """The whole answer, several lines."""
    lines = [_title(fit), memory_line(fit), _flops_line(fit)]
    if fit.traffic:
        lines += ["collectives of a step, as one device sends them:", *_traffic_lines(fit)]
    if fit.roofline:
        lines += _bound_lines(fit.roofline)
    return "\n".join([*lines, f"compiled in {fit.compile_s:.1f} s"])


def _title(fit: Fit) -> str:
    config = fit.config
    mesh = ", ".join(f"{axis} {size}" for axis, size in fit.mesh.items())
    batch = f"{config.global_batch} x {config.sequence_length} tokens a step"
    return f"{config.model.preset} on {fit.target}: {mesh}; {batch}"


def memory_line(fit: Fit) -> str:
    """Whether it fits, and into what."""
    memory, chip = fit.memory, fit.target.chip
    verdict = "fits" if fit.is_fitting else "does not fit"
    per = "chip" if chip.devices == 1 else f"device (1/{chip.devices} chip)"
    needs = f"{memory.total / GIB:.2f} of {chip.hbm_bytes / GIB:.2f} GiB per {per}"
    parts = {"arguments": memory.arguments, "temporaries": memory.temporaries}
    if fit.is_fitting:
        parts |= {"output": memory.output, "code": memory.code}
    shown = ", ".join(f"{name} {size / GIB:.2f}" for name, size in parts.items())
    return f"{verdict}: {needs} ({shown})"


def advice(fit: Fit, nearest: tuple[Change, Fit] | None, tries: int) -> str:
    """That it does not fit, and what would, in a sentence."""
    if nearest is None:
        return f"{memory_line(fit)}; {nothing_near(tries)}"
    change, other = nearest
    words = change.words.removeprefix("--")
    return f"{memory_line(fit)}; the nearest that fits: {words}, which {memory_line(other)}"


def nothing_near(tries: int) -> str:
    """What to do when no change of those that were tried fits."""
    return f"nothing near fits ({tries} changes tried): take a larger slice"


def _flops_line(fit: Fit) -> str:
    numbers = fit.to_json()
    performed, model = numbers["flopsPerChip"], numbers["modelFlopsPerChip"]
    return f"FLOPs per chip and step: {performed:.3g}, of which the model needs {model:.3g}"


def _traffic_lines(fit: Fit) -> list[str]:
    rows = [("axes", "kind", "count", "MiB")] + [
        (
            " ".join(one["axes"]),
            one["kind"],
            f"{one['count']}",
            f"{one['bytes'] / _MIB:,.1f}",
        )
        for one in fit.traffic
    ]
    return [f"  {axes:<16} {kind:<18} {count:>6} {size:>12}" for axes, kind, count, size in rows]


def _bound_lines(estimate: Roofline) -> list[str]:
    terms = ", ".join(f"{name} {1000 * s:.1f} ms" for name, s in estimate.terms_s.items())
    least = f"a step of {1000 * estimate.step_s:.1f} ms, bound by {estimate.bound_by}"
    return [
        f"upper bound: MFU {estimate.mfu:.1%}, {least}",
        f"  if nothing waits for anything: {terms}",
    ]
