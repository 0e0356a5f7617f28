"""Feeds the cache: Kopf's watches, a first listing before them, and an audit now and then.

Kopf is runtime and informer only (docs/decisions/0002): low-level event handlers keep
no state on objects, add no finalizer and are served by Kopf's reconnecting
watches. Two things are added. Before the watches start, everything is listed
once, because a handler is not told when the first listing is complete. And a
watch that lost its place begins again with a listing, which is silent about
objects that vanished meanwhile: the audit finds those.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from typing import Any

import kopf

from tpujob_operator.core.kinds import CHILDREN, NODE, TPU_TRAINING_JOB, Kind
from tpujob_operator.core.manifests.names import JOB_LABEL
from tpujob_operator.settings import Settings
from tpujob_operator.shell.cache import Cache
from tpujob_operator.shell.client import ApiError, Client, is_in_cluster
from tpujob_operator.shell.nodecache import NodeCache
from tpujob_tpu.catalogue import ACCELERATOR_LABEL

_log = logging.getLogger(__name__)
KINDS = (NODE, *CHILDREN, TPU_TRAINING_JOB)
_SELECTORS = {**dict.fromkeys(CHILDREN, JOB_LABEL), NODE: ACCELERATOR_LABEL}
#: An event that the audit finds missing may still be under way for so long.
_LAG_S = 10.0


class Informer:
    """Keeps a cache in step with the API server."""

    def __init__(self, settings: Settings, client: Client, cache: Cache, nodes: NodeCache) -> None:
        self._settings = settings
        self._client = client
        self._stores: dict[Kind, Cache | NodeCache] = dict.fromkeys(KINDS, cache)
        self._stores[NODE] = nodes
        self._audited_at = time.monotonic()
        self.stale_rounds = 0  # audits in a row that found the watches behind

    @property
    def age_s(self) -> float:
        """Seconds since the cache was last known to agree with the API server."""
        return time.monotonic() - self._audited_at

    async def list_all(self) -> None:
        """Fill the cache; children come first, so that no job is looked at without them."""
        for kind in KINDS:
            for obj in (await self._list(kind))[0]:
                self._stores[kind].observe(kind, None, obj)
        self._audited_at = time.monotonic()

    async def watch(self, stop: asyncio.Event, ready: asyncio.Event) -> None:
        """Run Kopf until ``stop`` is set.

        A watch that fails for good ends this with an exception, and the
        process is to end with it: a blind operator is worse than none.
        """
        namespaces = list(self._settings.watch_namespaces)
        await kopf.operator(
            registry=self._registry(),
            settings=_kopf_settings(),
            standalone=True,
            clusterwide=not namespaces,
            namespaces=namespaces,
            stop_flag=stop,
            ready_flag=ready,
        )

    async def audit(self) -> None:
        """Compare the cache with the API server for ever, and correct it."""
        while True:
            await asyncio.sleep(self._settings.audit_interval_s)
            try:
                found = sum([await self._audit(kind) for kind in KINDS])
            except ApiError as error:
                _log.warning("the audit of the cache failed: %s", error.message)
                continue
            self.stale_rounds = self.stale_rounds + 1 if found else 0
            self._audited_at = time.monotonic()
            if found:
                _log.warning("the watches had missed changes of %d objects", found)

    async def _audit(self, kind: Kind) -> int:
        listed, version = await self._list(kind)
        await asyncio.sleep(_LAG_S)
        store = self._stores[kind]
        gone = list(store.prune(kind, listed, version))
        for obj in gone:
            store.remove(kind, obj)
        # Unknown ones are left alone: they may have been deleted since the listing.
        behind = [obj for obj in listed if store.has(kind, obj) and store.put(kind, obj)]
        return len(gone) + len(behind)

    async def _list(self, kind: Kind) -> tuple[list[dict[str, Any]], int]:
        selector = _SELECTORS.get(kind, "")
        items: list[dict[str, Any]] = []
        version = 0
        for namespace in (None,) if kind is NODE else self._settings.watch_namespaces or (None,):
            try:
                page, version = await self._client.list(kind, namespace, selector)
            except ApiError as error:
                if not error.is_not_found:
                    raise
                _log.warning("%s is not served by the API server (yet)", kind.kind)
                continue
            items += page
        return items, version

    def _registry(self) -> kopf.OperatorRegistry:
        registry = kopf.OperatorRegistry()
        for kind in KINDS:
            handler = self._handler(kind)
            kopf.on.event(kind.group, kind.version, kind.plural, id=kind.plural, registry=registry)(
                handler
            )
        kopf.on.login(registry=registry)(_login)
        return registry

    def _handler(self, kind: Kind) -> Any:
        head = {"apiVersion": kind.api_version, "kind": kind.kind}

        async def take(event: Any, **_: Any) -> None:
            obj = {**head, **event["object"]}
            self._stores[kind].observe(kind, event["type"], obj)

        return take


def _login(**kwargs: Any) -> Any:
    if is_in_cluster(os.environ):
        return kopf.login_with_service_account(**kwargs)
    return kopf.login_via_client(**kwargs)


def _kopf_settings() -> kopf.OperatorSettings:
    settings = kopf.OperatorSettings()
    settings.posting.enabled = False
    for kind, selector in _SELECTORS.items():
        settings.watching.label_selectors[kind.group, kind.version, kind.plural] = selector
    # The process ends by itself on a lost watch; retries only bridge a restart of the server.
    settings.networking.error_backoffs = (0.2, 0.5, 1, 2, 5, 5, 5, 5, 5, 5)
    settings.watching.reconnect_backoff = 0.1
    settings.process.ultimate_exiting_timeout = 20
    return settings
