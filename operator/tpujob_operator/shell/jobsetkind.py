"""Whether the cluster knows JobSet: asked once, and again only while it does not."""

import asyncio
import time

from tpujob_operator.core.kinds import JOB_SET
from tpujob_operator.shell.client import Client

#: Seconds for which a negative answer is believed; all waiting jobs share one question.
_BELIEVED_S = 5.0


class JobSetKind:
    """Remembers whether JobSet is installed."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._is_served = False
        self._asked_at = float("-inf")
        self._lock = asyncio.Lock()

    async def is_served(self) -> bool:
        """Whether JobSets can be made.

        Raises:
            ApiError: the API server does not answer.
        """
        async with self._lock:
            if not self._is_served and time.monotonic() - self._asked_at >= _BELIEVED_S:
                self._is_served = await self._client.is_served(JOB_SET)
                self._asked_at = time.monotonic()
            return self._is_served

    def suspect(self) -> None:
        """Ask again next time: the API server has said that it knows no such kind."""
        self._is_served = False
        self._asked_at = float("-inf")
