"""Feeds the caches: a reflector for each kind and namespace, and Kopf for the jobs.

Kopf is the controller of TPUTrainingJobs (docs/decisions/0002): its low-level event handler keeps
no state on objects and adds no finalizer. It does not say what has vanished between two of its
listings, so the jobs have a reflector, too (docs/decisions/0017).
"""

from __future__ import annotations

import asyncio
import functools
import itertools
import logging
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from typing import Any

import kopf

from tpujob_operator.core.kinds import CHILDREN, NODE, TPU_TRAINING_JOB
from tpujob_operator.core.manifests.names import JOB_LABEL
from tpujob_operator.settings import Settings
from tpujob_operator.shell.cache import Cache
from tpujob_operator.shell.client import Client, is_in_cluster
from tpujob_operator.shell.nodecache import NodeCache
from tpujob_operator.shell.reflector import Reflector, Scope
from tpujob_operator.shell.retries import backoff_s
from tpujob_operator.shell.tasks import in_own_loop
from tpujob_tpu.catalogue import ACCELERATOR_LABEL

_log = logging.getLogger(__name__)
_FIRST_RESTART_S, _LONGEST_RESTART_S = 0.5, 10.0


class Informer:
    """Keeps the caches in step with the API server."""

    def __init__(self, settings: Settings, client: Client, cache: Cache, nodes: NodeCache) -> None:
        self._namespaces: Sequence[str] = list(settings.watch_namespaces)
        self._cache = cache
        self._reflectors = [
            Reflector(
                client,
                scope,
                nodes if scope.kind is NODE else cache,
                relist_s=settings.audit_interval_s,
            )
            for scope in self._scopes()
        ]

    def _scopes(self) -> Iterator[Scope]:
        yield Scope(NODE, selector=ACCELERATOR_LABEL)
        for kind in (*CHILDREN, TPU_TRAINING_JOB):
            selector = JOB_LABEL if kind in CHILDREN else ""
            for namespace in self._namespaces or (None,):
                yield Scope(kind, namespace, selector)

    @property
    def age_s(self) -> float:
        """Seconds since the API server was last heard of the kind that was heard of least."""
        return max(reflector.age_s for reflector in self._reflectors)

    async def run(self) -> None:
        """Keep the caches in step for ever."""
        async with asyncio.TaskGroup() as group:
            for reflector in self._reflectors:
                group.create_task(reflector.run())

    async def list_all(self) -> None:
        """Wait until everything has been listed after this call, while ``run`` runs."""
        await asyncio.gather(*(reflector.relist() for reflector in self._reflectors))

    async def watch(self, stop: asyncio.Event, ready: asyncio.Event) -> None:
        """Run Kopf until ``stop`` is set.

        Kopf ends when a watch tells of an error. That is no reason to end the process: Kopf
        starts again, with a new listing. When it ends, it cancels every task of its event loop,
        so it has a loop of its own, in a thread; events come from there.
        """
        outer = asyncio.get_running_loop()
        failures = 0
        while True:
            try:
                await in_own_loop(functools.partial(self._run_kopf, outer, ready), stop)
                break
            except Exception as error:  # noqa: BLE001 - whatever ends Kopf
                delay_s = backoff_s(failures, _FIRST_RESTART_S, _LONGEST_RESTART_S)
                _log.warning("Kopf has ended, it starts again in %.1f s: %r", delay_s, error)
            await asyncio.sleep(delay_s)
            failures += 1

    async def _run_kopf(
        self, outer: asyncio.AbstractEventLoop, ready: asyncio.Event, stop: asyncio.Event
    ) -> None:
        is_ready: Future[None] = Future()
        is_ready.add_done_callback(lambda _: outer.call_soon_threadsafe(ready.set))
        await kopf.operator(
            registry=self._registry(outer),
            settings=_kopf_settings(),
            standalone=True,
            clusterwide=not self._namespaces,
            namespaces=self._namespaces,
            stop_flag=stop,
            ready_flag=is_ready,
        )

    def _registry(self, outer: asyncio.AbstractEventLoop) -> kopf.OperatorRegistry:
        registry = kopf.OperatorRegistry()
        kind = TPU_TRAINING_JOB
        head = {"apiVersion": kind.api_version, "kind": kind.kind}

        async def take(event: Any, **_: Any) -> None:
            obj = {**head, **event["object"]}
            act = self._cache.remove if event["type"] == "DELETED" else self._cache.put
            outer.call_soon_threadsafe(act, kind, obj)

        kopf.on.event(kind.group, kind.version, kind.plural, id=kind.plural, registry=registry)(
            take
        )
        kopf.on.login(registry=registry)(_login)
        return registry


class _EndlessBackoffs:
    """Kopf asks for these anew with each request; it gives up when they end."""

    def __iter__(self) -> Iterator[float]:
        return itertools.chain((0.2, 0.5, 1.0, 2.0, 5.0), itertools.repeat(10.0))


def _login(**kwargs: Any) -> Any:
    if is_in_cluster(os.environ):
        return kopf.login_with_service_account(**kwargs)
    return kopf.login_via_client(**kwargs)


def _kopf_settings() -> kopf.OperatorSettings:
    settings = kopf.OperatorSettings()
    settings.posting.enabled = False
    settings.networking.error_backoffs = _EndlessBackoffs()
    settings.watching.reconnect_backoff = 0.1
    # It would end the whole process by SIGKILL, after what has only ended Kopf.
    settings.process.ultimate_exiting_timeout = None
    return settings
