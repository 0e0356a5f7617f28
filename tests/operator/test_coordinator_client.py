"""Reading a coordinator that is absent, slow, talks nonsense, or has ended."""

import asyncio
import gzip
from collections.abc import AsyncIterator
from typing import Any, Self

import pytest
from aiohttp import web
from kubernetes.aio.client import Configuration

from tests.operator.played import Server
from tests.waiting import PATIENCE_S
from tpujob_agent.notices import Notice
from tpujob_agent.protocol import TELL_PATH, TIMELINE_PATH, Cause, EventKind
from tpujob_agent.signing import SIGNATURE_HEADER, Verifier, is_of_body
from tpujob_operator.core.history import Cursor
from tpujob_operator.core.kinds import TPU_TRAINING_JOB, Ref
from tpujob_operator.core.manifests import secret
from tpujob_operator.core.manifests.options import ManifestOptions
from tpujob_operator.core.memory import Memory
from tpujob_operator.core.observations import Fact, FactKind
from tpujob_operator.core.plan import Tell
from tpujob_operator.core.snapshot import JobKey, Told
from tpujob_operator.core.timeline import TimelineBatch
from tpujob_operator.shell.client import Client
from tpujob_operator.shell.clock import Clock, wall_ms
from tpujob_operator.shell.coordinator_client import CoordinatorReaders
from tpujob_operator.shell.jobstate import JobState
from tpujob_operator.shell.transport import (
    ANSWER_BYTES,
    Answer,
    Call,
    DirectTransport,
    OutdatedCoordinatorError,
    ProxyTransport,
    UnreachableError,
)

KEY = JobKey("ns", "j")
OPERATOR_KEY = "a key for tests only"
KEY_ID = secret.key_id(OPERATOR_KEY)
OPTIONS = ManifestOptions(OPERATOR_KEY, "operator:1", "trainer:1")


def state() -> JobState:
    """The state of a new job."""
    meta = {"uid": "u", "creationTimestamp": "2026-01-01T00:00:00Z"}
    return JobState.of({"metadata": meta})


def told(epoch: str, *seqs: int, kind: EventKind = EventKind.MEMBERS_COMPLETE) -> dict[str, Any]:
    """A timeline's answer."""
    data = {"step": 1, "generation": 1, "firstStep": 1, "lastStep": 1, "endedAtMs": 1000}
    events = [{"seq": n, "atMs": 1000 + n, "kind": kind.value, "data": data} for n in seqs]
    return {"epoch": epoch, "events": events, "last": max(seqs, default=0), "nowMs": 2000}


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    """A running server."""
    made = Server()
    app = web.Application()
    app.router.add_get(TIMELINE_PATH, made.handle)
    app.router.add_put(TELL_PATH, made.handle)
    app.router.add_get("/api/v1/{rest:.*}", made.handle)  # as the API server's proxy
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
        self.is_urgent = False
        self.transport = DirectTransport(f"http://127.0.0.1:{port}")
        self.readers = CoordinatorReaders(
            self.transport, OPTIONS, Clock(), lambda _: self.state, self._wake
        )

    def _wake(self, _key: JobKey, _state: JobState, is_urgent: bool) -> None:
        self.is_urgent = is_urgent
        self.woken.set()

    async def __aenter__(self) -> Self:
        self.readers.follow(KEY, "u", KEY_ID, is_wanted=True)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.readers.close()
        await self.transport.close()

    async def wait_woken(self) -> None:
        """Wait until a pass is asked for."""
        async with asyncio.timeout(PATIENCE_S):
            await self.woken.wait()
        self.woken.clear()


def is_signed(verifier: Verifier, request: web.Request) -> bool:
    """Whether a coordinator would take the request."""
    given = request.headers[SIGNATURE_HEADER]
    problem = verifier.problem(given, request.method, request.path, request.query, wall_ms())
    return problem == ""


