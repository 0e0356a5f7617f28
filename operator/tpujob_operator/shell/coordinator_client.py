"""Reads the timelines of the coordinators: one long poll per running job."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
from collections.abc import Callable
from http import HTTPStatus

from tpujob_agent.protocol import TELL_PATH, TIMELINE_PATH, EventKind, ProtocolError
from tpujob_operator.core.manifests import names, secret
from tpujob_operator.core.manifests.options import ManifestOptions
from tpujob_operator.core.plan import Tell
from tpujob_operator.core.snapshot import JobKey
from tpujob_operator.core.timeline import TimelineBatch, batch_of
from tpujob_operator.shell.clock import Clock
from tpujob_operator.shell.jobstate import JobState
from tpujob_operator.shell.transport import (
    Call,
    OutdatedCoordinatorError,
    Transport,
    UnreachableError,
)

_log = logging.getLogger(__name__)
WAIT_S = 20.0
_TELL_TIMEOUT_S = 5.0
_FIRST_RETRY_S = 0.2
_LONGEST_RETRY_S = 3.0
#: Events that come within this time are read together.
_GATHER_S = 0.2
_GATHER_PER_JOB_S = 0.002
#: What a coordinator is asked for at a time; one that is older answers a thousand events.
_EVENT_BYTES = 256 * 1024
#: No job takes more of the operator's time than reading so much takes.
_BYTES_PER_S = 256 * 1024
#: Characters of what is wrong with a coordinator's answers.
_MOST_WORDS = 200
_ENDS = (EventKind.FINISHED, EventKind.GAVE_UP)


@dataclasses.dataclass(slots=True)
class _Reader:
    state: JobState  # another one has lost what was read since: it needs a reader of its own
    token: str
    task: asyncio.Task[None]
    passed: asyncio.Event


class CoordinatorReaders:
    """Keeps one reader for each job that has a coordinator."""

    def __init__(
        self,
        transport: Transport,
        options: ManifestOptions,
        clock: Clock,
        find: Callable[[JobKey], JobState | None],
        wake: Callable[[JobKey, JobState, bool], None],
    ) -> None:
        """``wake`` asks for a pass: at once, or when the status may be written again."""
        self._transport = transport
        self._options = options
        self._clock = clock
        self._find = find
        self._wake = wake
        self._readers: dict[JobKey, _Reader] = {}

    def __len__(self) -> int:
        return len(self._readers)

    def follow(self, key: JobKey, uid: str, key_id: str, *, is_wanted: bool) -> None:
        """Read a job's coordinator, or stop reading it; also tells that a pass is over.

        ``key_id``: the key that its attempt was made with; one that is unknown is not read.
        """
        reader, state = self._readers.get(key), self._find(key)
        token = secret.token_of_attempt(self._options, key_id, uid)
        if reader is not None:
            reader.passed.set()
            is_same = reader.state is state and reader.token == token
            if not is_wanted or not is_same or reader.task.done():
                self._stop(key)
                reader = None
        if is_wanted and reader is None and token is not None and state is not None:
            self._readers[key] = self._start(key, state, token)

    def _start(self, key: JobKey, state: JobState, token: str) -> _Reader:
        passed = asyncio.Event()
        name = f"timeline of {key}"
        task = asyncio.create_task(self._read(key, state, token, passed), name=name)
        return _Reader(state, token, task, passed)

    async def tell(self, action: Tell) -> None:
        """Tell a job's coordinator of hosts that leave or have left, and of its budgets.

        Raises:
            OutdatedCoordinatorError: it is too old to listen.
            UnreachableError: it has not heard.
        """
        ref, told = action.ref, action.told
        token = secret.token_of_attempt(self._options, action.key_id, ref.uid)
        if token is None:
            raise UnreachableError(f"no key of the operator has the id {action.key_id}")
        body = {
            "notices": [notice.to_json() for notice in told.notices],
            "budgets": told.budgets,
            "takenAway": told.taken_away,
        }
        service = names.coordinator_service(ref.name, ref.uid)
        call = Call(service, TELL_PATH, token, _TELL_TIMEOUT_S, body=body)
        try:
            await self._transport.send(JobKey(ref.namespace, ref.name), call)
        except UnreachableError as error:
            if error.code == HTTPStatus.NOT_FOUND:
                raise OutdatedCoordinatorError(str(error), error.code) from error
            raise

    def forget(self, key: JobKey) -> None:
        """Stop reading a job that is gone."""
        self._stop(key)

    async def close(self) -> None:
        """Stop all readers."""
        tasks = [reader.task for reader in self._readers.values()]
        for key in list(self._readers):
            self._stop(key)
        await asyncio.gather(*tasks, return_exceptions=True)

    def _stop(self, key: JobKey) -> None:
        reader = self._readers.pop(key, None)
        if reader is not None:
            reader.task.cancel()
        state = self._find(key)
        if state is not None:
            state.silent_since_ms = 0

    async def _read(self, key: JobKey, state: JobState, token: str, passed: asyncio.Event) -> None:
        retry_s = _FIRST_RETRY_S
        while self._find(key) is state:
            try:
                wait_s = await self._round(key, state, token, passed)
                retry_s = _FIRST_RETRY_S
            except (UnreachableError, ProtocolError) as error:
                _log.debug("coordinator of %s: %s", key, error)
                self._note_silence(key, state, error)
                wait_s, retry_s = retry_s, min(_LONGEST_RETRY_S, retry_s * 2)
            except Exception as error:  # noqa: BLE001 - logged with its trace just below
                # A defect that shows with one answer must not end the reading of a job.
                _log.exception("reading the coordinator of %s failed", key)
                self._note_silence(key, state, error)
                wait_s = _LONGEST_RETRY_S
            await asyncio.sleep(wait_s)

    async def _round(
        self, key: JobKey, state: JobState, token: str, passed: asyncio.Event
    ) -> float:
        """Read once; the result is how long to wait until the next time."""
        batch, size = await self._fetch(key, state, token, WAIT_S)
        async with state.deciding:
            if self._find(key) is not state:
                return 0  # it was read from the status again, and so are the events
            was_silent, state.is_unauthorized = state.silent_since_ms > 0, False
            is_urgent = state.take(batch) or was_silent
        if is_urgent or batch.events:
            self._wake(key, state, is_urgent)
        if any(event.kind in _ENDS for event in batch.known):
            await self._acknowledge(key, state, token, passed)
        gather_s = max(_GATHER_S, _GATHER_PER_JOB_S * len(self._readers))
        return max(gather_s, size / _BYTES_PER_S)

    def _note_silence(self, key: JobKey, state: JobState, error: Exception) -> None:
        is_unauthorized = isinstance(error, UnreachableError) and error.is_unauthorized
        if not state.silent_since_ms or state.is_unauthorized != is_unauthorized:
            state.silent_since_ms = state.silent_since_ms or self._clock.steady_ms()
            state.is_unauthorized = is_unauthorized
            state.silent_why = (str(error) or repr(error))[:_MOST_WORDS]
            self._wake(key, state, True)

    async def _acknowledge(
        self, key: JobKey, state: JobState, token: str, passed: asyncio.Event
    ) -> None:
        """Let the coordinator go, once its last words are written down."""
        while state.persisted != state.history.cursor:
            passed.clear()
            await passed.wait()
            if self._find(key) is not state:
                return
        with contextlib.suppress(UnreachableError, ProtocolError):
            await self._fetch(key, state, token, 0)

    async def _fetch(
        self, key: JobKey, state: JobState, token: str, wait_s: float
    ) -> tuple[TimelineBatch, int]:
        cursor = state.history.cursor
        query = {
            "epoch": cursor.epoch,
            "after": str(cursor.seq),
            "wait_s": f"{wait_s:g}",
            "bytes": str(_EVENT_BYTES),
        }
        service = names.coordinator_service(key.name, state.uid)
        call = Call(service, TIMELINE_PATH, token, wait_s + 10, query=query)
        answer = await self._transport.send(key, call)
        now = self._clock.now()
        # What is told would be lost as of the future if only the wall clock, set back, decided.
        return batch_of(answer.body, cursor.seq, max(now.wall_ms, now.steady_ms)), answer.size
