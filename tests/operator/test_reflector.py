"""Reflectors under everything that an API server, or what lies before it, may do to a watch."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from aiohttp import web
from kubernetes.aio.client import Configuration

from tests.operator.test_cache import KEY, thing
from tests.waiting import PATIENCE_S
from tpujob_operator.core.kinds import JOB, POD
from tpujob_operator.shell import reflector, stream
from tpujob_operator.shell.cache import Cache
from tpujob_operator.shell.client import Client
from tpujob_operator.shell.reflector import Reflector, Scope

_HANG = "hang"
Answer = dict[str, Any] | list[Any] | int


def listing(version: int, *objects: dict[str, Any]) -> dict[str, Any]:
    """What a listing at a version returns."""
    return {"metadata": {"resourceVersion": str(version)}, "items": list(objects)}


def told(kind: str, obj: dict[str, Any]) -> dict[str, Any]:
    """An event of a watch."""
    return {"type": kind, "object": obj}


def bookmark(version: int) -> dict[str, Any]:
    """How far a watch has come."""
    return told("BOOKMARK", {"metadata": {"resourceVersion": str(version)}})


class Server:
    """Answers listings and watches as it is told; then listings are refused, and watches hang."""

    def __init__(self) -> None:
        self.listings: list[Answer] = []
        self.watches: list[Answer] = []
        self.asked: list[str] = []  # "list", or the version that a watch began at
        self.port = 0

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Answer one request."""
        if "watch" in request.query:
            self.asked.append(request.query["resourceVersion"])
            return await self._watch(request, self.watches.pop(0) if self.watches else [_HANG])
        self.asked.append("list")
        answer = self.listings.pop(0) if self.listings else 500
        return _answered(answer)

    async def _watch(self, request: web.Request, answer: Answer) -> web.StreamResponse:
        if not isinstance(answer, list):
            return _answered(answer)
        response = web.StreamResponse()
        await response.prepare(request)
        for event in answer:
            if event == _HANG:
                await asyncio.Event().wait()
            line = event if isinstance(event, str) else json.dumps(event) + "\n"
            await response.write(line.encode())
        return response


def _answered(answer: Answer) -> web.Response:
    return web.Response(status=answer) if isinstance(answer, int) else web.json_response(answer)


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    """A server on a free port."""
    made = Server()
    app = web.Application()
    app.router.add_get("/{path:.*}", made.handle)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    made.port = runner.addresses[0][1]
    yield made
    await runner.cleanup()


@contextlib.asynccontextmanager
async def reflected(server: Server, **options: Any) -> AsyncIterator[tuple[Cache, Reflector]]:
    """A cache of Jobs that a reflector feeds."""
    cache = Cache(lambda _: None, lambda: 1)
    configuration = Configuration()
    configuration.host = f"http://127.0.0.1:{server.port}"
    async with Client(configuration) as client:
        made = Reflector(client, Scope(JOB), cache, **{"relist_s": 3600.0, **options})
        running = asyncio.create_task(made.run())
        try:
            yield cache, made
            assert not running.done()
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)


async def until(condition: Callable[[], object]) -> None:
    """Wait for a condition."""
    async with asyncio.timeout(PATIENCE_S):
        while not condition():  # noqa: ASYNC110 - the cache has no event to wait for
            await asyncio.sleep(0.01)


def known(cache: Cache) -> dict[str, int]:
    """Versions of the Jobs that the cache knows."""
    return {job.name: job.version for job in cache.jobs(KEY)}


async def test_it_lists_and_goes_on_from_there(server: Server) -> None:
    """A watch that ends is followed by one from where it was; nothing is listed for that."""
    server.listings = [listing(10, thing(JOB, "a", 1), thing(JOB, "b", 2))]
    changes = [told("MODIFIED", thing(JOB, "a", 11)), told("DELETED", thing(JOB, "b", 12))]
    server.watches = [[*changes, bookmark(40)], [told("ADDED", thing(JOB, "c", 41)), _HANG]]
    async with reflected(server) as (cache, _):
        await until(lambda: known(cache) == {"a": 11, "c": 41})
    assert server.asked == ["list", "10", "40"]


async def test_what_vanished_while_a_watch_was_lost_is_found(server: Server) -> None:
    """The API server no longer knows what happened since: a listing tells."""
    job, pod = thing(JOB, "a", 1), thing(POD, "a-0", 2, owner="uid-a")
    gone = {"type": "ERROR", "object": {"kind": "Status", "code": 410, "message": "too old"}}
    server.listings = [listing(10, job, thing(JOB, "b", 2)), listing(50, job)]
    server.watches = [[gone]]
    async with reflected(server) as (cache, _):
        cache.put(POD, pod)
        await until(lambda: "50" in server.asked)
        assert known(cache) == {"a": 1}
        assert [item.name for item in cache.pods(KEY)] == ["a-0"]
    assert server.asked == ["list", "10", "list", "50"]


