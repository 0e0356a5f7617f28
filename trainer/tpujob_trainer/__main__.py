"""``python -m tpujob_trainer [train]``: read the configuration, train, say why it ended.

``check`` and ``compile`` ask the TPU compiler about a job before it has a TPU.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import os
import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from typing import NoReturn

from tpujob_agent.protocol import USER_ERROR, Env, ExitCode
from tpujob_ahead import commands
from tpujob_checkpoint.settings import given_by
from tpujob_trainer import config as configs
from tpujob_trainer.config import TrainerConfig
from tpujob_trainer.fields import ConfigError
from tpujob_trainer.source import decoded


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """Run the trainer; never returns.

    The process ends without JAX's exit hook, which would wait in a barrier for peers
    that are dead already (60 to 93 s).
    """
    code = run(argv)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def run(argv: Sequence[str] | None = None) -> int:
    """Train, unless the first argument names another command; returns the exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if arguments[:1] == ["check"] or arguments[:1] == ["compile"]:
        return commands.run(arguments[0], arguments[1:])
    parser = argparse.ArgumentParser(
        "tpujob-trainer [train]",
        description="Train a sharded language model.",
        epilog="Other commands, each with its own --help: check (does it fit a TPU slice?), "
        "compile (ahead of time).",
    )
    parser.add_argument(
        "--config",
        default="",
        help=f"JSON file, or env:NAME (default: env:{Env.TRAINER_CONFIG} if that is set)",
    )
    options = parser.parse_args(arguments[1:] if arguments[:1] == ["train"] else arguments)
    try:
        config = read_config(options.config, os.environ)
    except ConfigError as error:
        print(f"tpujob-trainer: {error}", file=sys.stderr)
        return USER_ERROR
    return _train(config)


def read_config(where: str, env: Mapping[str, str]) -> TrainerConfig:
    """The configuration from a file or a variable; the environment's checkpoint settings win.

    Args:
        where: a path, ``env:NAME``, or empty for the usual variable.
        env: the environment.

    Raises:
        ConfigError: it is missing, no JSON, or has faults.
    """
    raw = decoded(where, env)
    return configs.load(raw, overrides={"checkpoint": given_by(env)})


def _train(config: TrainerConfig) -> int:
    # JAX comes after the configuration: a typo is answered at once.
    with _without_collections():
        from tpujob_checkpoint import distributed, ending  # noqa: PLC0415
        from tpujob_data import DataError  # noqa: PLC0415
        from tpujob_trainer import sharding, train  # noqa: PLC0415

    try:
        world = distributed.world_from(os.environ)
    except ValueError as error:
        print(f"tpujob-trainer: {error}", file=sys.stderr)
        return USER_ERROR
    try:
        return train.train(config, world)
    except (sharding.ShardingError, DataError, train.DivergedError) as error:
        print(f"tpujob-trainer: {error}", file=sys.stderr)
        return USER_ERROR
    except Exception as error:  # noqa: BLE001 - the exit code is our last word, whatever happened
        code = ending.exit_code(world, error)
        if code is None:
            traceback.print_exc()
            return USER_ERROR
        lost = "a peer is lost: " if code == ExitCode.PEER_LOST else ""
        print(f"tpujob-trainer: {lost}{str(error)[:500] if lost else error}", file=sys.stderr)
        return code


@contextlib.contextmanager
def _without_collections() -> Iterator[None]:
    """For imports: all of it stays, and to look for garbage takes a tenth of their time."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


if __name__ == "__main__":
    main()
