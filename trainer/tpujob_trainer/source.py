"""Where a configuration comes from: a file or a variable, as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tpujob_agent.protocol import Env
from tpujob_trainer.fields import ConfigError


def decoded(where: str, env: Mapping[str, str]) -> Any:
    """The decoded JSON.

    Args:
        where: a path, ``env:NAME``, or empty for the usual variable.
        env: the environment.

    Raises:
        ConfigError: it is missing or no JSON.
    """
    name = Env.TRAINER_CONFIG if not where else where.removeprefix("env:")
    if where and not where.startswith("env:"):
        text, origin = _read(Path(where)), where
    elif name in env:
        text, origin = env[name], f"variable {name}"
    else:
        raise ConfigError([f"none given: pass --config FILE or set {name}"])
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise ConfigError([f"{origin} is no JSON: {error}"]) from error


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError([f"{path} cannot be read: {error.strerror}"]) from error
