"""Writes a job's status over the version that was decided on, and over no other."""

from __future__ import annotations

import dataclasses
import enum
import logging
from collections.abc import Mapping
from typing import Any, Protocol

from tpujob_operator.core import partialstatus
from tpujob_operator.core.kinds import TPU_TRAINING_JOB, Kind, Ref
from tpujob_operator.core.snapshot import JobKey, Snapshot
from tpujob_operator.shell.client import ApiError

_log = logging.getLogger(__name__)
_TOO_MANY_REQUESTS = 429

Object = Mapping[str, Any]


class Api(Protocol):
    """What is needed of the API server; see ``client.Client``."""

    async def get(self, kind: Kind, namespace: str | None, name: str) -> dict[str, Any] | None:
        """An object, or nothing if it does not exist."""

    async def create(self, manifest: Mapping[str, Any]) -> dict[str, Any]:
        """Create an object."""

    async def patch(
        self, ref: Ref, body: Mapping[str, Any], subresource: str = "", *, version: str = ""
    ) -> dict[str, Any]:
        """Merge into one incarnation, and version, of an object."""

    async def delete(
        self, ref: Ref, propagation: str = "Background", *, by_force: bool = False
    ) -> None:
        """Delete one incarnation of an object."""


class Store(Protocol):
    """Where answers go at once, before a watch brings them; see ``cache.Cache``."""

    def job(self, key: JobKey) -> Object | None:
        """The custom resource as last seen."""

    def put(self, kind: Kind, obj: Object) -> bool:
        """Take in an object."""

    def remove(self, kind: Kind, obj: Object) -> None:
        """Take in that an object is gone."""

    def doom(self, uid: str) -> None:
        """Remember that an object's deletion was asked for."""

    def lose(self, ref: Ref) -> None:
        """Take in that an incarnation of an object is not there any more."""


class Outcome(enum.Enum):
    """What became of a status."""

    UNNEEDED = enum.auto()  # there was none to write
    WRITTEN = enum.auto()
    REDUCED = enum.auto()  # refused, but for attempt and conditions
    REFUSED = enum.auto()  # certainly not written
    OUTDATED = enum.auto()  # the job is not as it was decided on: decide again
    UNKNOWN = enum.auto()  # written or not: the job must be read before anything is decided


@dataclasses.dataclass(frozen=True, slots=True)
class StatusWrite:
    """What came of an attempt to write a status."""

    outcome: Outcome = Outcome.UNNEEDED
    error: ApiError | None = None
    obj: Object | None = None  # the job as the API server has it after the write


class StatusWriter:
    """Writes statuses, and reads jobs whose status is in doubt."""

    def __init__(self, api: Api, store: Store) -> None:
        self._api = api
        self._store = store

    async def write(
        self, snapshot: Snapshot, status: Mapping[str, Any], now_ms: int
    ) -> StatusWrite:
        """Write a status over the one it was decided on, or find out why not."""
        try:
            answer = await self._patch(snapshot.ref, snapshot.obj, status)
        except ApiError as error:
            if not error.is_refused:
                return await self._look(snapshot, error)
            reduced = partialstatus.reduced(snapshot.status, status, error.message, now_ms)
            return await self._reduce(snapshot, reduced, error)
        return StatusWrite(Outcome.WRITTEN, obj=answer)

    async def report_failure(self, obj: Object, error: str, now_ms: int) -> None:
        """Say in a job's conditions that the operator cannot handle it.

        Raises:
            ApiError: that cannot be written either.
        """
        meta = obj["metadata"]
        ref = Ref(TPU_TRAINING_JOB, meta["namespace"], meta["name"], meta["uid"])
        old = obj.get("status") or {}
        status = partialstatus.failing(old, error, now_ms)
        if status != old:
            await self._patch(ref, obj, status)

    async def read(self, key: JobKey) -> Object | None:
        """The job as the API server has it now; the cache takes it in.

        Raises:
            ApiError: the API server does not answer.
        """
        found = await self._api.get(TPU_TRAINING_JOB, key.namespace, key.name)
        known = self._store.job(key)
        if found is not None:
            self._store.put(TPU_TRAINING_JOB, found)
        elif known is not None:
            _log.info("%s is gone", key)
            self._store.remove(TPU_TRAINING_JOB, known)
        return found

    async def _patch(self, ref: Ref, obj: Object, status: Mapping[str, Any]) -> Object:
        body = {"status": difference(obj.get("status") or {}, status)}
        version = str(obj["metadata"].get("resourceVersion", ""))
        answer = await self._api.patch(ref, body, "status", version=version)
        self._store.put(TPU_TRAINING_JOB, answer)
        return answer

    async def _reduce(
        self, snapshot: Snapshot, status: Mapping[str, Any], refusal: ApiError
    ) -> StatusWrite:
        if not difference(snapshot.status, status):
            return StatusWrite(Outcome.REDUCED, refusal, snapshot.obj)
        try:
            answer = await self._patch(snapshot.ref, snapshot.obj, status)
        except ApiError as error:
            return await self._look(snapshot, error)
        return StatusWrite(Outcome.REDUCED, refusal, answer)

    async def _look(self, snapshot: Snapshot, error: ApiError) -> StatusWrite:
        """Read back a job whose status was not taken, or may have been: the answer was lost."""
        if error.is_refused or error.code == _TOO_MANY_REQUESTS:
            return StatusWrite(Outcome.REFUSED, error)
        try:
            found = await self.read(snapshot.key)
        except ApiError:
            return StatusWrite(Outcome.UNKNOWN, error)
        if found is None or not is_same_version(found, snapshot.obj):
            return StatusWrite(Outcome.OUTDATED, error)
        return StatusWrite(Outcome.REFUSED, error)


def is_same_version(one: Object, other: Object) -> bool:
    """Whether two readings of an object show the same incarnation and version."""
    return all(
        one["metadata"].get(x) == other["metadata"].get(x) for x in ("uid", "resourceVersion")
    )


def difference(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """The merge patch that turns ``old`` into ``new``."""
    patch: dict[str, Any] = {name: None for name in old if name not in new}
    for name, value in new.items():
        before = old.get(name)
        if isinstance(value, Mapping) and isinstance(before, Mapping):
            nested = difference(before, value)
            if nested:
                patch[name] = nested
        elif value != before:
            patch[name] = value
    return patch