@pytest.mark.parametrize("broken", [410, 400, 403])
async def test_a_refused_watch_is_followed_by_a_listing(server: Server, broken: int) -> None:
    """Asking for the same again would not help."""
    server.listings = [listing(10), listing(20, thing(JOB, "a", 15))]
    server.watches = [broken]
    async with reflected(server) as (cache, _):
        await until(lambda: known(cache) == {"a": 15})
    assert server.asked[:3] == ["list", "10", "list"]


@pytest.mark.parametrize(
    "broken", [500, 503, 429, ["no JSON\n"], ["[]\n"], ["{}\n"], ['{"type": "ADDED", "obj']]
)
async def test_a_broken_watch_goes_on_where_it_was(server: Server, broken: Answer) -> None:
    """Whatever came instead of an event."""
    server.listings = [listing(10)]
    server.watches = [broken, [told("ADDED", thing(JOB, "a", 11)), _HANG]]
    async with reflected(server) as (cache, _):
        await until(lambda: known(cache) == {"a": 11})
    assert server.asked[:3] == ["list", "10", "10"]


async def test_an_api_server_that_is_away_ends_nothing(server: Server) -> None:
    """Listings are tried until one succeeds, and who waits for it learns of it then."""
    server.listings = [500, {}, {"items": [], "metadata": {}}, listing(10, thing(JOB, "a", 1))]
    async with reflected(server) as (cache, made):
        await made.relist()
        assert known(cache) == {"a": 1}
    assert server.asked[:4] == ["list"] * 4


async def test_a_silent_watch_is_given_up(server: Server) -> None:
    """A connection may be dead without anybody saying so."""
    server.listings = [listing(10)]
    server.watches = [[bookmark(20), _HANG], [told("ADDED", thing(JOB, "a", 21)), _HANG]]
    async with reflected(server, stall_s=0.3) as (cache, _):
        await until(lambda: known(cache) == {"a": 21})
    assert server.asked[:3] == ["list", "10", "20"]


async def test_listings_are_repeated(server: Server) -> None:
    """An event that got lost costs no more than this time."""
    server.listings = [listing(10, thing(JOB, "a", 1)), listing(10)]
    async with reflected(server, relist_s=0.2) as (cache, _):
        await until(lambda: server.asked.count("list") == 2 and not known(cache))


async def test_a_listing_that_is_asked_for_is_a_fresh_one(server: Server) -> None:
    """A watch under way is no reason to wait."""
    server.listings = [listing(10), listing(20, thing(JOB, "a", 15))]
    async with reflected(server) as (cache, made):
        await until(lambda: server.asked == ["list", "10"])
        await made.relist()
        assert known(cache) == {"a": 15}


async def test_a_restored_cluster_is_taken_as_it_is(server: Server) -> None:
    """Its versions have fallen: what is known is of a time that never was."""
    server.listings = [
        listing(500, thing(JOB, "a", 400), thing(JOB, "b", 450)),
        listing(300, thing(JOB, "a", 200)),
    ]
    server.watches = [[bookmark(290), _HANG], [told("ADDED", thing(JOB, "b", 301)), _HANG]]
    async with reflected(server) as (cache, _):
        await until(lambda: known(cache) == {"a": 200, "b": 301})
    assert server.asked == ["list", "500", "list", "300"]


async def test_a_kind_that_is_not_served_is_looked_for(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing of it is left, and it is there as soon as it is installed."""
    monkeypatch.setattr(reflector, "_NOT_SERVED_S", 0.1)
    server.listings = [listing(10, thing(JOB, "a", 1)), 404, 404, listing(30, thing(JOB, "b", 25))]
    server.watches = [404]
    async with reflected(server) as (cache, _):
        await until(lambda: known(cache) == {"b": 25})
    assert server.asked[:5] == ["list", "10", "list", "list", "list"]


async def test_one_unreadable_object_hides_no_other(server: Server) -> None:
    """Neither in a listing nor in a watch."""
    bad, worse = thing(JOB, "bad", 2), thing(JOB, "worse", 11)
    bad["spec"] = worse["spec"] = {"parallelism": "many"}
    server.listings = [listing(10, bad, thing(JOB, "a", 1))]
    server.watches = [[told("ADDED", worse), told("ADDED", thing(JOB, "b", 12)), _HANG]]
    async with reflected(server) as (cache, _):
        await until(lambda: known(cache) == {"a": 1, "b": 12})


async def test_an_endless_line_is_not_kept(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """The operator's memory is not for whoever answers in the API server's name."""
    monkeypatch.setattr(stream, "MAX_LINE_BYTES", 10_000)
    server.listings = [listing(10)]
    server.watches = [["x" * 50_000, _HANG], [told("ADDED", thing(JOB, "a", 11)), _HANG]]
    async with reflected(server) as (cache, _):
        await until(lambda: known(cache) == {"a": 11})


async def test_its_age_is_that_of_the_last_word(server: Server) -> None:
    """Of the API server, by bookmarks too."""
    server.listings = [listing(10)]
    async with reflected(server) as (_, made):
        await made.relist()
        await until(lambda: made.age_s > 0.2)
        server.listings = [listing(11)]
        await made.relist()
        assert made.age_s < PATIENCE_S
