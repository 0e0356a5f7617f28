"""Logs of a job's containers: read once, or followed through restarts and replaced pods."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from kubernetes import client
from kubernetes.client.exceptions import ApiException

from tpujob_client.answers import explained
from tpujob_client.errors import ClusterError, NoLogsError, UnreachableError
from tpujob_client.job import Job
from tpujob_client.sources import Source, Wanted, place_of_rank, sources
from tpujob_client.watching import REQUEST_TIMEOUT_S, Watched

#: A log that is followed may be silent for so long.
_SILENT_S = 7 * 86_400.0
_NO_LOG = (400, 404)
#: A stream that is cut is opened again so often in a row, with so long between.
_TRIES = 30
_PAUSE_S = 1.0
_SKEW_S = 60


@dataclasses.dataclass(frozen=True, slots=True)
class LogLine:
    """A line that a container has printed."""

    worker: str  # slice/host
    text: str


class Logs:
    """Logs of the pods of one namespace."""

    def __init__(self, api_client: Any, namespace: str) -> None:
        self._api_client = api_client
        self._core: Any = client.CoreV1Api(api_client)  # has no types
        self._namespace = namespace

    def read(self, wanted: Wanted, *, previous: bool, tail: int | None) -> Iterator[LogLine]:
        """What there is at present, one container after the other.

        Raises:
            NoLogsError: nothing has been started there, or none a second time.
        """
        found = self._find(wanted)
        ready = [one for one in found if (one.restarted if previous else one.started)]
        if not ready:
            raise NoLogsError(_why_none(wanted, found, previous=previous))
        for source in ready:
            yield from self._lines(source, previous=previous, tail_lines=tail)

    def rank(self, wanted: Wanted, rank: int) -> Wanted:
        """The same of the worker that has this rank now."""
        lines = self.read(
            dataclasses.replace(wanted, coordinator=True, place=None), previous=False, tail=None
        )
        return dataclasses.replace(wanted, place=place_of_rank((one.text for one in lines), rank))

    def follow(
        self, wanted: Wanted, versions: Iterator[Job], tail: int | None
    ) -> Iterator[LogLine]:
        """What there is and what comes, of every run of the containers, until the job has ended.

        Args:
            wanted: whose logs.
            versions: the job as it changes.
            tail: so many lines of those that run already.
        """
        following = _Following()
        following.start(self._attach_last, following, wanted, versions)
        following.start(self._attach_running, following, wanted, tail, is_counted=False)
        try:
            yield from following.lines()
        finally:
            following.is_over = True

    def _attach_running(self, following: _Following, wanted: Wanted, tail: int | None) -> None:
        """Read every container that runs, as soon as it does."""
        list_it = functools.partial(
            self._core.list_namespaced_pod, self._namespace, label_selector=wanted.selector
        )
        watched = Watched(self._api_client, list_it, self._namespace, wanted.job)
        for change in watched.changes(None):
            if following.is_over:
                return
            for source in [] if change.is_gone else sources(change.items, wanted):
                self._attach(following, source, tail)
            tail = None

    def _attach_last(self, following: _Following, wanted: Wanted, versions: Iterator[Job]) -> None:
        """Wait for the end of the job, and read what came and went unseen."""
        for job in versions:
            if following.is_over:
                return
            if job.outcome:
                break
        for source in self._find(wanted):
            self._attach(following, source, None)

    def _attach(self, following: _Following, source: Source, tail: int | None) -> None:
        if source.started and following.takes(source):
            following.start(self._pass_on, following, source, tail)

    def _pass_on(self, following: _Following, source: Source, tail: int | None) -> None:
        options: dict[str, Any] = {"tail_lines": tail}
        last, heard_at, failures = "", 0.0, 0
        while True:
            lines = self._lines(source, follow=True, timestamps=True, **options)
            try:
                for stamp, line in after(last, lines):
                    if following.is_over:
                        return
                    following.tell(line)
                    last, heard_at, failures = stamp, time.monotonic(), 0
            except UnreachableError:
                failures += 1
                if failures == _TRIES:
                    raise
            else:
                return
            time.sleep(_PAUSE_S)
            if last:
                options = {"since_seconds": int(time.monotonic() - heard_at) + _SKEW_S}

    def _find(self, wanted: Wanted) -> list[Source]:
        with explained(self._api_client, self._namespace, wanted.job, "read pods of"):
            found = self._core.list_namespaced_pod(
                self._namespace,
                label_selector=wanted.selector,
                _request_timeout=REQUEST_TIMEOUT_S,
            )
        items: list[Mapping[str, Any]]
        items = self._api_client.sanitize_for_serialization(found)["items"]
        return sources(items, wanted)

    def _lines(self, source: Source, **options: Any) -> Iterator[LogLine]:
        given = {name: value for name, value in options.items() if value is not None}
        with explained(self._api_client, self._namespace, verb="read logs of"), _unless_gone():
            answer = self._core.read_namespaced_pod_log(
                source.pod,
                self._namespace,
                container=source.container,
                _preload_content=False,
                _request_timeout=(REQUEST_TIMEOUT_S, _SILENT_S),
                **given,
            )
            with contextlib.closing(answer):
                if answer.status >= 400:
                    raise ApiException(status=answer.status, reason=answer.reason)
                for line in _split(answer.stream(amt=None, decode_content=False)):
                    yield LogLine(source.worker, line)


class _Following:
    """What threads that read logs have to say, for one that listens."""

    def __init__(self) -> None:
        self.is_over = False  # nobody listens any more
        self._said: queue.SimpleQueue[LogLine | ClusterError | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._taken: set[tuple[str, int]] = set()
        self._open = 0  # threads that may still have something to say

    def start(self, work: Callable[..., None], *arguments: Any, is_counted: bool = True) -> None:
        """Do it in a thread; what goes wrong is told to the listener.

        Args:
            work: what is to be done.
            arguments: for it.
            is_counted: whether the listener waits for its end.
        """

        def guarded() -> None:
            try:
                work(*arguments)
            except ClusterError as error:
                self._said.put(error)
            finally:
                self._count(-is_counted)

        self._count(is_counted)
        threading.Thread(target=guarded, daemon=True).start()

    def takes(self, source: Source) -> bool:
        """Whether this run of a container is to be read: nobody reads it yet."""
        run = (source.uid, source.restarts)
        with self._lock:
            if run in self._taken:
                return False
            self._taken.add(run)
            return True

    def tell(self, line: LogLine) -> None:
        """A line was read."""
        self._said.put(line)

    def _count(self, more: int) -> None:
        with self._lock:
            self._open += more
            if more < 0 and not self._open:
                self._said.put(None)

    def lines(self) -> Iterator[LogLine]:
        """All lines until the last thread has ended."""
        while (said := self._said.get()) is not None:
            if isinstance(said, ClusterError):
                raise said
            yield said


def after(last: str, lines: Iterable[LogLine]) -> Iterator[tuple[str, LogLine]]:
    """Lines that begin with their time, without it, and the time; those up to ``last`` are known.

    A stream that was cut is opened again some time before the cut, as clocks differ.
    """
    for line in lines:
        time_of, _, text = line.text.partition(" ")
        stamp = time_of.rstrip("Z")  # or half a second would come after 51 hundredths
        if stamp > last:
            yield stamp, LogLine(line.worker, text)


def _split(chunks: Iterable[bytes]) -> Iterator[str]:
    rest = b""
    for chunk in chunks:
        *whole, rest = (rest + chunk).split(b"\n")
        yield from (line.decode(errors="replace") for line in whole)
    if rest:
        yield rest.decode(errors="replace")


@contextlib.contextmanager
def _unless_gone() -> Iterator[None]:
    """A pod that has gone, or a container that is being made anew, has no log to read."""
    try:
        yield
    except ApiException as error:
        if error.status not in _NO_LOG:
            raise


def _why_none(wanted: Wanted, found: Sequence[Source], *, previous: bool) -> str:
    if not found:
        which = "" if wanted.place is None else " as {}/{}".format(*wanted.place)
        attempt = "" if wanted.attempt is None else f" of attempt {wanted.attempt}"
        return (
            f"{wanted.job} has no pod{which}{attempt}: logs go with their pods, those of earlier "
            f"attempts too; kubectl tpujob status {wanted.job} says how the job is"
        )
    if previous:
        return "no container has been started a second time: leave out --previous"
    return (
        f"no container has been started yet: kubectl tpujob status {wanted.job} says what is "
        "waited for"
    )
