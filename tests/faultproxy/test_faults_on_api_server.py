"""Each fault does to requests and watches what it says, in front of a real API server."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from kubernetes.aio.client import Configuration

from localcluster.cluster import Cluster
from localcluster.kubeapi import Object
from tests.faultproxy.faults import (
    BlackHole,
    Cut,
    Delay,
    EventFault,
    EventMatch,
    Fault,
    LoseAnswer,
    Match,
    RandomRule,
    Refuse,
    Strike,
)
from tests.faultproxy.proxy import FaultProxy
from tests.waiting import PATIENCE_S, wait_until
from tpujob_operator.core.kinds import SECRET, Ref
from tpujob_operator.shell.client import ApiError, Client

pytestmark = pytest.mark.control_plane


@pytest.fixture
def proxy(control_plane: Cluster, tmp_path: Path) -> Iterator[FaultProxy]:
    """A proxy in front of the API server."""
    with FaultProxy(control_plane.kubeconfig, tmp_path) as running:
        yield running


@pytest.fixture
async def client(proxy: FaultProxy) -> AsyncIterator[Client]:
    """The operator's own client, at the proxy's address."""
    given = json.loads(proxy.kubeconfig.read_text())
    configuration = Configuration(host=given["clusters"][0]["cluster"]["server"])
    configuration.api_key["BearerToken"] = f"Bearer {given['users'][0]['user']['token']}"
    async with Client(configuration) as made:
        yield made


class Watch:
    """A watch of a namespace's Secrets through the proxy, read in the background."""

    def __init__(self, proxy: FaultProxy, client: Client, namespace: str) -> None:
        given = json.loads(proxy.kubeconfig.read_text())
        token = given["users"][0]["user"]["token"]
        self._headers = {"Authorization": f"Bearer {token}"}
        self._address = f"http://127.0.0.1:{proxy.port}{SECRET.path(namespace)}"
        self._client = client
        self._namespace = namespace
        self.events: list[tuple[str, Any]] = []
        self.code = 0
        self.is_over = False

    async def run(self, version: int) -> None:
        """Watch from a version on, until the watch ends."""
        query = {"watch": "true", "resourceVersion": str(version)}
        async with (
            aiohttp.ClientSession() as session,
            session.get(self._address, params=query, headers=self._headers) as answer,
        ):
            self.code = answer.status
            async for line in answer.content:
                event = json.loads(line)
                obj = event["object"]
                self.events.append((event["type"], obj["metadata"].get("name", obj.get("code"))))
        self.is_over = True

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[Watch]:
        """Watch from now on."""
        _, version = await self._client.list(SECRET, self._namespace)
        task = asyncio.create_task(self.run(version))
        try:
            await until(lambda: self.code)
            yield self
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


async def until(condition: object) -> None:
    """Wait for a condition beside the event loop, which goes on."""
    assert callable(condition)
    await asyncio.to_thread(wait_until, condition, "condition of a watch")


def _secret(namespace: str, name: str) -> Object:
    metadata = {"name": name, "namespace": namespace}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": metadata}


@pytest.mark.parametrize(
    ("fault", "code"),
    [
        (Cut(), 0),
        (LoseAnswer(), 0),
        (LoseAnswer(504), 504),
        (Refuse(409), 409),
        (Refuse(429, 3), 429),
        (Refuse(500), 500),
        (Refuse(503), 503),
    ],
)
async def test_write_fails_as_the_fault_says(
    namespace: str, proxy: FaultProxy, client: Client, fault: Fault, code: int
) -> None:
    """The second create gets the fault, others are served; the journal has what was done."""
    rule = proxy.on(Match("create", "secrets"), fault, nth=2)
    await client.create(_secret(namespace, "a"))
    with pytest.raises(ApiError) as raised:
        await client.create(_secret(namespace, "b"))
    assert raised.value.code == code
    assert raised.value.retry_after_s == (3 if code == 429 else 0)
    await client.create(_secret(namespace, "c"))
    names = [item["metadata"]["name"] for item in (await client.list(SECRET, namespace))[0]]
    assert names == (["a", "b", "c"] if isinstance(fault, LoseAnswer) else ["a", "c"])
    assert [write.name for write in proxy.journal.effective] == names
    assert rule.hits == 1


async def test_delayed_and_lost_requests(namespace: str, proxy: FaultProxy, client: Client) -> None:
    """A delayed request is served; one into a black hole waits until its client gives up."""
    proxy.on(Match("get"), Delay(0.01))
    assert await client.get(SECRET, namespace, "a") is None
    proxy.on(Match("get"), BlackHole())
    with pytest.raises(ApiError) as raised:
        await client.request("get", SECRET.path(namespace, "a"), timeout_s=0.2)
    assert raised.value.code == 0
    assert await client.get(SECRET, namespace, "a") is None


@pytest.mark.parametrize("is_after", [False, True])
async def test_strike_comes_before_or_after_a_write(
    control_plane: Cluster, namespace: str, proxy: FaultProxy, client: Client, *, is_after: bool
) -> None:
    """Before: the write does not happen. After: it has happened when the action comes."""
    stored: list[Object] = []

    def look() -> None:
        stored.extend(control_plane.api.get(SECRET.path(namespace))["items"])

    strike = Strike(after=look) if is_after else Strike(before=look, is_lost=True)

    proxy.on(Match("create", "secrets", "b"), strike)
    await client.create(_secret(namespace, "a"))
    with contextlib.suppress(ApiError):
        await client.create(_secret(namespace, "b"))
    assert [item["metadata"]["name"] for item in stored] == (["a", "b"] if is_after else ["a"])


