"""The operator as a whole: its parts, wired together, from start to stop."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import os
import signal
import socket
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from typing import Any

from tpujob_operator.core import families
from tpujob_operator.core.manifests.options import ManifestOptions
from tpujob_operator.core.plan import Plan, Tell
from tpujob_operator.core.samples import JobSample
from tpujob_operator.core.snapshot import JobKey, Snapshot
from tpujob_operator.settings import Settings
from tpujob_operator.shell.cache import Cache
from tpujob_operator.shell.client import Client, is_in_cluster, load_configuration
from tpujob_operator.shell.clock import Clock
from tpujob_operator.shell.coordinator_client import CoordinatorReaders
from tpujob_operator.shell.executor import Executor
from tpujob_operator.shell.informer import Informer
from tpujob_operator.shell.jobevents import JobEvents
from tpujob_operator.shell.jobsetkind import JobSetKind
from tpujob_operator.shell.jobstate import JobState
from tpujob_operator.shell.keys import Keys, load_keys
from tpujob_operator.shell.lease import Election, elections
from tpujob_operator.shell.limiter import Limiter
from tpujob_operator.shell.metrics import JobCollector, OperatorMetrics
from tpujob_operator.shell.nodecache import NodeCache
from tpujob_operator.shell.probes import serve_metrics, serve_probes
from tpujob_operator.shell.progress import Progress
from tpujob_operator.shell.pulses import Pulses
from tpujob_operator.shell.queue import KeyedQueue
from tpujob_operator.shell.quota import Workloads
from tpujob_operator.shell.reconcile import Reconciler, status_interval_ms
from tpujob_operator.shell.servedschema import ServedSchema
from tpujob_operator.shell.tainter import Tainter
from tpujob_operator.shell.tasks import drain, first_end
from tpujob_operator.shell.transport import DirectTransport, ProxyTransport

_log = logging.getLogger(__name__)
#: Passes under way at the end have this long to finish.
_DRAIN_S = 5.0


@dataclasses.dataclass(frozen=True, slots=True)
class Actor:
    """What runs in the leader alone, and the informer that it relies on."""

    informer: Informer
    reconciler: Reconciler
    tainter: Tainter
    is_tainting: bool
    served: ServedSchema

    def others(self) -> list[Coroutine[Any, Any, None]]:
        """What runs beside the workers."""
        return [self.tainter.run(is_on=self.is_tainting), self.served.run()]


class Operator:
    """One operator process."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._clock = Clock()
        self._queue: KeyedQueue[JobKey] = KeyedQueue()
        self._cache = Cache(self._changed, self._clock.steady_ms)
        self._nodes = NodeCache()
        self._states: dict[JobKey, JobState] = {}
        self._metrics = OperatorMetrics()
        self._progress = Progress(lambda: self._queue.oldest_age_s)
        self._is_ready = asyncio.Event()
        self._stop = asyncio.Event()
        self._is_acting = False

    async def run(self) -> None:
        """Run until SIGTERM or SIGINT; any part that fails ends the whole with its error.

        Raises:
            LostLeaseError: another replica has become the leader.
        """
        self._handle_signals()
        in_cluster = is_in_cluster(os.environ)
        options = self._options(await self._keys(in_cluster=in_cluster))
        async with self._clients(in_cluster=in_cluster) as (client, election):
            informer = Informer(self._settings, client, self._cache, self._nodes)
            served = ServedSchema(client)
            async with (
                self._watches(informer) as start,
                self._readers(election, options, in_cluster=in_cluster) as readers,
                self._servers(informer, election, served),
            ):
                reconciler = self._reconciler(client, options, readers, election, served)
                tainter = Tainter(client, self._nodes, self._states)
                is_tainting = self._settings.taint_suspects
                actor = Actor(informer, reconciler, tainter, is_tainting, served)
                await first_end(
                    self._serve(actor, election, start), informer.run(), self._wait_for_stop()
                )

    async def _wait_for_stop(self) -> None:
        await self._stop.wait()
        _log.info("the operator stops")

    def _changed(self, key: JobKey) -> None:
        if self._is_acting:
            self._queue.add(key)

    @contextlib.asynccontextmanager
    async def _clients(self, *, in_cluster: bool) -> AsyncIterator[tuple[Client, Election]]:
        """The client for everything, behind the fence, and the election with its own client."""
        settings = self._settings
        # Renewals of the Lease wait neither for the limiter nor for other requests.
        async with Client(
            await load_configuration(in_cluster=in_cluster), self._metrics.called
        ) as lease_client:
            election = elections(settings, lease_client)
            async with Client(
                await load_configuration(in_cluster=in_cluster),
                self._called,
                limiter=Limiter(settings.api_requests_per_s, settings.api_burst),
                fence=election.write_time_s,
            ) as client:
                yield client, election

    def _called(self, verb: str, resource: str, code: int, seconds: float) -> None:
        self._metrics.called(verb, resource, code, seconds)
        self._progress.beat_if_working()

    async def _serve(
        self, actor: Actor, election: Election, start: Callable[[], asyncio.Task[None]]
    ) -> None:
        """Watch at once, and act as soon and as long as this replica is the leader."""
        await actor.served.look()
        await actor.informer.list_all()
        start()
        await self._is_ready.wait()
        _log.info("the operator is ready")
        await election.acquire()
        # A task of its own: the Lease is renewed until the last pass has ended.
        keeping = asyncio.create_task(election.keep(), name="lease")
        try:
            await first_end(self._act(actor, election), keeping)
        finally:
            keeping.cancel()
            await asyncio.gather(keeping, return_exceptions=True)
            await election.release()

    async def _act(self, actor: Actor, election: Election) -> None:
        # The watches may be behind what the leader before has written last.
        await actor.informer.list_all()
        self._progress.beat()
        self._is_acting = True
        for key in self._cache.all_keys():
            self._queue.add(key)
        workers = [
            asyncio.create_task(actor.reconciler.work(), name=f"worker {index}")
            for index in range(self._settings.workers)
        ]
        try:
            await first_end(*workers, *actor.others())
        finally:
            self._queue.close()
            await drain(workers, _DRAIN_S if election.is_leader else 0)

    @contextlib.asynccontextmanager
    async def _watches(self, informer: Informer) -> AsyncIterator[Callable[[], asyncio.Task[None]]]:
        stop = asyncio.Event()
        tasks: list[asyncio.Task[None]] = []

        def start() -> asyncio.Task[None]:
            watching = informer.watch(stop, self._is_ready)
            tasks.append(asyncio.create_task(watching, name="kopf"))
            return tasks[0]

        try:
            yield start
        finally:
            stop.set()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _handle_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop.set)

    @contextlib.asynccontextmanager
    async def _readers(
        self, election: Election, options: ManifestOptions, *, in_cluster: bool
    ) -> AsyncIterator[CoordinatorReaders]:
        configuration = await load_configuration(in_cluster=in_cluster)
        configuration.connection_pool_maxsize = 0  # each coordinator holds one connection
        proxied = Client(configuration, self._metrics.called, fence=election.write_time_s)
        transport = self._transport(proxied, in_cluster=in_cluster)
        readers = CoordinatorReaders(
            transport,
            options,
            self._clock,
            self._states.get,
            self._wake,
        )
        try:
            yield readers
        finally:
            await readers.close()
            await transport.close()
            await proxied.close()

    def _wake(self, key: JobKey, state: JobState, is_urgent: bool) -> None:
        """A coordinator has told something; steps alone wait until the status may be written."""
        if is_urgent:
            self._queue.add(key)
        elif not state.failures:  # or else the next try is due already
            passed_ms = self._clock.steady_ms() - state.looked_ms
            wait_ms = status_interval_ms(len(self._states)) - passed_ms
            self._queue.add_after(key, wait_ms / 1000)

    def _transport(self, client: Client, *, in_cluster: bool) -> DirectTransport | ProxyTransport:
        access = self._settings.coordinator_access
        if access.startswith("http"):
            return DirectTransport(access)
        is_direct = access == "direct" or (access == "auto" and in_cluster)
        return DirectTransport() if is_direct else ProxyTransport(client)

    async def _keys(self, *, in_cluster: bool) -> Keys:
        """The operator's keys; whichever replica is first creates them, leader or not."""
        settings = self._settings
        if settings.operator_key:
            return Keys(settings.operator_key)
        configuration = await load_configuration(in_cluster=in_cluster)
        async with Client(configuration, self._metrics.called) as client:
            return await load_keys(client, settings.namespace, settings.key_secret)

    def _options(self, keys: Keys) -> ManifestOptions:
        settings = self._settings
        return ManifestOptions(
            operator_key=keys.current,
            previous_keys=keys.previous,
            operator_image=settings.operator_image,
            trainer_image=settings.trainer_image,
            image_pull_policy=settings.image_pull_policy,
            prices=settings.prices,
        )

    def _reconciler(
        self,
        client: Client,
        options: ManifestOptions,
        readers: CoordinatorReaders,
        election: Election,
        served: ServedSchema,
    ) -> Reconciler:
        async def tell(action: Tell) -> None:
            election.write_time_s()  # a coordinator obeys whoever tells it
            await readers.tell(action)

        settings = self._settings
        reconciler = Reconciler(
            cache=self._cache,
            queue=self._queue,
            states=self._states,
            executor=Executor(client, self._cache, socket.gethostname(), tell),
            jobset_kind=JobSetKind(client),
            nodes=self._nodes,
            pulses=Pulses(client, self._nodes.is_mass_outage),
            job_events=JobEvents(client),
            node_loss_ms=round(settings.node_loss_s * 1000),
            options=options,
            metrics=self._metrics,
            progress=self._progress,
            quota=Workloads(client).wait_of,
            served=served,
            clock=self._clock,
        )

        def follow(key: JobKey, snapshot: Snapshot | None, plan: Plan | None) -> None:
            if snapshot is None or plan is None:
                readers.forget(key)
            else:
                key_id = snapshot.jobset.key_id if snapshot.jobset else ""
                readers.follow(key, snapshot.uid, key_id, is_wanted=has_coordinator(snapshot))

        reconciler.watchers.append(follow)
        self._nodes.watchers.append(reconciler.touch_node)
        return reconciler

    @contextlib.asynccontextmanager
    async def _servers(
        self, informer: Informer, election: Election, served: ServedSchema
    ) -> AsyncIterator[None]:
        self._metrics.registry.register(JobCollector(self._samples, self._metrics.skipped))
        self._metrics.watch_gauges(
            {
                families.QUEUE_DEPTH: lambda: self._queue.depth,
                families.QUEUE_AGE: lambda: self._queue.oldest_age_s,
                families.WATCH_AGE: lambda: informer.age_s,
                families.LEADER: lambda: election.is_leader,
                families.CRD_LACKS: lambda: len(served.lacking),
                families.SILENT: lambda: sum(
                    1 for state in list(self._states.values()) if state.silent_since_ms
                ),
            }
        )
        probes, probe_port = await serve_probes(
            self._settings.probe_port, self._progress.fault, self._unreadiness
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
                at_ms=state.known_until_ms or self._clock.now().wall_ms,
                spec=obj.get("spec", {}),
                status=obj.get("status") or {},
            )


def has_coordinator(snapshot: Snapshot) -> bool:
    """Whether a job has a coordinator that runs: only then it has something to tell."""
    jobset = snapshot.jobset
    if jobset is None or jobset.is_suspended or jobset.is_completed or snapshot.is_deleting:
        return False
    return any(not pod.is_worker and pod.phase == "Running" for pod in snapshot.current_pods)
