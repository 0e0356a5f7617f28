"""Reading a coordinator that is absent, slow, talks nonsense, or has ended."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any, Self

import pytest
from aiohttp import web

from tests.waiting import PATIENCE_S
from tpujob_agent.notices import Notice
from tpujob_agent.protocol import TELL_PATH, TIMELINE_PATH, TOKEN_HEADER, Cause, EventKind
from tpujob_operator.core.kinds import TPU_TRAINING_JOB, Ref
from tpujob_operator.core.manifests import secret
from tpujob_operator.core.snapshot import JobKey, Told
from tpujob_operator.shell.coordinator_client import (
    CoordinatorReaders,
    DirectTransport,
    UnreachableError,
)
from tpujob_operator.shell.jobstate import JobState

KEY = JobKey("ns", "j")
OPERATOR_KEY = "a key for tests only"
Answer = Callable[[web.Request], Any]


def state() -> JobState:
    """The state of a new job."""
    meta = {"uid": "u", "creationTimestamp": "2026-01-01T00:00:00Z"}
    return JobState.of({"metadata": meta})


def told(epoch: str, *seqs: int, kind: EventKind = EventKind.MEMBERS_COMPLETE) -> dict[str, Any]:
    """A timeline's answer."""
    events = [{"seq": n, "atMs": 1000 + n, "kind": kind.value, "data": {"step": 1}} for n in seqs]
    return {"epoch": epoch, "events": events, "last": max(seqs, default=0), "nowMs": 2000}


class Server:
    """A coordinator that answers as it is told, one answer per request, then waits."""

    def __init__(self) -> None:
        self.answers: asyncio.Queue[Any] = asyncio.Queue()
        self.requests: asyncio.Queue[web.Request] = asyncio.Queue()
        self.bodies: list[Any] = []
        self.port = 0

    async def handle(self, request: web.Request) -> web.Response:
        """Answer one request."""
        if request.can_read_body:
            self.bodies.append(await request.json())
        self.requests.put_nowait(request)
        answer = await self.answers.get()
        if isinstance(answer, int):
            return web.Response(status=answer)
        return web.json_response(answer)


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    """A running server."""
    made = Server()
    app = web.Application()
    app.router.add_get(TIMELINE_PATH, made.handle)
    app.router.add_put(TELL_PATH, made.handle)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    made.port = runner.addresses[0][1]
    yield made
    await runner.cleanup()


class Reading:
    """Readers of one job, and what they have woken."""

    def __init__(self, port: int) -> None:
        self.state = state()
        self.woken = asyncio.Event()
        self.transport = DirectTransport(f"http://127.0.0.1:{port}")
        self.readers = CoordinatorReaders(
            self.transport, OPERATOR_KEY, lambda _: self.state, lambda _: self.woken.set()
        )

    async def __aenter__(self) -> Self:
        self.readers.follow(KEY, "u", is_wanted=True)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.readers.close()
        await self.transport.close()

    async def wait_woken(self) -> None:
        """Wait until a pass is asked for."""
        async with asyncio.timeout(PATIENCE_S):
            await self.woken.wait()
        self.woken.clear()


async def test_events_are_read_from_the_cursor_with_the_token(server: Server) -> None:
    """Each request goes on where the last answer ended, and carries the job's own token."""
    server.answers.put_nowait(told("e", 1, 2))
    async with Reading(server.port) as reading:
        await reading.wait_woken()
        first, second = await server.requests.get(), await server.requests.get()
    assert [event.seq for r in reading.state.readings for event in r.events] == [1, 2]
    assert first.query["after"] == "0"
    assert (second.query["epoch"], second.query["after"]) == ("e", "2")
    assert first.headers[TOKEN_HEADER] == secret.token(OPERATOR_KEY, "u")


@pytest.mark.parametrize("nonsense", [503, [], {"epoch": "e"}, {"events": 3}, "text"])
async def test_nonsense_is_survived(server: Server, nonsense: Any) -> None:
    """Errors and malformed answers lead to another try, not to an end of reading."""
    server.answers.put_nowait(nonsense)
    server.answers.put_nowait(told("e", 1))
    async with Reading(server.port) as reading:
        for _ in range(2):
            await server.requests.get()
        assert reading.state.silent_since_ms > 0
        await server.requests.get()
    assert reading.state.read.seq == 1
    assert reading.state.silent_since_ms == 0


async def test_new_coordinator_is_read_from_its_beginning(server: Server) -> None:
    """Another epoch replaces the cursor."""
    server.answers.put_nowait(told("e", 1, 2, 3))
    server.answers.put_nowait(told("f", 1))
    async with Reading(server.port) as reading:
        for _ in range(3):
            await server.requests.get()
    assert (reading.state.read.epoch, reading.state.read.seq) == ("f", 1)


async def test_answer_without_events_asks_for_no_pass(server: Server) -> None:
    """A long poll that ends without news only moves the time up to which all is known."""
    server.answers.put_nowait(told("e"))
    async with Reading(server.port) as reading:
        await server.requests.get()
        await server.requests.get()
        assert not reading.woken.is_set()
    assert reading.state.readings == []
    assert reading.state.known_until_ms == 2000


async def test_end_is_acknowledged_only_when_it_is_written_down(server: Server) -> None:
    """The coordinator may go when FINISHED has reached the status, not before."""
    server.answers.put_nowait(told("e", 1, kind=EventKind.FINISHED))
    async with Reading(server.port) as reading:
        await reading.wait_woken()
        await server.requests.get()
        reading.readers.follow(KEY, "u", is_wanted=True)  # a pass that could not write
        await asyncio.sleep(0.05)
        assert server.requests.empty()
        reading.state.persisted = reading.state.read
        reading.readers.follow(KEY, "u", is_wanted=True)
        async with asyncio.timeout(PATIENCE_S):
            acknowledgement = await server.requests.get()
    assert acknowledgement.query["after"] == "1"
    assert acknowledgement.query["wait_s"] == "0"


async def test_namesake_gets_a_reader_of_its_own(server: Server) -> None:
    """Reading ends with the incarnation of the job it was for."""
    async with Reading(server.port) as reading:
        await server.requests.get()
        reading.readers.follow(KEY, "other", is_wanted=False)
        assert len(reading.readers) == 0


async def test_notices_reach_the_coordinator(server: Server) -> None:
    """They are put with the job's own token; an answer that is no success is an error."""
    notice = Notice("n", Cause.MAINTENANCE, 0, "it goes")
    ref = Ref(TPU_TRAINING_JOB, *KEY, "u")
    made = Reading(server.port)
    server.answers.put_nowait({})
    told = Told("e", (notice,), {"process": 3}, (7,))
    await made.readers.tell(ref, told)
    assert (await server.requests.get()).headers[TOKEN_HEADER] == secret.token(OPERATOR_KEY, "u")
    body = {"notices": [notice.to_json()], "budgets": {"process": 3}, "takenAway": [7]}
    assert server.bodies == [body]
    server.answers.put_nowait(404)
    with pytest.raises(UnreachableError):
        await made.readers.tell(ref, told)
    await made.transport.close()
