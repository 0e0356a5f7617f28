"""``python -m tpujob_trainer``: read the configuration, train, exit with a code that says why."""

from __future__ import annotations

import argparse
import json
import os
import sys
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from tpujob_agent.protocol import Env, ExitCode
from tpujob_trainer import config as configs
from tpujob_trainer.config import TrainerConfig
from tpujob_trainer.fields import ConfigError

#: The user's configuration, data or directory is at fault: the message alone helps.
USER_ERROR = 1


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
    """Read the configuration and train; returns the exit code."""
    parser = argparse.ArgumentParser(
        "tpujob-trainer", description="Train a sharded language model."
    )
    parser.add_argument(
        "--config",
        default="",
        help=f"JSON file, or env:NAME (default: env:{Env.TRAINER_CONFIG} if that is set)",
    )
    options = parser.parse_args(argv)
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
    name = Env.TRAINER_CONFIG if not where else where.removeprefix("env:")
    if where and not where.startswith("env:"):
        text, origin = _read(Path(where)), where
    elif name in env:
        text, origin = env[name], f"variable {name}"
    else:
        raise ConfigError([f"none given: pass --config FILE or set {name}"])
    try:
        raw = json.loads(text)
    except json.JSONDecodeError as error:
        raise ConfigError([f"{origin} is no JSON: {error}"]) from error
    return configs.load(raw, overrides={"checkpoint": _checkpoint_overrides(env)})


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError([f"{path} cannot be read: {error.strerror}"]) from error


def _checkpoint_overrides(env: Mapping[str, str]) -> dict[str, Any]:
    keys = {
        "directory": Env.CHECKPOINT_DIR,
        "interval": Env.CHECKPOINT_INTERVAL,
        "keep": Env.CHECKPOINT_KEEP,
    }
    found: dict[str, Any] = {key: env[name] for key, name in keys.items() if env.get(name)}
    if str(found.get("keep", "")).isdecimal():
        found["keep"] = int(found["keep"])
    return found


def _train(config: TrainerConfig) -> int:
    # JAX comes after the configuration: a typo is answered at once.
    from tpujob_trainer import checkpoint, distributed, sharding, train  # noqa: PLC0415
    from tpujob_trainer.data import DataError  # noqa: PLC0415

    try:
        world = distributed.world_from(os.environ)
    except ValueError as error:
        print(f"tpujob-trainer: {error}", file=sys.stderr)
        return USER_ERROR
    at_fault = (
        sharding.ShardingError,
        DataError,
        checkpoint.CheckpointUnusableError,
        train.DivergedError,
    )
    try:
        return train.train(config, world)
    except at_fault as error:
        print(f"tpujob-trainer: {error}", file=sys.stderr)
        return USER_ERROR
    except checkpoint.CheckpointBadError as error:
        print(f"tpujob-trainer: {error}", file=sys.stderr)
        return ExitCode.CHECKPOINT_BAD
    except Exception as error:  # noqa: BLE001 - the exit code is our last word, whatever happened
        if distributed.is_peer_loss(world, error):
            print(f"tpujob-trainer: a peer is lost: {str(error)[:500]}", file=sys.stderr)
            return ExitCode.PEER_LOST
        traceback.print_exc()
        return USER_ERROR


if __name__ == "__main__":
    main()
