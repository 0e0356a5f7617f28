"""Reads why the Job controller could not make a pod: it says so in events alone."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import time
from collections.abc import Callable, Iterable, Mapping

from tpujob_operator.core.kinds import EVENT
from tpujob_operator.core.views import JobView
from tpujob_operator.shell.client import ApiError, Client

_log = logging.getLogger(__name__)
#: Jobs that are asked about in a pass: all are refused for the same reason, as a rule.
_MOST = 4
#: The API server reads all events of the namespace for an answer: each Job is asked about at
#: growing intervals, as the Job controller tries again.
_FIRST_S, _LONGEST_S = 5.0, 320.0
_FORGET_S = 2 * _LONGEST_S


@dataclasses.dataclass(frozen=True, slots=True)
class _Asked:
    """What was found about a Job."""

    at_s: float
    times: int = 0
    words: str = ""

    @property
    def next_s(self) -> float:
        return self.at_s + min(_LONGEST_S, _FIRST_S * float(1 << min(self.times, 10)))


class JobEvents:
    """Looks at a few of the Jobs without pods."""

    def __init__(self, client: Client, clock: Callable[[], float] = time.monotonic) -> None:
        self._client = client
        self._clock = clock
        self._asked: dict[str, _Asked] = {}  # by the Job's UID

    async def words_about(self, jobs: Iterable[JobView]) -> Mapping[str, str]:
        """The newest refusal by the Job's name, for those that have one."""
        self._forget()
        asked = list(jobs)[:_MOST]
        found = await asyncio.gather(*map(self._newest, asked))
        return {job.name: words for job, words in zip(asked, found, strict=True) if words}

    def _forget(self) -> None:
        oldest_s = self._clock() - _FORGET_S
        for uid in [uid for uid, asked in self._asked.items() if asked.at_s < oldest_s]:
            del self._asked[uid]

    async def _newest(self, job: JobView) -> str:
        known = self._asked.get(job.uid)
        if known is not None and self._clock() < known.next_s:
            return known.words
        # Another pass that comes meanwhile does not ask as well.
        words = known.words if known else ""
        times = known.times + 1 if known else 0
        self._asked[job.uid] = _Asked(self._clock(), times, words)
        words = await self._read(job, words)
        self._asked[job.uid] = _Asked(self._clock(), times, words)
        return words

    async def _read(self, job: JobView, before: str) -> str:
        query = {"fieldSelector": f"involvedObject.uid={job.uid},reason=FailedCreate"}
        path = EVENT.path(job.ref.namespace)
        try:
            page = await self._client.request("list", path, query=query, plural=EVENT.plural)
        except ApiError as error:
            _log.warning("events of Job %s cannot be read: %s", job.name, error.message)
            return before
        newest = max(page["items"], key=_at, default=None)
        return str((newest or {}).get("message", ""))


def _at(event: Mapping[str, object]) -> str:
    return str(event.get("lastTimestamp") or event.get("eventTime") or "")
