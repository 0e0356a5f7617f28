"""Reads a watch: one JSON object a line, for as long as the API server goes on."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator
from typing import Any, NamedTuple

import aiohttp

from tpujob_operator.core.kinds import Kind
from tpujob_operator.shell.client import ApiError, Client
from tpujob_operator.shell.jsontext import decoded

#: etcd takes objects of 1.5 MiB by default, and JSON is longer than what it stores.
MAX_LINE_BYTES = 16 * 2**20


class WatchEvent(NamedTuple):
    """What the API server tells of an object: ADDED, MODIFIED, DELETED, or BOOKMARK."""

    type: str
    obj: dict[str, Any]


async def watch(
    client: Client,
    kind: Kind,
    namespace: str | None,
    *,
    selector: str,
    version: int,
    lasts_s: float,
    stall_s: float,
) -> AsyncGenerator[WatchEvent]:
    """Watch a kind from a version on; the end is ordinary, and the next watch begins there.

    Args:
        client: to the API server.
        kind: what to watch.
        namespace: where; None: everywhere.
        selector: of labels.
        version: what has happened up to it is known.
        lasts_s: when the API server ends the watch.
        stall_s: silence after which it is given up; bookmarks come about every minute.

    Raises:
        ApiError: the watch was refused, broke, or tells of an error; 410: the version is too old.
    """
    query = {
        "watch": "1",
        "allowWatchBookmarks": "true",
        "resourceVersion": str(version),
        "timeoutSeconds": str(max(1, round(lasts_s))),
        "labelSelector": selector,
    }
    try:
        async with contextlib.aclosing(_lines(client, kind, namespace, query, stall_s)) as lines:
            async for line in lines:
                yield _event(decoded(line))
    except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
        raise ApiError(0, f"the watch of {kind.plural} broke: {error!r}") from error


async def _lines(
    client: Client, kind: Kind, namespace: str | None, query: dict[str, str], stall_s: float
) -> AsyncGenerator[bytes]:
    path = kind.path(namespace)
    async with client.open(path, query=query, plural=kind.plural, stall_s=stall_s) as content:
        rest = bytearray()
        async for chunk in content.iter_any():
            *whole, last = chunk.split(b"\n")
            for part in whole:
                yield bytes(rest + part)
                rest.clear()
            rest += last
            if len(rest) > MAX_LINE_BYTES:
                raise ApiError(0, f"an object of {kind.plural} is larger than {MAX_LINE_BYTES} B")


def _event(raw: Any) -> WatchEvent:
    if not isinstance(raw, dict) or not isinstance(raw.get("object"), dict):
        raise ApiError(0, "the watch tells of no object")
    obj = raw["object"]
    if raw.get("type") == "ERROR":
        raise ApiError(int(obj.get("code") or 0), str(obj.get("message", "the watch failed")))
    return WatchEvent(str(raw.get("type", "")), obj)
