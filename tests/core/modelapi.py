"""The API server of a world in memory: it may refuse a write, or lose the answer to it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Coroutine, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from tests.core.making import Object, merge
from tpujob_operator.api.base import rfc3339
from tpujob_operator.core.kinds import EVENT, JOB, JOB_SET, TPU_TRAINING_JOB, Kind, Ref, kind_of
from tpujob_operator.core.plan import Tell
from tpujob_operator.core.snapshot import JobKey
from tpujob_operator.shell.client import ApiError
from tpujob_operator.shell.transport import OutdatedCoordinatorError, UnreachableError

if TYPE_CHECKING:
    from tests.core.world import World

T = TypeVar("T")


class CrashedError(Exception):
    """The operator has died."""


@dataclasses.dataclass(frozen=True)
class Fault:
    """What happens to one write of a pass."""

    code: int  # of the answer; 0: there is none
    is_done: bool = False  # the write happens, and its answer is lost
    is_blind: bool = False  # nothing can be read in this pass afterwards

    def error(self) -> ApiError:
        """What the operator sees of it."""
        return ApiError(self.code, f"fault {self.code}", about="model")


class ModelApi:
    """What one pass of the operator writes, and where it would remember the answers."""

    def __init__(self, world: World, crash_after: int | None, faults: Mapping[int, Fault]) -> None:
        self._world = world
        self._crash_after = crash_after
        self._faults = faults
        self._writes = 0
        self._is_blind = False

    # ---- the API server

    async def get(self, kind: Kind, _namespace: str | None, name: str) -> Object | None:
        """An object, as it is."""
        if self._is_blind:
            raise ApiError(0, "no answer")
        if kind is TPU_TRAINING_JOB:
            return self._world.obj
        table = self._world.objects.get(kind, self._world.support)
        return table.get(name)

    async def create(self, manifest: Mapping[str, Any]) -> Object:
        """Create an object; events are only noted down, and no writes that count."""
        if kind_of(manifest) is EVENT:
            self._world.notes.append(manifest["reason"])
            return dict(manifest)
        return self._write(lambda: self._create(manifest))

    async def patch(
        self, ref: Ref, body: Mapping[str, Any], subresource: str = "", *, version: str = ""
    ) -> Object:
        """Merge into the job's status or a child's spec."""
        if subresource == "status":
            return self._write(lambda: self._patch_status(body["status"], version))
        return self._write(lambda: self._patch(ref, body))

    async def delete(
        self, ref: Ref, _propagation: str = "Background", *, by_force: bool = False
    ) -> None:
        """Delete an object and, in the background, what it owns."""
        del by_force
        self._write(lambda: self._delete(ref))

    async def tell(self, _action: Tell) -> None:
        """Let the coordinator hear it."""
        try:
            self._write(dict)
        except ApiError as error:
            known = OutdatedCoordinatorError if error.is_not_found else UnreachableError
            raise known(error.message, error.code) from error

    def _write(self, deed: Callable[[], Object]) -> Object:
        if self._crash_after == self._writes:
            raise CrashedError
        fault = self._faults.get(self._writes)
        self._writes += 1
        if fault is None:
            return deed()
        self._is_blind |= fault.is_blind
        if fault.is_done:
            deed()
        raise fault.error()

    def _create(self, manifest: Mapping[str, Any]) -> Object:
        kind, name = kind_of(manifest), manifest["metadata"]["name"]
        table = self._world.objects.get(kind, self._world.support)
        if name in table:
            raise ApiError(409, "there is one already", reason="AlreadyExists", about=kind.plural)
        if kind in (JOB_SET, JOB):
            return self._world.create(kind, manifest)
        table[name] = dict(manifest)
        return table[name]

    def _patch_status(self, patch: Mapping[str, Any], version: str) -> Object:
        obj = self._world.obj
        if self._world.status_code:
            raise ApiError(self._world.status_code, "the status is refused", about="model")
        if version != obj["metadata"]["resourceVersion"]:
            raise ApiError(409, "the object has been modified", about="tputrainingjobs")
        metadata = {**obj["metadata"], "resourceVersion": str(int(version) + 1)}
        status = merge(obj.get("status", {}), patch)
        self._world.obj = {**obj, "metadata": metadata, "status": status}
        return self._world.obj

    def _patch(self, ref: Ref, body: Mapping[str, Any]) -> Object:
        if ref.kind is TPU_TRAINING_JOB:
            obj = self._world.obj
            assert obj["metadata"]["uid"] == ref.uid
            number = str(int(obj["metadata"]["resourceVersion"]) + 1)
            metadata = merge(obj["metadata"], body["metadata"]) | {"resourceVersion": number}
            self._world.obj = {**obj, "metadata": metadata}
            return self._world.obj
        found = self._world.objects[ref.kind][ref.name]
        assert found["metadata"]["uid"] == ref.uid
        found["spec"].update(body["spec"])
        return found

    def _delete(self, ref: Ref) -> Object:
        if ref.kind is TPU_TRAINING_JOB:
            self._world.deleted.append(f"{ref.kind.kind} {ref.name}")
            self._world.obj["metadata"]["deletionTimestamp"] = rfc3339(self._world.now_ms)
            return {}
        found = self._world.objects[ref.kind].get(ref.name)
        if found is None or found["metadata"]["uid"] != ref.uid:
            raise ApiError(404, "there is none", about=ref.kind.plural)
        self._world.deleted.append(f"{ref.kind.kind} {ref.name}")
        self._world.remove(ref.kind, ref.name, ref.uid)
        return {}

    # ---- the cache: a world is always seen as it is

    def job(self, _key: JobKey) -> Object:
        """The job."""
        return self._world.obj

    def put(self, _kind: Kind, _obj: Mapping[str, Any]) -> bool:
        """Nothing."""
        return True

    def remove(self, _kind: Kind, _obj: Mapping[str, Any]) -> None:
        """Nothing."""

    def doom(self, _uid: str) -> None:
        """Nothing."""

    def lose(self, _ref: Ref) -> None:
        """Nothing."""


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine that waits for nothing."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    raise AssertionError("it waits for something")
