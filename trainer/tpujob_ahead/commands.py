"""``tpujob-trainer check`` and ``compile``: arguments are judged before JAX starts."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tpujob_agent.preflight import Answer, Verdict
from tpujob_agent.protocol import USER_ERROR, Env
from tpujob_ahead.target import (
    NoCompilerError,
    Target,
    devices_of,
    require_compiler,
    target,
)
from tpujob_tpu.catalogue import UnknownSliceError
from tpujob_trainer import config as configs
from tpujob_trainer.config import TrainerConfig
from tpujob_trainer.fields import ConfigError
from tpujob_trainer.presets import PRESET_NAMES
from tpujob_trainer.source import decoded

DOES_NOT_FIT = 3
#: Seconds between lines that say it is still compiling.
_PROGRESS_S = 15.0
#: Without a configuration file: tokens of a row, one row for each device.
_SEQUENCE_LENGTH = 4096


def run(command: str, argv: Sequence[str]) -> int:
    """Run ``check`` or ``compile``; returns the exit code."""
    options = _parser(command).parse_args(argv)
    try:
        wanted, config = _read(options)
        if wanted:
            require_compiler()
        if command == "compile":
            return _compile(wanted, config, options.out)
        assert wanted is not None
        return _check(wanted, config, options)
    except (ConfigError, NoCompilerError) as error:
        print(f"tpujob-trainer {command}: {error}", file=sys.stderr)
        answer = Answer.INVALID if isinstance(error, ConfigError) else Answer.UNABLE
        _conclude(options, answer, str(error))
        return USER_ERROR


def _parser(command: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(f"tpujob-trainer {command}")
    is_needed = command == "check"  # without them, compile takes the devices of this world
    parser.add_argument("--accelerator", required=is_needed, help="v4, v5e, v5p, v6e or v7")
    parser.add_argument("--topology", required=is_needed, help="chips of a slice, such as 4x4x8")
    parser.add_argument("--slices", type=int, default=1, help="number of slices (default 1)")
    model = parser.add_mutually_exclusive_group(required=True)
    model.add_argument("--preset", help=f"a model: {', '.join(PRESET_NAMES)}")
    model.add_argument("--config", help="the trainer's configuration, a JSON file or env:NAME")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="PATH=VALUE",
        help="change a field, such as mesh.tensor=4; may be repeated",
    )
    if command == "compile":
        parser.add_argument(
            "--out", required=True, help="directory: the trainer's TPUJOB_CACHE_DIR"
        )
        return parser
    parser.add_argument("-o", "--output", choices=("text", "json"), default="text")
    parser.add_argument(
        "--tries",
        type=int,
        default=8,
        help="changes to compile in search of one that fits (default 8)",
    )
    parser.add_argument("--verdict", metavar="FILE", help="write the answer, short, for a program")
    return parser


def _read(options: argparse.Namespace) -> tuple[Target | None, TrainerConfig]:
    """Target, None for the devices that are here, and configuration.

    Raises:
        ConfigError: with everything that is wrong with either.
    """
    problems: list[str] = []
    wanted = None
    if options.accelerator or options.topology:
        try:
            wanted = target(options.accelerator or "", options.topology or "", options.slices)
        except UnknownSliceError as error:
            problems.append(str(error))
    if options.slices < 1:
        problems.append(f"--slices {options.slices}: there is at least one (nearest valid: 1)")
    raw = _raw(options, wanted, problems)
    try:
        config = configs.load(raw)
    except ConfigError as error:
        problems += error.problems
    if problems:
        raise ConfigError(problems)
    return wanted, config


def _raw(options: argparse.Namespace, wanted: Target | None, problems: list[str]) -> Any:
    """The configuration as decoded JSON; checkpoints are not written, so anywhere will do."""
    raw: Any = {"checkpoint": {"directory": "unused"}}
    if options.config:
        given = decoded(options.config, os.environ)
        if not isinstance(given, dict):
            return given
        raw |= given
    else:
        devices = wanted.chips * wanted.chip.devices if wanted else 1
        raw |= {
            "model": {"preset": options.preset},
            "sequenceLength": _SEQUENCE_LENGTH,
            "globalBatch": devices,
        }
    for assignment in options.set:
        _assign(raw, assignment, problems)
    return raw


def _assign(raw: dict[str, Any], assignment: str, problems: list[str]) -> None:
    path, equals, text = assignment.partition("=")
    *sections, field = path.split(".")
    if not equals or not field:
        problems.append(f"--set {assignment}: expected PATH=VALUE, such as mesh.tensor=4")
        return
    place: Any = raw
    for section in sections:
        place = place.setdefault(section, {})
        if not isinstance(place, dict):
            problems.append(f"--set {assignment}: {section} is no section")
            return
    try:
        place[field] = json.loads(text)
    except json.JSONDecodeError:
        place[field] = text


def _check(wanted: Target, config: TrainerConfig, options: argparse.Namespace) -> int:
    import jax  # noqa: PLC0415 - arguments are checked before JAX starts

    from tpujob_ahead import check, report, search  # noqa: PLC0415
    from tpujob_trainer.sharding import ShardingError  # noqa: PLC0415

    jax.config.update("jax_platforms", "cpu")  # nothing runs: a TPU here is not to be opened

    def compiled(config: TrainerConfig, wanted: Target) -> check.Fit:
        with _progress(f"compiling for {wanted}"):
            fit = check.check(config, wanted)
        _say(report.memory_line(fit))
        return fit

    try:
        fit = compiled(config, wanted)
    except ShardingError as error:
        raise ConfigError([str(error)]) from error
    found = None
    answer = Answer.FITS if fit.is_fitting else Answer.DOES_NOT_FIT
    _conclude(options, answer, report.memory_line(fit))
    if not fit.is_fitting:  # which holds, whatever becomes of the search
        found = search.nearest_fit(fit, compiled, tries=options.tries)
        _conclude(options, answer, report.advice(fit, found, options.tries))
    if options.output == "json":
        nearest = found and {"change": found[0].words, **found[1].to_json()}
        print(json.dumps({**fit.to_json(), "nearestFit": nearest}, indent=2))
    else:
        print(report.report(fit))
        if found:
            print(f"\nthe nearest that fits: {found[0].words}\n{report.report(found[1])}")
        elif not fit.is_fitting:
            print(f"\n{report.nothing_near(options.tries)}")
    return 0 if fit.is_fitting else DOES_NOT_FIT


def _conclude(options: argparse.Namespace, answer: Answer, message: str) -> None:
    """Write the answer where it was asked for."""
    if getattr(options, "verdict", None):
        Path(options.verdict).write_text(Verdict(answer, message).to_json(), encoding="utf-8")


def _compile(wanted: Target | None, config: TrainerConfig, out: str) -> int:
    """Compile all programs of a run into a directory: for slices, or as one of this world."""
    import jax  # noqa: PLC0415 - arguments are checked before JAX starts

    from tpujob_checkpoint import distributed  # noqa: PLC0415
    from tpujob_trainer import topology  # noqa: PLC0415
    from tpujob_trainer.programs import Programs  # noqa: PLC0415
    from tpujob_trainer.sharding import ShardingError  # noqa: PLC0415

    world = distributed.world_from({} if wanted else os.environ)
    if wanted:
        jax.config.update("jax_platforms", "cpu")
        devices, slices = devices_of(wanted), wanted.slices
    else:
        distributed.join(world)
        devices, slices = jax.devices(), world.num_slices
    try:
        mesh = topology.mesh_of(config, devices, slices)
        job_key = os.environ.get(Env.PROGRAMS_KEY, "")
        programs = Programs(config, mesh, out, job_key=job_key)
    except ShardingError as error:
        raise ConfigError([str(error)]) from error
    for name in programs.names:
        with _progress(f"compiling {name} for {wanted or devices[0].device_kind}"):
            try:
                compiled = programs.keep(name)
            except jax.errors.JaxRuntimeError as error:
                print(f"tpujob-trainer compile: {name} does not compile: {error}", file=sys.stderr)
                return DOES_NOT_FIT
        how = "was there already" if compiled.from_cache else "compiled"
        print(f"{name} {how} in {compiled.seconds:.1f} s", flush=True)
    distributed.leave(world)
    return 0


def _say(text: str) -> None:
    print(f"  {text}", file=sys.stderr, flush=True)


@contextlib.contextmanager
def _progress(text: str) -> Iterator[None]:
    """Tell on stderr that something takes its time, and how long it has taken."""
    started = time.monotonic()
    done = threading.Event()

    def tell() -> None:
        while not done.wait(_PROGRESS_S):
            _say(f"{text}: {time.monotonic() - started:.0f} s")

    _say(text)
    thread = threading.Thread(target=tell, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