async def test_events_are_read_from_the_cursor_with_the_token(server: Server) -> None:
    """Each request goes on where the last answer ended, and is signed with the job's own token."""
    server.answers.put_nowait(told("e", 1, 2))
    async with Reading(server.port) as reading:
        await reading.wait_woken()
        first, second = await server.requests.get(), await server.requests.get()
    assert reading.state.history.cursor == Cursor("e", 2)
    assert reading.state.history.ledger.complete
    assert first.query["after"] == "0"
    assert (second.query["epoch"], second.query["after"]) == ("e", "2")
    verifier = Verifier(secret.token(OPERATOR_KEY, "u"))
    assert is_signed(verifier, first)
    assert is_signed(verifier, second)


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
    assert reading.state.history.cursor.seq == 1
    assert reading.state.silent_since_ms == 0


async def test_redirects_are_not_followed(server: Server) -> None:
    """Who answers for a coordinator must not choose whom the operator asks, and with what token."""
    headers = {"Location": f"http://127.0.0.1:{server.port}{TIMELINE_PATH}?followed=1"}
    server.answers.put_nowait(web.Response(status=307, headers=headers))
    async with Reading(server.port) as reading:
        await server.requests.get()
        second = await server.requests.get()
    assert "followed" not in second.query
    assert reading.state.silent_why == "it answers HTTP 307"


@pytest.mark.parametrize("is_packed", [False, True])
async def test_endless_answers_are_given_up(server: Server, *, is_packed: bool) -> None:
    """The operator keeps no more than a bounded part of what a job's program sends."""
    body = b'{"epoch": "' + b"x" * (100 if is_packed else 2 * ANSWER_BYTES) + b'"}'
    if is_packed:  # an answer that is asked for plain and comes packed is no JSON
        body = gzip.compress(b'{"epoch": "' + b"x" * 50 * ANSWER_BYTES + b'"}')
    headers = {"Content-Encoding": "gzip"} if is_packed else {}
    server.answers.put_nowait(web.Response(body=body, headers=headers))
    server.answers.put_nowait(told("e", 1))
    async with Reading(server.port) as reading:
        await reading.wait_woken()
        words = "no JSON" if is_packed else f"longer than {ANSWER_BYTES} bytes"
        assert words in reading.state.silent_why
        for _ in range(3):
            await server.requests.get()
    assert reading.state.history.cursor.seq == 1


async def test_deeply_nested_answers_are_no_end(server: Server) -> None:
    """The parser gives up with an error of its own kind, and the next answer is read."""
    server.answers.put_nowait(web.Response(body=b"[" * 200_000))
    server.answers.put_nowait(told("e", 1))
    async with Reading(server.port) as reading:
        for _ in range(3):
            await server.requests.get()
    assert reading.state.history.cursor.seq == 1


