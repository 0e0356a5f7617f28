"""Carries out plans: the status first, then the actions, then the events."""

from __future__ import annotations

import dataclasses
import hashlib
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from tpujob_operator.api.base import rfc3339
from tpujob_operator.core.kinds import (
    CHILDREN,
    JOB,
    JOB_SET,
    SECRET,
    SERVICE,
    TPU_TRAINING_JOB,
    Kind,
    Ref,
    kind_of,
)
from tpujob_operator.core.plan import Action, Apply, Delete, Note, Patch, Plan, Tell
from tpujob_operator.core.snapshot import Snapshot, Told
from tpujob_operator.shell.cache import Cache
from tpujob_operator.shell.client import ApiError, Client
from tpujob_operator.shell.transport import UnreachableError

_log = logging.getLogger(__name__)
_COMPONENT = "tpujob-operator"
_MESSAGE_LIMIT = 1024


@dataclasses.dataclass(frozen=True, slots=True)
class Result:
    """What came of a plan."""

    status_written: bool = False
    support_applied: bool = False  # Secret and Service
    words: tuple[str, ...] = ()  # what went wrong with an object, for people
    is_refused: bool = False  # and it will not help to ask again soon
    jobset_missing: bool = False
    error: ApiError | None = None  # worth another try soon
    told: Told | None = None  # what the coordinator has heard
    is_untold: bool = False  # the coordinator has not heard; worth another try soon


class Executor:
    """Writes to the API server, and puts the answers into the cache at once."""

    def __init__(
        self,
        client: Client,
        cache: Cache,
        instance: str,
        tell: Callable[[Ref, Told], Awaitable[None]],
    ) -> None:
        self._client = client
        self._cache = cache
        self._instance = instance
        self._tell = tell

    async def execute(self, snapshot: Snapshot, plan: Plan, now_ms: int) -> Result:
        """Carry out a plan as far as possible; a refused action ends it."""
        result = Result()
        if plan.status is not None:
            try:
                await self._write_status(snapshot, plan.status)
            except ApiError as error:
                return Result(error=error)
            result = dataclasses.replace(result, status_written=True)
        notes = list(plan.notes)
        for action in plan.actions:
            try:
                await self.act(action)
            except ApiError as error:
                if isinstance(action, Apply) and action.is_optional:
                    _log.warning("%s is not made: %s", action.what, error.message)
                    continue
                result = _explain(result, action, error)
                break
            except UnreachableError as error:
                _log.info("the coordinator of %s is not told: %s", snapshot.key, error)
                result = dataclasses.replace(result, is_untold=True)
                break
            if isinstance(action, Tell):
                result = dataclasses.replace(result, told=action.told)
                notes += action.notes
            if isinstance(action, Apply) and kind_of(action.manifest) in (SECRET, SERVICE):
                result = dataclasses.replace(result, support_applied=True)
        for note in notes:
            await self._announce(snapshot, note, now_ms)
        return result

    async def _write_status(self, snapshot: Snapshot, status: Mapping[str, Any]) -> None:
        body = {"status": difference(snapshot.status, status)}
        answer = await self._client.patch(snapshot.ref, body, "status")
        self._cache.put(TPU_TRAINING_JOB, answer)

    async def act(self, action: Action) -> None:
        """Carry out one action.

        Raises:
            ApiError: it was refused, or the API server does not answer.
            UnreachableError: the coordinator does not answer.
        """
        match action:
            case Apply(manifest, _):
                kind = kind_of(manifest)
                # A JobSet or Job of the same name that is not ours must not be taken over.
                answer = await self._client.apply(manifest, force=kind not in (JOB_SET, JOB))
                self._remember(kind, answer)
                _log.info("applied %s", action.what)
            case Patch(ref, body):
                self._remember(ref.kind, await self._client.patch(ref, body))
                _log.info("patched %s %s/%s", ref.kind.kind, ref.namespace, ref.name)
            case Delete(ref, why, _):
                await self._delete(action)
                _log.info("deleted %s %s/%s: %s", ref.kind.kind, ref.namespace, ref.name, why)
            case Tell(ref, told, _):
                await self._tell(ref, told)

    async def _delete(self, action: Delete) -> None:
        try:
            await self._client.delete(action.ref, by_force=action.by_force)
        except ApiError as error:
            # Gone already, or another incarnation has its name: either way ours is gone.
            if not (error.is_not_found or error.is_conflict):
                raise
        self._cache.doom(action.ref.uid)

    def _remember(self, kind: Kind, answer: Mapping[str, Any]) -> None:
        if kind in CHILDREN:
            self._cache.put(kind, answer)

    async def _announce(self, snapshot: Snapshot, note: Note, now_ms: int) -> None:
        try:
            await self._client.create(_event(snapshot, note, now_ms, self._instance))
        except ApiError as error:
            # An event is a courtesy: its loss must not hold up the job.
            if not error.is_conflict:
                _log.warning("no event %s for %s: %s", note.reason, snapshot.key, error.message)


def _explain(result: Result, action: Action, error: ApiError) -> Result:
    if not isinstance(action, Apply):
        return dataclasses.replace(result, error=error)
    # No such path, rather than no such object: a Status would name the kind it is about.
    if error.is_not_found and kind_of(action.manifest) is JOB_SET and not error.about:
        return dataclasses.replace(result, jobset_missing=True)
    return dataclasses.replace(
        result,
        words=(f"{action.what} cannot be made: {error.message}",),
        is_refused=error.is_refused or error.is_conflict,
        error=error,
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


def _event(snapshot: Snapshot, note: Note, now_ms: int, instance: str) -> dict[str, Any]:
    at = rfc3339(now_ms)
    digest = hashlib.sha256(f"{note.reason}\n{note.message}".encode()).hexdigest()[:8]
    meta = snapshot.obj["metadata"]
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {
            # equal for equal events of the same moment, so a retry makes no second one
            "name": f"{snapshot.key.name}.{now_ms:x}.{digest}",
            "namespace": snapshot.key.namespace,
        },
        "involvedObject": {
            "apiVersion": TPU_TRAINING_JOB.api_version,
            "kind": TPU_TRAINING_JOB.kind,
            "namespace": snapshot.key.namespace,
            "name": snapshot.key.name,
            "uid": meta["uid"],
            "resourceVersion": meta["resourceVersion"],
        },
        "reason": note.reason,
        "message": note.message[:_MESSAGE_LIMIT],
        "type": note.type,
        "firstTimestamp": at[:19] + "Z",
        "lastTimestamp": at[:19] + "Z",
        "count": 1,
        "source": {"component": _COMPONENT, "host": instance},
        "reportingComponent": _COMPONENT,
        "reportingInstance": instance,
    }
