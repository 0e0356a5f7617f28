"""Writes that are sent only while this replica may write, however long they waited."""

from __future__ import annotations

import contextlib
import contextvars
import ssl
from collections.abc import Callable, Iterator
from typing import Any

import aiohttp
from kubernetes.aio.client import Configuration
from kubernetes.aio.client.rest import RESTClientObject

#: Seconds that a write may take that is sent now; raises ApiError if none may be sent.
Fence = Callable[[], float]
#: Whether the request of this task is a write that has not been sent yet.
_is_unsent_write = contextvars.ContextVar("_is_unsent_write", default=False)


@contextlib.contextmanager
def sending(*, is_write: bool) -> Iterator[None]:
    """Send a request of this task: a write asks the fence again once it has its connection."""
    _is_unsent_write.set(is_write)
    try:
        yield
    finally:
        _is_unsent_write.set(False)


class FencedRest(RESTClientObject):
    """Connections of ``kubernetes.aio`` that let no write pass once the fence is closed."""

    def __init__(self, configuration: Configuration, fence: Fence) -> None:
        super().__init__(configuration)
        self._fence = fence

    def _create_connector(self) -> aiohttp.TCPConnector:
        return _FencedConnector(self._fence, self.maxsize, self.ssl_context)


class _FencedConnector(aiohttp.TCPConnector):
    """Waiting for a connection takes time: the fence is asked again right before the request."""

    def __init__(self, fence: Fence, limit: int, ssl_context: ssl.SSLContext) -> None:
        super().__init__(limit=limit, ssl=ssl_context)
        self._fence = fence

    async def connect(self, *args: Any, **kwargs: Any) -> Any:
        """A connection, if the request may still be sent."""
        connection = await super().connect(*args, **kwargs)
        if _is_unsent_write.get():
            try:
                self._fence()
            except BaseException:
                connection.release()
                raise
        return connection