async def test_answers_of_many_jobs_are_bounded_together(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Long answers that are received at once are given up; short ones always come through."""
    monkeypatch.setattr("tpujob_operator.shell.transport._ALL_BYTES", 3_000_000)
    reading = Reading(server.port)
    call = Call("", TIMELINE_PATH, "", PATIENCE_S)
    long = b'{"epoch": "' + b"x" * 2_000_000 + b'"'
    gate = asyncio.Event()

    async def slowly(request: web.Request) -> web.StreamResponse:
        answer = web.StreamResponse()
        await answer.prepare(request)
        await answer.write(long)
        await gate.wait()
        await answer.write(b"}")
        return answer

    server.streams = slowly
    first = asyncio.create_task(reading.transport.send(KEY, call))
    second = asyncio.create_task(reading.transport.send(KEY, call))
    done, _ = await asyncio.wait({first, second}, return_when=asyncio.FIRST_COMPLETED)
    with pytest.raises(UnreachableError, match="at once"):
        await done.pop()
    server.streams = None
    server.answers.put_nowait({"short": 1})
    assert (await reading.transport.send(KEY, call)).body == {"short": 1}
    gate.set()
    others = await asyncio.gather(first, second, return_exceptions=True)
    assert sum(isinstance(answer, Answer) for answer in others) == 1
    await reading.transport.close()


async def test_a_defect_does_not_end_the_reading(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever is raised, the job counts as silent, and is read again."""
    monkeypatch.setattr("tpujob_operator.shell.coordinator_client._LONGEST_RETRY_S", 0.01)
    server.answers.put_nowait(told("e", 1))
    reading = Reading(server.port)
    send = reading.transport.send

    async def fail_once(_key: JobKey, _call: Call) -> Answer:
        monkeypatch.setattr(reading.transport, "send", send)
        raise RecursionError("a defect")

    monkeypatch.setattr(reading.transport, "send", fail_once)
    async with reading:
        await reading.wait_woken()
        assert "a defect" in reading.state.silent_why
        for _ in range(2):
            await server.requests.get()
    assert reading.state.history.cursor.seq == 1


async def test_a_reader_that_has_ended_is_followed_by_another(server: Server) -> None:
    """A pass looks after it: nobody else would notice."""
    async with Reading(server.port) as reading:
        await server.requests.get()
        ended = reading.readers._readers[KEY].task
        ended.cancel()
        await asyncio.wait({ended})
        reading.readers.follow(KEY, "u", KEY_ID, is_wanted=True)
        async with asyncio.timeout(PATIENCE_S):
            await server.requests.get()


async def test_steps_alone_wake_no_pass_at_once(server: Server) -> None:
    """They are folded in, and wait until the status may be written again."""
    server.answers.put_nowait(told("e", 1, kind=EventKind.PROGRESS))
    async with Reading(server.port) as reading:
        await reading.wait_woken()
        assert not reading.is_urgent
        assert reading.state.history.cursor.seq == 1
        server.answers.put_nowait(told("e", 2, kind=EventKind.MEMBERS_COMPLETE))
        await reading.wait_woken()
        assert reading.is_urgent


async def test_a_pass_and_the_reader_lose_nothing_of_each_other(server: Server) -> None:
    """What comes while a pass is under way is folded into its outcome."""
    server.answers.put_nowait(told("e", 1, kind=EventKind.PROGRESS))
    async with Reading(server.port) as reading:
        async with reading.state.deciding:
            decided = reading.state.history.apply(Fact(3_000, FactKind.SUSPENDED))
            await server.requests.get()
            await asyncio.sleep(0.05)
            assert reading.state.history.cursor == Cursor()
            reading.state.committed(decided, Memory())
        await reading.wait_woken()
    assert reading.state.history.ledger.suspended
    assert reading.state.history.cursor.seq == 1


async def test_state_that_was_read_again_gets_its_events_again(server: Server) -> None:
    """An answer to the state before is dropped; the next request asks from the new cursor."""
    async with Reading(server.port) as reading:
        await server.requests.get()
        reading.state = state()
        server.answers.put_nowait(told("e", 1))
        reading.readers.follow(KEY, "u", KEY_ID, is_wanted=True)  # the pass that has read it
        async with asyncio.timeout(PATIENCE_S):
            again = await server.requests.get()
    assert again.query["after"] == "0"


async def test_new_coordinator_is_read_from_its_beginning(server: Server) -> None:
    """Another epoch replaces the cursor."""
    server.answers.put_nowait(told("e", 1, 2, 3))
    server.answers.put_nowait(told("f", 1))
    async with Reading(server.port) as reading:
        for _ in range(3):
            await server.requests.get()
    assert reading.state.history.cursor == Cursor("f", 1)


async def test_answer_without_events_asks_for_no_pass(server: Server) -> None:
    """A long poll that ends without news only moves the time up to which all is known."""
    server.answers.put_nowait(told("e"))
    async with Reading(server.port) as reading:
        await server.requests.get()
        await server.requests.get()
        assert not reading.woken.is_set()
    assert reading.state.history == state().history.read(TimelineBatch("e", (), 2000))
    assert reading.state.known_until_ms == 2000


async def test_end_is_acknowledged_only_when_it_is_written_down(server: Server) -> None:
    """The coordinator may go when FINISHED has reached the status, not before."""
    server.answers.put_nowait(told("e", 1, kind=EventKind.FINISHED))
    async with Reading(server.port) as reading:
        await reading.wait_woken()
        await server.requests.get()
        reading.readers.follow(KEY, "u", KEY_ID, is_wanted=True)  # a pass that could not write
        await asyncio.sleep(0.05)
        assert server.requests.empty()
        reading.state.persisted = reading.state.history.cursor
        reading.readers.follow(KEY, "u", KEY_ID, is_wanted=True)
        async with asyncio.timeout(PATIENCE_S):
            acknowledgement = await server.requests.get()
    assert acknowledgement.query["after"] == "1"
    assert acknowledgement.query["wait_s"] == "0"


async def test_refused_token_is_told_from_silence(server: Server) -> None:
    """A coordinator that does not take the token is no coordinator that is away."""
    for code in (503, 401):
        server.answers.put_nowait(code)
    async with Reading(server.port) as reading:
        for is_unauthorized in (False, True):
            await reading.wait_woken()
            assert reading.state.silent_since_ms > 0
            assert reading.state.is_unauthorized is is_unauthorized
        server.answers.put_nowait(told("e", 1))
        await reading.wait_woken()
        assert not reading.state.is_unauthorized


async def test_attempt_of_an_unknown_key_is_not_read(server: Server) -> None:
    """Without the key there is no token to ask with."""
    async with Reading(server.port) as reading:
        reading.readers.follow(KEY, "u", "another", is_wanted=True)
        assert len(reading.readers) == 0


async def test_namesake_gets_a_reader_of_its_own(server: Server) -> None:
    """Reading ends with the incarnation of the job it was for."""
    async with Reading(server.port) as reading:
        await server.requests.get()
        reading.readers.follow(KEY, "other", KEY_ID, is_wanted=False)
        assert len(reading.readers) == 0


@pytest.mark.parametrize("is_proxied", [False, True])
async def test_long_polls_of_very_many_jobs_do_not_wait_for_each_other(
    server: Server, *, is_proxied: bool
) -> None:
    """Each of them holds a connection, and none takes the place of another one's."""
    number, address = 150, f"http://127.0.0.1:{server.port}"
    async with Client(Configuration(host=address)) as client:
        transport = ProxyTransport(client) if is_proxied else DirectTransport(address)
        states = {JobKey("ns", f"j{index}"): state() for index in range(number)}
        readers = CoordinatorReaders(transport, OPTIONS, Clock(), states.get, lambda *_: None)
        for key in states:
            readers.follow(key, "u", KEY_ID, is_wanted=True)
        async with asyncio.timeout(PATIENCE_S):
            for _ in states:  # none of them is answered meanwhile
                await server.requests.get()
        await readers.close()
        await transport.close()


async def test_notices_reach_the_coordinator(server: Server) -> None:
    """They are put, signed with the job's own token; an answer that is no success is an error."""
    notice = Notice("n", Cause.MAINTENANCE, 0, "it goes")
    ref = Ref(TPU_TRAINING_JOB, *KEY, "u")
    made = Reading(server.port)
    server.answers.put_nowait({})
    told = Told("e", (notice,), {"process": 3}, (7,))
    await made.readers.tell(Tell(ref, told, KEY_ID))
    request = await server.requests.get()
    assert is_signed(Verifier(secret.token(OPERATOR_KEY, "u")), request)
    body = {"notices": [notice.to_json()], "budgets": {"process": 3}, "takenAway": [7]}
    assert server.bodies == [body]
    assert is_of_body(request.headers[SIGNATURE_HEADER], body)
    for code, error in ((503, UnreachableError), (404, OutdatedCoordinatorError)):
        server.answers.put_nowait(code)
        with pytest.raises(error):
            await made.readers.tell(Tell(ref, told, KEY_ID))
    await made.transport.close()
