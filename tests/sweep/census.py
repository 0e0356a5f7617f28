"""What there is in the cluster, and how often each object was made and deleted: by watches."""

from __future__ import annotations

import asyncio
import collections
import dataclasses
import json
import threading
from collections.abc import Callable
from typing import Self

import aiohttp

from localcluster.kubeapi import Object
from tests.eventloops import connections_ended, others_ended
from tests.faultproxy.names import Names
from tests.faultproxy.watches import lines
from tests.sweep.access import Access
from tpujob_operator.core.kinds import (
    JOB,
    JOB_SET,
    POD,
    SECRET,
    SERVICE,
    TPU_TRAINING_JOB,
    Kind,
)

KINDS = (TPU_TRAINING_JOB, JOB_SET, JOB, POD, SECRET, SERVICE)
Listener = Callable[[str, Kind, Object], None]


@dataclasses.dataclass(frozen=True, slots=True)
class Birth:
    """An object that was made."""

    label: str
    version: int
    owners: tuple[str, ...]  # their UIDs


class Population:
    """The objects of one namespace, by resource and name."""

    def __init__(self) -> None:
        self.names = Names()
        self.objects: dict[tuple[str, str], Object] = {}
        self._births: dict[str, Birth] = {}  # by UID
        self._ends: dict[str, int] = {}  # versions
        self.taken = 0  # events so far

    def take(self, event: str, kind: Kind, obj: Object) -> None:
        """Take in a watch event."""
        self.taken += 1
        self.names.learn(obj)
        name = obj["metadata"]["name"]
        meta = obj["metadata"]
        if event == "ADDED":
            label = f"{kind.plural}/{self.names.of(kind.plural, name)}"
            owners = tuple(owner["uid"] for owner in meta.get("ownerReferences") or ())
            # The Job controller replaces a lost pod after 10 s, if nobody deletes the Job before.
            known = {(one.label, one.owners) for one in self._births.values()}
            if kind is not POD or (label, owners) not in known:
                self._births[meta["uid"]] = Birth(label, int(meta["resourceVersion"]), owners)
        if event == "DELETED":
            self._ends[meta["uid"]] = int(meta["resourceVersion"])
        if event == "DELETED":
            self.objects.pop((kind.plural, name), None)
        else:
            self.objects[kind.plural, name] = obj

    @property
    def made(self) -> collections.Counter[str]:
        """How often each object was made, by kind and canonical name."""
        births = list(self._births.values())
        return collections.Counter(one.label for one in births if not self._is_late(one))

    @property
    def deleted(self) -> collections.Counter[str]:
        """How often each object was deleted."""
        births = [self._births[uid] for uid in list(self._ends) if uid in self._births]
        return collections.Counter(one.label for one in births if not self._is_late(one))

    def _is_late(self, birth: Birth) -> bool:
        """Whether its owner was gone by then, as JobSet's caches may not know yet; it goes, too."""
        return any(
            self._ends.get(owner, birth.version) < birth.version
            or (owner in self._births and self._is_late(self._births[owner]))
            for owner in birth.owners
        )

    def all(self, kind: Kind) -> list[Object]:
        """All objects of a kind."""
        found = list(self.objects.items())
        return [obj for (plural, _), obj in found if plural == kind.plural]

    def find(self, kind: Kind, name: str) -> Object | None:
        """An object, or nothing."""
        return self.objects.get((kind.plural, name))


class Census:
    """Watches all namespaces straight at the API server, in a thread of its own."""

    def __init__(self, access: Access) -> None:
        self._access = access
        self._namespaces: dict[str, Population] = {}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._is_ready = threading.Event()
        self._stop = asyncio.Event()
        self.listeners: list[Listener] = []
        self.session: aiohttp.ClientSession

    def __enter__(self) -> Self:
        """Start to watch."""
        self._thread.start()
        if not self._is_ready.wait(60):
            raise RuntimeError("the census does not reach the API server")
        return self

    def __exit__(self, *_: object) -> None:
        """End all watches."""
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(60)

    def population(self, namespace: str) -> Population:
        """The objects of a namespace, to which attention is paid from now on."""
        return self._namespaces.setdefault(namespace, Population())

    def forget(self, namespace: str) -> None:
        """A namespace is of no interest any more; what still comes from it is left out."""
        self._namespaces.pop(namespace, None)

    def call(self, work: Callable[[], object]) -> None:
        """Do something in the thread of the watches."""
        self._loop.call_soon_threadsafe(work)

    def _run(self) -> None:
        try:
            self._loop.run_until_complete(self._life())
        finally:
            self._loop.close()

    async def _life(self) -> None:
        try:
            await self._watch_all()
        finally:
            await connections_ended()

    async def _watch_all(self) -> None:
        async with self._access.session() as self.session:
            starts = [(kind, await self._version(kind)) for kind in KINDS]
            tasks = [asyncio.create_task(self._watch(kind, since)) for kind, since in starts]
            tasks.append(asyncio.create_task(self._stopped()))
            self._is_ready.set()
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            await others_ended()  # those of listeners, too
            for task in done:
                task.result()

    async def _stopped(self) -> None:
        await self._stop.wait()

    async def _version(self, kind: Kind) -> str:
        async with self.session.get(kind.path(None), params={"limit": "1"}) as answer:
            return str((await answer.json())["metadata"]["resourceVersion"])

    async def _watch(self, kind: Kind, version: str) -> None:
        while True:
            query = {"watch": "true", "resourceVersion": version}
            async with self.session.get(kind.path(None), params=query) as answer:
                answer.raise_for_status()
                async for line in lines(answer):
                    event = json.loads(line)
                    version = event["object"]["metadata"]["resourceVersion"]
                    self._take(kind, event)

    def _take(self, kind: Kind, event: Object) -> None:
        obj = event["object"]
        population = self._namespaces.get(obj["metadata"]["namespace"])
        if population is not None:
            population.take(event["type"], kind, obj)
        for listener in self.listeners:
            listener(event["type"], kind, obj)
