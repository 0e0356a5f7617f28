"""The operator as a whole: its parts, wired together, from start to stop."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import os
import signal
import socket
from collections.abc import AsyncIterator, Callable, Iterator

from tpujob_operator.core import families
from tpujob_operator.core.manifests.options import ManifestOptions
from tpujob_operator.core.plan import Plan
from tpujob_operator.core.samples import JobSample
from tpujob_operator.core.snapshot import JobKey, Snapshot
from tpujob_operator.settings import Settings
from tpujob_operator.shell.cache import Cache
from tpujob_operator.shell.client import Client, is_in_cluster, load_configuration
from tpujob_operator.shell.clock import now_ms
from tpujob_operator.shell.coordinator_client import CoordinatorReaders
from tpujob_operator.shell.executor import Executor
from tpujob_operator.shell.informer import Informer
from tpujob_operator.shell.jobevents import JobEvents
from tpujob_operator.shell.jobsetkind import JobSetKind
from tpujob_operator.shell.jobstate import JobState
from tpujob_operator.shell.metrics import JobCollector, OperatorMetrics
from tpujob_operator.shell.nodecache import NodeCache
from tpujob_operator.shell.probes import serve_metrics, serve_probes
from tpujob_operator.shell.pulses import Pulses
from tpujob_operator.shell.queue import KeyedQueue
from tpujob_operator.shell.quota import wait_for_quota
from tpujob_operator.shell.reconcile import Reconciler, status_interval_ms
from tpujob_operator.shell.tainter import Tainter
from tpujob_operator.shell.transport import DirectTransport, ProxyTransport

_log = logging.getLogger(__name__)
#: A job that has waited this long for a worker means that the workers are stuck.
_STUCK_S = 120.0
_STALE_ROUNDS = 3


class Operator:
    """One operator process."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._queue: KeyedQueue[JobKey] = KeyedQueue()
        self._cache = Cache(self._queue.add)
        self._nodes = NodeCache()
        self._states: dict[JobKey, JobState] = {}
        self._metrics = OperatorMetrics()
        self._is_ready = asyncio.Event()
        self._stop = asyncio.Event()

    async def run(self) -> None:
        """Run until SIGTERM or SIGINT; any part that fails ends the whole with its error."""
        in_cluster = is_in_cluster(os.environ)
        configuration = await load_configuration(in_cluster=in_cluster)
        async with Client(configuration, self._metrics.called) as client:
            informer = Informer(self._settings, client, self._cache, self._nodes)
            # Kopf is the last to end: it waits for every task that it finds.
            async with (
                self._watches(informer) as start,
                self._readers(client, in_cluster=in_cluster) as readers,
                self._servers(informer),
            ):
                reconciler = self._reconciler(client, readers)
                reflecting = asyncio.create_task(informer.run(), name="reflectors")
                await informer.list_all()
                await self._run_parts(reconciler, start(), reflecting, *self._tainters(client))

    async def _run_parts(
        self,
        reconciler: Reconciler,
        watching: asyncio.Task[None],
        *others: asyncio.Task[None],
    ) -> None:
        own = [
            *others,
            asyncio.create_task(self._wait_for_stop(), name="stop"),
            *(
                asyncio.create_task(reconciler.work(), name=f"worker {index}")
                for index in range(self._settings.workers)
            ),
        ]
        try:
            done, _ = await asyncio.wait([watching, *own], return_when=asyncio.FIRST_COMPLETED)
            for part in done:
                part.result()  # raises what ended it
        finally:
            for part in own:
                part.cancel()
            await asyncio.gather(*own, return_exceptions=True)

    def _tainters(self, client: Client) -> list[asyncio.Task[None]]:
        if not self._settings.taint_suspects:
            return []
        tainter = Tainter(client, self._nodes, self._states)
        return [asyncio.create_task(tainter.run(), name="taints")]

    @contextlib.asynccontextmanager
    async def _watches(self, informer: Informer) -> AsyncIterator[Callable[[], asyncio.Task[None]]]:
        stop = asyncio.Event()
        tasks: list[asyncio.Task[None]] = []

        def start() -> asyncio.Task[None]:
            tasks.append(asyncio.create_task(informer.watch(stop, self._is_ready), name="kopf"))
            return tasks[0]

        try:
            yield start
        finally:
            stop.set()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _wait_for_stop(self) -> None:
        await self._is_ready.wait()
        # Kopf has put its own handlers in place; ours end the other parts first.
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop.set)
        _log.info("the operator is ready")
        await self._stop.wait()
        _log.info("the operator stops")

    @contextlib.asynccontextmanager
    async def _readers(
        self, client: Client, *, in_cluster: bool
    ) -> AsyncIterator[CoordinatorReaders]:
        transport = self._transport(client, in_cluster=in_cluster)
        readers = CoordinatorReaders(
            transport,
            self._settings.operator_key,
            self._states.get,
            self._wake,
        )
        try:
            yield readers
        finally:
            await readers.close()
            await transport.close()

    def _wake(self, key: JobKey, state: JobState, is_urgent: bool) -> None:
        """A coordinator has told something; steps alone wait until the status may be written."""
        if is_urgent:
            self._queue.add(key)
        elif not state.failures:  # or else the next try is due already
            wait_ms = state.looked_ms + status_interval_ms(len(self._states)) - now_ms()
            self._queue.add_after(key, wait_ms / 1000)

    def _transport(self, client: Client, *, in_cluster: bool) -> DirectTransport | ProxyTransport:
        access = self._settings.coordinator_access
        if access.startswith("http"):
            return DirectTransport(access)
        is_direct = access == "direct" or (access == "auto" and in_cluster)
        return DirectTransport() if is_direct else ProxyTransport(client)

    def _reconciler(self, client: Client, readers: CoordinatorReaders) -> Reconciler:
        settings = self._settings
        options = ManifestOptions(
            operator_key=settings.operator_key,
            operator_image=settings.operator_image,
            trainer_image=settings.trainer_image,
            image_pull_policy=settings.image_pull_policy,
            prices=settings.prices,
        )
        reconciler = Reconciler(
            cache=self._cache,
            queue=self._queue,
            states=self._states,
            executor=Executor(client, self._cache, socket.gethostname(), readers.tell),
            jobset_kind=JobSetKind(client),
            nodes=self._nodes,
            pulses=Pulses(client, lambda: self._nodes.is_mass_outage),
            job_events=JobEvents(client),
            node_loss_ms=round(settings.node_loss_s * 1000),
            options=options,
            metrics=self._metrics,
            quota=functools.partial(wait_for_quota, client),
        )

        def follow(key: JobKey, snapshot: Snapshot | None, plan: Plan | None) -> None:
            if snapshot is None or plan is None:
                readers.forget(key)
            else:
                readers.follow(key, snapshot.uid, is_wanted=has_coordinator(snapshot))

        reconciler.watchers.append(follow)
        self._nodes.watchers.append(reconciler.touch_node)
        return reconciler

    @contextlib.asynccontextmanager
    async def _servers(self, informer: Informer) -> AsyncIterator[None]:
        self._metrics.registry.register(JobCollector(self._samples))
        self._metrics.watch_gauges(
            {
                families.QUEUE_DEPTH: lambda: self._queue.depth,
                families.QUEUE_AGE: lambda: self._queue.oldest_age_s,
                families.WATCH_AGE: lambda: informer.age_s,
                families.SILENT: lambda: sum(
                    1 for state in list(self._states.values()) if state.silent_since_ms
                ),
            }
        )
        probes, probe_port = await serve_probes(
            self._settings.probe_port, lambda: self._fault(informer), self._unreadiness
        )
        metrics, metrics_port = await serve_metrics(
            self._settings.metrics_port, self._metrics.registry
        )
        _log.info("probes on port %d, metrics on port %d", probe_port, metrics_port)
        try:
            yield
        finally:
            await probes.cleanup()
            await metrics.cleanup()

    def _fault(self, informer: Informer) -> str:
        """What is wrong with the operator, in words; empty: nothing."""
        if self._queue.oldest_age_s > _STUCK_S:
            return f"a job has waited for a worker for {self._queue.oldest_age_s:.0f} s"
        if informer.age_s > _STALE_ROUNDS * self._settings.audit_interval_s + 60:
            return f"the cache was last known to be right {informer.age_s:.0f} s ago"
        return ""

    def _unreadiness(self) -> str:
        return "" if self._is_ready.is_set() else "the cache is being filled"

    def _samples(self) -> Iterator[JobSample]:
        for key, state in list(self._states.items()):
            obj = self._cache.job(key)
            if obj is None:
                continue
            yield JobSample(
                key=key,
                history=state.history,
                at_ms=state.known_until_ms or now_ms(),
                spec=obj.get("spec", {}),
                status=obj.get("status") or {},
            )


def has_coordinator(snapshot: Snapshot) -> bool:
    """Whether a job has a coordinator that runs: only then it has something to tell."""
    jobset = snapshot.jobset
    if jobset is None or jobset.is_suspended or jobset.is_completed or snapshot.is_deleting:
        return False
    return any(not pod.is_worker and pod.phase == "Running" for pod in snapshot.current_pods)