async def test_random_faults_end_when_healed(
    namespace: str, proxy: FaultProxy, client: Client
) -> None:
    """With probability one every request fails; healed, none does."""
    proxy.at_random(RandomRule(1, 1.0, [Refuse(500), Cut()]))
    for _ in range(3):
        with pytest.raises(ApiError):
            await client.get(SECRET, namespace, "a")
    proxy.heal()
    assert await client.get(SECRET, namespace, "a") is None


async def test_repeated_patch_is_no_effective_write(
    namespace: str, proxy: FaultProxy, client: Client
) -> None:
    """A patch that changes nothing is a write, but none that has an effect."""
    uid = (await client.create(_secret(namespace, "a")))["metadata"]["uid"]
    for _ in range(2):
        ref = Ref(SECRET, namespace, "a", uid)
        await client.patch(ref, {"metadata": {"labels": {"x": "y"}}})
    assert [write.is_effective for write in proxy.journal.writes] == [True, True, False]
    assert [write.nth for write in proxy.journal.writes] == [1, 1, 2]


async def test_dropped_event_is_left_out(namespace: str, proxy: FaultProxy, client: Client) -> None:
    """The watch goes on behind a dropped event as if it had not been."""
    proxy.on_event(EventMatch("ADDED", "secrets", "b"), EventFault.DROP)
    async with Watch(proxy, client, namespace).running() as watch:
        for name in "abc":
            await client.create(_secret(namespace, name))
        await until(lambda: len(watch.events) == 2)
    assert watch.events == [("ADDED", "a"), ("ADDED", "c")]


@pytest.mark.parametrize(
    ("fault", "then"),
    [(EventFault.EXPIRE, ("ERROR", 410)), (EventFault.CLOSE, ("ADDED", "a"))],
)
async def test_watch_ends_before_an_event(
    namespace: str, proxy: FaultProxy, client: Client, fault: EventFault, then: object
) -> None:
    """The event is not delivered; one that has expired cannot be continued."""
    proxy.on_event(EventMatch("ADDED", "secrets", "a"), fault)
    async with Watch(proxy, client, namespace).running() as watch:
        made = await client.create(_secret(namespace, "a"))
        await until(lambda: watch.is_over)
    assert watch.events == []
    version = int(made["metadata"]["resourceVersion"]) - 1
    again = Watch(proxy, client, namespace)
    task = asyncio.create_task(again.run(version))
    await until(lambda: again.events == [then])
    task.cancel()


async def test_frozen_watch_delivers_when_thawed(
    namespace: str, proxy: FaultProxy, client: Client
) -> None:
    """Frozen: events wait, and lists are those of then; thawed: all of them arrive in order."""
    async with Watch(proxy, client, namespace).running() as watch:
        await client.list(SECRET, namespace)
        await asyncio.to_thread(proxy.freeze, lists_too=True)
        await client.create(_secret(namespace, "a"))
        await client.create(_secret(namespace, "b"))
        assert (await client.list(SECRET, namespace))[0] == []
        assert (await client.get(SECRET, namespace, "a")) is not None
        assert watch.events == []
        await asyncio.to_thread(proxy.thaw)
        await until(lambda: watch.events == [("ADDED", "a"), ("ADDED", "b")])
        assert len((await client.list(SECRET, namespace))[0]) == 2


async def test_coalesced_events_tell_the_same_state(
    namespace: str, proxy: FaultProxy, client: Client
) -> None:
    """However events are gathered, what they tell in the end is what there is."""
    proxy.coalesce(0.2)
    async with Watch(proxy, client, namespace).running() as watch:
        for name in "ab":
            await client.create(_secret(namespace, name))
        await client.request("delete", SECRET.path(namespace, "a"))
        await client.create(_secret(namespace, "c"))
        await until(lambda: ("ADDED", "c") in watch.events)
    there: set[str] = set()
    for kind, name in watch.events:
        there = there - {name} if kind == "DELETED" else there | {name}
    assert there == {"b", "c"}


async def test_cut_off_client_hears_nothing_until_reconnected(
    namespace: str, proxy: FaultProxy, client: Client
) -> None:
    """Watches end, requests stay without an answer; after it all is as before."""
    async with Watch(proxy, client, namespace).running() as watch:
        await asyncio.to_thread(proxy.cut_off)
        await until(lambda: watch.is_over)
        with pytest.raises(ApiError):
            await client.request("get", SECRET.path(namespace, "a"), timeout_s=0.2)
        await asyncio.to_thread(proxy.reconnect)
        assert await client.get(SECRET, namespace, "a") is None


def test_proxy_ends_with_requests_under_way(control_plane: Cluster, tmp_path: Path) -> None:
    """Whoever waits for an answer is cut when the proxy ends."""
    with FaultProxy(control_plane.kubeconfig, tmp_path) as proxy:
        proxy.cut_off()
        waiting = socket.create_connection(("127.0.0.1", proxy.port), PATIENCE_S)
        waiting.sendall(b"GET /version HTTP/1.1\r\nHost: x\r\n\r\n")
        wait_until(lambda: proxy.journal.calls, "request")
    with waiting, contextlib.suppress(ConnectionError):
        assert waiting.recv(1) == b""
