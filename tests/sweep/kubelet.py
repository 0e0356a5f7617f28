"""Plays the kubelets of all pods: they are bound, run at once, and end when they are deleted."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import aiohttp

from localcluster.kubeapi import Object
from tests.operator.rig import NODE
from tests.sweep.census import Census
from tpujob_operator.core.kinds import POD, Kind

_MERGE = {"Content-Type": "application/merge-patch+json"}
#: Answers of an API server on a busy machine; 0: there is none.
_BUSY = frozenset({0, 429, 500, 503, 504})
_AGAIN_S = 0.5
_RUNNING = {
    "phase": "Running",
    "conditions": [{"type": kind, "status": "True"} for kind in ("PodScheduled", "Ready")],
}


class Kubelet:
    """Serves the pods that a census sees, in the census' thread."""

    def __init__(self, census: Census) -> None:
        self._census = census
        self._bound: set[str] = set()
        self._ended: set[str] = set()
        self._held: dict[str, Object] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        census.listeners.append(self._see)

    def hold(self, pod: Object) -> None:
        """Do not end this pod when it is deleted: its program takes its time."""
        self._held[pod["metadata"]["uid"]] = {}

    def release(self, pod: Object) -> None:
        """Undo ``hold``; a pod that was deleted meanwhile ends now."""
        uid = pod["metadata"]["uid"]
        seen = self._held.pop(uid, {})
        if seen:
            self._census.call(lambda: self._see("MODIFIED", POD, seen))

    def _see(self, event: str, kind: Kind, pod: Object) -> None:
        if kind is not POD or event == "DELETED":
            return
        uid = pod["metadata"]["uid"]
        if pod["metadata"].get("deletionTimestamp"):
            if uid in self._held:
                self._held[uid] = pod
            elif uid not in self._ended:
                self._ended.add(uid)
                self._spawn(self._end(pod))
        elif uid not in self._bound or _is_doubted(pod):
            self._bound.add(uid)
            self._spawn(self._run(pod))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run(self, pod: Object) -> None:
        path = POD.path(pod["metadata"]["namespace"], pod["metadata"]["name"])
        if not pod["spec"].get("nodeName"):
            target = {"apiVersion": "v1", "kind": "Node", "name": NODE}
            metadata = {"name": pod["metadata"]["name"]}
            binding = {"apiVersion": "v1", "kind": "Binding", "metadata": metadata}
            await self._send("POST", f"{path}/binding", {**binding, "target": target})
        await self._send("PATCH", f"{path}/status", {"status": _RUNNING}, _MERGE)

    async def _end(self, pod: Object) -> None:
        path = POD.path(pod["metadata"]["namespace"], pod["metadata"]["name"])
        options = {"gracePeriodSeconds": 0, "preconditions": {"uid": pod["metadata"]["uid"]}}
        await self._send("DELETE", path, options)

    async def _send(
        self, method: str, path: str, body: Object, headers: dict[str, str] | None = None
    ) -> None:
        while await self._code(method, path, body, headers) in _BUSY:  # noqa: ASYNC110 - asks again
            await asyncio.sleep(_AGAIN_S)

    async def _code(
        self, method: str, path: str, body: Object, headers: dict[str, str] | None
    ) -> int:
        """The API server's answer; one that is gone, or bound already, needs nothing more."""
        session = self._census.session
        try:
            async with session.request(method, path, json=body, headers=headers) as answer:
                await answer.read()
                return answer.status
        except aiohttp.ClientError:
            return 0


def _is_doubted(pod: Object) -> bool:
    """Whether the scheduler, which had looked at a pod before it was bound, has spoken after it."""
    status = pod.get("status", {})
    scheduled = [c["status"] for c in status.get("conditions", ()) if c["type"] == "PodScheduled"]
    return status.get("phase") == "Running" and scheduled == ["False"]
