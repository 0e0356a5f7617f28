"""What Kueue says of JobSets that wait for quota: the words of their Workloads."""

from __future__ import annotations

import asyncio
import collections
import dataclasses
import math
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

from tpujob_operator.core.kinds import WORKLOADS, Kind
from tpujob_operator.core.quota import Wait, wait_of
from tpujob_operator.core.views import JobSetView
from tpujob_operator.shell.client import ApiError, Client

_JOB_UID_LABEL = "kueue.x-k8s.io/job-uid"
_NOT_INSTALLED = Wait(
    "nothing, as the API server does not know workloads.kueue.x-k8s.io. Install Kueue with its "
    "integration of JobSet, or remove spec.queue"
)
_NOT_SEEN = Wait("nothing yet: it has made no Workload of the JobSet")
#: Seconds for which a listing is believed; all jobs of a namespace that wait share it.
_BELIEVED_S = 10.0


@dataclasses.dataclass(frozen=True, slots=True)
class _Listing:
    """What the Workloads of a namespace say, by the UID of the JobSet that each is of."""

    at_s: float = -math.inf
    version: int = 0
    waits: Mapping[str, Wait] = dataclasses.field(default_factory=dict)
    otherwise: Wait = _NOT_SEEN


class Workloads:
    """Reads the Workloads of a namespace for all its jobs at once."""

    def __init__(self, client: Client, clock: Callable[[], float] = time.monotonic) -> None:
        self._client = client
        self._clock = clock
        self._listings: dict[str, _Listing] = {}
        self._locks: dict[str, asyncio.Lock] = collections.defaultdict(asyncio.Lock)

    async def wait_of(self, jobset: JobSetView) -> Wait:
        """Why Kueue has not admitted a JobSet; in words of ours where there are none of Kueue's.

        Kueue writes to the Workload before it suspends the JobSet: the listing that is used is
        never older than the JobSet.
        """
        async with self._locks[jobset.namespace]:
            listing = self._listings.get(jobset.namespace, _Listing())
            is_old = self._clock() - listing.at_s >= _BELIEVED_S
            if is_old or listing.version < jobset.version:
                listing = await self._list(jobset.namespace)
                self._listings[jobset.namespace] = listing
        return listing.waits.get(jobset.uid, listing.otherwise)

    async def _list(self, namespace: str) -> _Listing:
        for kind in WORKLOADS:
            try:
                return await self._list_of(kind, namespace)
            except ApiError as error:
                if not error.is_not_found:
                    words = Wait(f"what the operator could not read ({error.message})")
                    return _Listing(self._clock(), sys.maxsize, otherwise=words)
        return _Listing(self._clock(), sys.maxsize, otherwise=_NOT_INSTALLED)

    async def _list_of(self, kind: Kind, namespace: str) -> _Listing:
        listing = _Listing(self._clock())
        async for page, version in self._client.pages(kind, namespace, _JOB_UID_LABEL):
            waits = {_jobset_uid(workload): wait_of(workload) for workload in page}
            listing = _Listing(listing.at_s, version, {**listing.waits, **waits})
        return listing


def _jobset_uid(workload: Mapping[str, Any]) -> str:
    return str(workload["metadata"]["labels"][_JOB_UID_LABEL])
