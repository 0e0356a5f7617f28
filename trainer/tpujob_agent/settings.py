"""What the agent is told by the pod's environment."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Mapping
from pathlib import Path

from tpujob_agent.protocol import Env, Hello
from tpujob_agent.watchdog import HangLimits

DEFAULT_RUN_DIR = "/tpujob/run"
DEFAULT_GRACE_S = 30


class StartError(Exception):
    """The agent cannot start; the message says what to do."""


@dataclasses.dataclass(frozen=True, slots=True)
class Settings:
    """The agent's configuration, from ``Env``."""

    host: str  # of the coordinator: a name, resolved anew at every attempt
    port: int
    token: str
    slice: int
    host_index: int
    pod: str
    node: str
    ip: str
    attempt: int
    grace_s: int
    run_dir: Path
    preload: tuple[str, ...]
    progress_pattern: re.Pattern[bytes] | None
    hang: HangLimits

    @classmethod
    def from_env(cls, env: Mapping[str, str]) -> Settings:
        """Read the settings.

        Raises:
            StartError: a variable is missing or malformed.
        """
        host, port = _address(env)
        return cls(
            host=host,
            port=port,
            token=_needed(env, Env.TOKEN),
            slice=_integer(env, Env.SLICE),
            host_index=_integer(env, Env.HOST),
            pod=env.get(Env.POD_NAME, ""),
            node=env.get(Env.NODE_NAME, ""),
            ip=_needed(env, Env.POD_IP),
            attempt=_integer(env, Env.ATTEMPT, "0"),
            grace_s=_integer(env, Env.GRACE_S, str(DEFAULT_GRACE_S)),
            run_dir=Path(env.get(Env.RUN_DIR) or DEFAULT_RUN_DIR),
            preload=tuple(
                name.strip() for name in env.get(Env.PRELOAD, "").split(",") if name.strip()
            ),
            progress_pattern=_pattern(env),
            hang=_hang(env),
        )

    def hello(self, incarnation: str, now_ms: int, nonce: str, protocol: int) -> Hello:
        """What an agent answers a challenge with; its incarnation lasts as long as its process."""
        return Hello(
            slice=self.slice,
            host=self.host_index,
            pod=self.pod,
            node=self.node,
            ip=self.ip,
            incarnation=incarnation,
            sent_at_ms=now_ms,
            attempt=self.attempt,
            protocol=protocol,
            nonce=nonce,
        )


def _needed(env: Mapping[str, str], name: str, default: str = "") -> str:
    value = env.get(name) or default
    if not value:
        raise StartError(f"the variable {name} is missing: the operator sets it on worker pods")
    return value


def _integer(env: Mapping[str, str], name: str, default: str = "") -> int:
    value = _needed(env, name, default)
    if not value.isdecimal():
        raise StartError(f"the variable {name} must be a number from 0, not {value!r}")
    return int(value)


def _address(env: Mapping[str, str]) -> tuple[str, int]:
    host, _, port = _needed(env, Env.COORDINATOR).rpartition(":")
    if not host or not port.isdecimal():
        raise StartError(f"the variable {Env.COORDINATOR} must be host:port")
    return host.strip("[]"), int(port)


def _hang(env: Mapping[str, str]) -> HangLimits:
    usual = HangLimits()
    return HangLimits(
        _positive(env, Env.HANG_MIN_S, usual.min_s), _positive(env, Env.HANG_FACTOR, usual.factor)
    )


def _positive(env: Mapping[str, str], name: str, default: float) -> float:
    text = env.get(name) or str(default)
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < math.inf:
        raise StartError(f"the variable {name} must be a number above 0, not {text!r}")
    return value


def _pattern(env: Mapping[str, str]) -> re.Pattern[bytes] | None:
    text = env.get(Env.PROGRESS_PATTERN, "")
    if not text:
        return None
    try:
        pattern = re.compile(text.encode())
    except re.error as error:
        raise StartError(
            f"{Env.PROGRESS_PATTERN} is no regular expression ({error}): {text}"
        ) from error
    if "step" not in pattern.groupindex:
        raise StartError(f"{Env.PROGRESS_PATTERN} needs a group named step: (?P<step>[0-9]+)")
    return pattern
