"""Reads why the Job controller could not make a pod: it says so in events alone."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping

from tpujob_operator.core.kinds import EVENT
from tpujob_operator.core.views import JobView
from tpujob_operator.shell.client import ApiError, Client

_log = logging.getLogger(__name__)
#: Jobs that are asked about in a pass: all are refused for the same reason, as a rule.
_MOST = 4


class JobEvents:
    """Looks at a few of the Jobs without pods."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def words_about(self, jobs: Iterable[JobView]) -> Mapping[str, str]:
        """The newest refusal by the Job's name, for those that have one."""
        asked = list(jobs)[:_MOST]
        found = await asyncio.gather(*map(self._newest, asked))
        return {job.name: words for job, words in zip(asked, found, strict=True) if words}

    async def _newest(self, job: JobView) -> str:
        query = {"fieldSelector": f"involvedObject.uid={job.uid},reason=FailedCreate"}
        path = EVENT.path(job.ref.namespace)
        try:
            page = await self._client.request("list", path, query=query, plural=EVENT.plural)
        except ApiError as error:
            _log.warning("events of Job %s cannot be read: %s", job.name, error.message)
            return ""
        newest = max(page["items"], key=_at, default=None)
        return str((newest or {}).get("message", ""))


def _at(event: Mapping[str, object]) -> str:
    return str(event.get("lastTimestamp") or event.get("eventTime") or "")
