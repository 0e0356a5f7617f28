"""Carries out plans: the status first, then each action, then the events of what was done."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from tpujob_operator.core.kinds import (
    CHILDREN,
    JOB_SET,
    SECRET,
    SERVICE,
    TPU_TRAINING_JOB,
    Kind,
    kind_of,
)
from tpujob_operator.core.manifests.names import ATTEMPT_LABEL
from tpujob_operator.core.ownership import controller_of
from tpujob_operator.core.plan import Action, Create, Delete, Note, Patch, Plan, Tell
from tpujob_operator.core.snapshot import JobKey, Snapshot, Told
from tpujob_operator.shell.client import ApiError
from tpujob_operator.shell.events import event
from tpujob_operator.shell.statuswriter import (
    Api,
    Object,
    Outcome,
    StatusWrite,
    StatusWriter,
    Store,
)
from tpujob_operator.shell.transport import OutdatedCoordinatorError, UnreachableError

_log = logging.getLogger(__name__)


class NotOursError(ApiError):
    """The name of an object is taken by one that must be left alone."""

    def __init__(self, message: str) -> None:
        super().__init__(409, message)

    @property
    def is_refused(self) -> bool:
        """It will not help to ask again until somebody removes it."""
        return True


class OutdatedError(Exception):
    """The job is not any more as it was decided on."""


@dataclasses.dataclass(frozen=True, slots=True)
class ActionResult:
    """What came of one action."""

    action: Action
    error: ApiError | UnreachableError | None = None

    @property
    def subject(self) -> str:
        """Kind and name of what it is about."""
        match self.action:
            case Create():
                return self.action.what
            case Patch(ref) | Delete(ref) | Tell(ref):
                return f"{ref.kind.kind} {ref.name}"

    @property
    def words(self) -> str:
        """What went wrong, for people."""
        done = {Create: "created", Patch: "changed", Delete: "deleted", Tell: "told"}
        return f"{self.subject} cannot be {done[type(self.action)]}: {self.error}"

    @property
    def failure(self) -> ApiError | None:
        """Why the API server has not taken it, if that matters."""
        is_optional = isinstance(self.action, Create) and self.action.is_optional
        return self.error if isinstance(self.error, ApiError) and not is_optional else None

    @property
    def is_jobset_unknown(self) -> bool:
        """No such path, rather than no such object: a Status would name the kind it is about."""
        is_jobset = isinstance(self.action, Create) and kind_of(self.action.manifest) is JOB_SET
        return is_jobset and _is_no_such_path(self.error)


@dataclasses.dataclass(frozen=True, slots=True)
class Result:
    """What came of a plan."""

    status: StatusWrite = dataclasses.field(default_factory=StatusWrite)
    actions: tuple[ActionResult, ...] = ()  # those that were tried
    is_outdated: bool = False  # the job has changed since the decision

    @property
    def is_committed(self) -> bool:
        """Whether the decision stands: what is remembered of it is right."""
        return self.status.outcome in (Outcome.UNNEEDED, Outcome.WRITTEN, Outcome.REDUCED)

    @property
    def is_refused(self) -> bool:
        """Whether something failed that will fail again until somebody changes something."""
        failures = (item.failure for item in self.actions)
        return any(failure is not None and failure.is_refused for failure in failures)

    @property
    def is_jobset_missing(self) -> bool:
        """Whether the API server does not know JobSets."""
        return any(item.is_jobset_unknown for item in self.actions)

    @property
    def error(self) -> ApiError | None:
        """The first thing that failed and is worth another try; nothing if all went well."""
        if self.status.error is not None:
            return self.status.error
        return next((item.failure for item in self.actions if item.failure), None)

    @property
    def is_support_applied(self) -> bool:
        """Whether Secret and Service are known to be there."""
        tried = [item for item in self.actions if _is_support(item.action)]
        return bool(tried) and all(item.error is None for item in tried)

    @property
    def told(self) -> Told | None:
        """What the coordinator has heard, or will never understand."""
        heard = (
            item.action.told
            for item in self.actions
            if isinstance(item.action, Tell)
            and (item.error is None or isinstance(item.error, OutdatedCoordinatorError))
        )
        return next(heard, None)

    @property
    def is_untold(self) -> bool:
        """Whether the coordinator has not heard and may yet."""
        return self.told is None and any(isinstance(item.action, Tell) for item in self.actions)

    @property
    def notes(self) -> tuple[Note, ...]:
        """What is to be said about the actions that were carried out."""
        return tuple(
            note for item in self.actions if item.error is None for note in item.action.on_success
        )


class Executor:
    """Writes to the API server, and puts the answers into the cache at once."""

    def __init__(
        self,
        api: Api,
        store: Store,
        instance: str,
        tell: Callable[[Tell], Awaitable[None]],
    ) -> None:
        self._api = api
        self._store = store
        self._instance = instance
        self._tell = tell
        self.statuses = StatusWriter(api, store)

    async def execute(self, snapshot: Snapshot, plan: Plan, now_ms: int) -> Result:
        """Carry out a plan as far as possible; an action that fails stops only what requires it."""
        result = Result()
        if plan.status is not None:
            status = await self.statuses.write(snapshot, plan.status, now_ms)
            result = dataclasses.replace(result, status=status)
        if result.status.outcome in (Outcome.OUTDATED, Outcome.UNKNOWN):
            return result
        result = await self._act_on(snapshot, plan, result)
        has_status = result.status.outcome in (Outcome.UNNEEDED, Outcome.WRITTEN)
        for note in (*(plan.notes if has_status else ()), *result.notes):
            await self._announce(snapshot, note, now_ms)
        return result

    async def _act_on(self, snapshot: Snapshot, plan: Plan, result: Result) -> Result:
        done: list[ActionResult] = []
        failed: list[Action] = []
        for action in plan.actions:
            if not _may_be_tried(action, failed, is_committed=result.is_committed):
                failed.append(action)
                continue
            try:
                done.append(await self._try(snapshot.key, action))
            except OutdatedError:
                return dataclasses.replace(result, actions=tuple(done), is_outdated=True)
            if done[-1].error is not None:
                failed.append(action)
        return dataclasses.replace(result, actions=tuple(done))

    async def _try(self, key: JobKey, action: Action) -> ActionResult:
        try:
            await self.act(key, action)
        except (ApiError, UnreachableError) as error:
            result = ActionResult(action, error)
            _log.warning("%s: %s", key, result.words)
            return result
        return ActionResult(action)

    async def act(self, key: JobKey, action: Action) -> None:
        """Carry out one action for the job ``key``.

        Raises:
            ApiError: it was refused, or the API server does not answer.
            OutdatedError: the job does not want this any more.
            UnreachableError: the coordinator does not answer.
        """
        match action:
            case Create():
                await self._create(key, action)
            case Patch(ref, body):
                self._remember(ref.kind, await self._api.patch(ref, body))
                _log.info("%s: patched %s %s", key, ref.kind.kind, ref.name)
            case Delete(ref, why):
                await self._delete(action)
                _log.info("%s: deleted %s %s: %s", key, ref.kind.kind, ref.name, why)
            case Tell():
                await self._tell(action)

    async def _create(self, key: JobKey, action: Create) -> None:
        manifest = action.manifest
        if kind_of(manifest) is JOB_SET:
            await self._check_attempt(key, manifest)
        made: Object
        try:
            made = await self._api.create(manifest)
            _log.info("%s: created %s", key, action.what)
        except ApiError as error:
            if not error.is_namesake:
                raise
            found = await self._find_own(manifest)
            if found is None:
                return
            made = found
        self._remember(kind_of(manifest), made)

    async def _check_attempt(self, key: JobKey, manifest: Object) -> None:
        """No JobSet is made but for the attempt that the job's stored status names.

        Another operator may have acted since the decision, while this one was held up.
        """
        meta = manifest["metadata"]
        job = await self.statuses.read(key)
        is_wanted = (
            job is not None
            and job["metadata"]["uid"] == _owner_uid(manifest)
            and not job["metadata"].get("deletionTimestamp")
            and str((job.get("status") or {}).get("attempt")) == meta["labels"][ATTEMPT_LABEL]
        )
        if not is_wanted:
            _log.info("%s: the job does not want JobSet %s any more", key, meta["name"])
            raise OutdatedError

    async def _find_own(self, manifest: Object) -> Object | None:
        """The object that has the name of one to be made; nothing if it may not be read.

        Raises:
            NotOursError: it does not belong to the job, or somebody has changed it.
        """
        kind, meta = kind_of(manifest), manifest["metadata"]
        if kind is SECRET:  # which the operator has no right to read: its name has the job's UID
            return None
        found = await self._api.get(kind, meta["namespace"], meta["name"])
        if found is None or found["metadata"].get("deletionTimestamp"):
            raise ApiError(0, f"the earlier {kind.kind} {meta['name']} is still being deleted")
        if _owner_uid(found) != _owner_uid(manifest):
            raise NotOursError(
                f"one of this name is there already and does not belong to the job. Delete "
                f"{kind.plural}/{meta['name']}, or give the job another name"
            )
        if kind is SERVICE and found["spec"].get("selector") != manifest["spec"]["selector"]:
            raise NotOursError(
                f"somebody has changed it. Delete {kind.plural}/{meta['name']}: the operator "
                "creates it again"
            )
        return found

    async def _delete(self, action: Delete) -> None:
        try:
            await self._api.delete(action.ref, by_force=action.by_force)
        except ApiError as error:
            # A conflict proves nothing: an admission webhook may say it too. If another
            # incarnation has the name by now, the watch tells.
            if not error.is_not_found:
                raise
            self._store.lose(action.ref)
            return
        self._store.doom(action.ref.uid)

    def _remember(self, kind: Kind, answer: Mapping[str, Any]) -> None:
        if kind in CHILDREN or kind is TPU_TRAINING_JOB:
            self._store.put(kind, answer)

    async def _announce(self, snapshot: Snapshot, note: Note, now_ms: int) -> None:
        try:
            await self._api.create(event(snapshot.obj, note, now_ms, self._instance))
        except ApiError as error:
            # An event is a courtesy: its loss must not hold up the job.
            if not error.is_conflict:
                _log.warning("%s: no event %s: %s", snapshot.key, note.reason, error.message)


def _may_be_tried(action: Action, failed: list[Action], *, is_committed: bool) -> bool:
    if action.needs_status and not is_committed:
        return False
    required = action.requires if isinstance(action, Create) else ()
    return not any(one is other for one in required for other in failed)


def _is_support(action: Action) -> bool:
    return isinstance(action, Create) and kind_of(action.manifest) in (SECRET, SERVICE)


def _owner_uid(obj: Object) -> str:
    return str((controller_of(obj["metadata"]) or {}).get("uid", ""))


def _is_no_such_path(error: Exception | None) -> bool:
    return isinstance(error, ApiError) and error.is_not_found and not error.about
