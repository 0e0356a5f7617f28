"""Which world may commit to a checkpoint directory: the last one that has begun there.

Behind a broken network a world can train beside its replacement. Neither hears of the other,
but both reach the storage: each world puts itself down there before it restores, and asks
before it commits whether another one has done so since. This needs no clock, and no order
but the storage's own: attempts and generations are counted anew when those who count are lost.
"""

from __future__ import annotations

import dataclasses
import json
import os
import secrets
import socket
import time
from collections.abc import Mapping

from etils import epath

from tpujob_agent.protocol import Env
from tpujob_checkpoint import storage

FILE = "world.json"


class SupersededError(RuntimeError):
    """A later world of the same job has begun on the directory (exit code 75)."""


class SharedDirectoryError(RuntimeError):
    """A later job has begun on the directory: a fault of who gave it to both."""


@dataclasses.dataclass(frozen=True, slots=True)
class Claim:
    """What a world puts down.

    Attributes:
        world: of this world alone.
        who: the same for people.
        jobs: ids of all jobs that have used the directory, by when they first did.
    """

    world: str
    who: str
    jobs: tuple[str, ...] = ()


def following(found: Claim | None, world: str, who: str, job: str) -> Claim:
    """The claim of a world that begins, after the one that lies there.

    Args:
        found: what lies there.
        world: see ``Claim``.
        who: see ``Claim``.
        job: the id of its job; empty without the operator.

    Raises:
        SharedDirectoryError: another job has begun there since this one did. The two would
            take the directory from each other for ever.
    """
    jobs = found.jobs if found else ()
    if found and job in jobs[:-1]:
        raise SharedDirectoryError(found.who)
    return Claim(world, who, jobs if not job or job in jobs else (*jobs, job))


def require_newest(mine: Claim, found: Claim | None) -> None:
    """Pass if no other world has begun since.

    Args:
        mine: this world's.
        found: what lies there. If nothing does, somebody has cleared the directory.

    Raises:
        SupersededError: one of the same job has.
        SharedDirectoryError: one of another job has.
    """
    if found and found.world != mine.world:
        is_ours = found.jobs[-1:] == mine.jobs[-1:]
        raise (SupersededError if is_ours else SharedDirectoryError)(found.who)


class Claims:
    """The claim of this process's world on one directory; for the leader."""

    def __init__(self, directory: epath.Path, env: Mapping[str, str] = os.environ) -> None:
        self._directory, self._env = directory, env
        self._world = secrets.token_hex(8)
        self._mine: Claim | None = None

    def take(self) -> None:
        """Put this world down: from now on no earlier one commits.

        Raises:
            SharedDirectoryError: the directory is another job's by now; says what to do.
        """
        try:
            mine = following(self._read(), self._world, _who(self._env), self._env.get(Env.UID, ""))
        except SharedDirectoryError as error:
            raise self._in_words(error) from None
        storage.write_whole(self._directory / FILE, json.dumps(dataclasses.asdict(mine)).encode())
        self._mine = mine

    def require(self) -> None:
        """Pass if this world may commit now.

        Raises:
            SupersededError: it is an old one.
            SharedDirectoryError: the directory is another job's by now; says what to do.
        """
        try:
            if self._mine:
                require_newest(self._mine, self._read())
        except (SupersededError, SharedDirectoryError) as error:
            raise self._in_words(error) from None

    def _in_words(self, error: RuntimeError) -> RuntimeError:
        if isinstance(error, SupersededError):
            return SupersededError(
                f"a newer world has begun on checkpoint directory {self._directory} ({error}): "
                "this one saves nothing any more"
            )
        return SharedDirectoryError(
            f"checkpoint directory {self._directory} has been taken over by another job "
            f"({error}): give each job a directory of its own, or, when that one has ended, "
            f"remove {FILE} there"
        )

    def _read(self) -> Claim | None:
        try:
            values = json.loads((self._directory / FILE).read_text())
            return Claim(values["world"], values["who"], tuple(values["jobs"]))
        except (FileNotFoundError, json.JSONDecodeError, UnicodeDecodeError, TypeError, KeyError):
            return None


def _who(env: Mapping[str, str]) -> str:
    began = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    if not env.get(Env.JOB):
        return f"process {os.getpid()} on {socket.gethostname()}, begun {began}"
    place = f"attempt {env.get(Env.ATTEMPT)}, generation {env.get(Env.GENERATION)}"
    return f"{env.get(Env.NAMESPACE)}/{env[Env.JOB]}, {place}, begun {began}"
