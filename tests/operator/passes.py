"""Passes over real jobs in the test's own process: made when the test asks, by clocks it sets."""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncIterator
from typing import Any

from localcluster.kubeapi import Object
from tests.operator.clients import HasKubeconfig, client_of
from tests.operator.rig import OPERATOR_KEY, Jobs
from tests.waiting import until
from tpujob_operator.core.kinds import JOB, JOB_SET, NODE, POD, TPU_TRAINING_JOB, Kind
from tpujob_operator.core.manifests.options import ManifestOptions
from tpujob_operator.core.plan import Tell
from tpujob_operator.core.snapshot import JobKey
from tpujob_operator.shell.cache import Cache
from tpujob_operator.shell.client import Client
from tpujob_operator.shell.clock import Clock
from tpujob_operator.shell.executor import Executor
from tpujob_operator.shell.jobevents import JobEvents
from tpujob_operator.shell.jobsetkind import JobSetKind
from tpujob_operator.shell.jobstate import JobState
from tpujob_operator.shell.metrics import OperatorMetrics
from tpujob_operator.shell.nodecache import NodeCache
from tpujob_operator.shell.progress import Progress
from tpujob_operator.shell.pulses import Pulses
from tpujob_operator.shell.queue import KeyedQueue
from tpujob_operator.shell.quota import Workloads
from tpujob_operator.shell.reconcile import Reconciler
from tpujob_operator.shell.servedschema import ServedSchema

NODE_LOSS_MS = 60_000
HOUR_MS = 3_600_000
_KINDS = (TPU_TRAINING_JOB, JOB_SET, JOB, POD)


class Machine:
    """Both clocks of a machine, which begin as those of the real one."""

    def __init__(self) -> None:
        self._wall_ns, self._monotonic_ns = time.time_ns(), time.monotonic_ns()
        self.clock = Clock(lambda: self._wall_ns, lambda: self._monotonic_ns)

    def wait(self, ms: int) -> None:
        """Time passes."""
        self._wall_ns += ms * 1_000_000
        self._monotonic_ns += ms * 1_000_000

    def set_wall(self, by_ms: int) -> None:
        """Somebody sets the clock."""
        self._wall_ns += by_ms * 1_000_000


class Passes:
    """An operator without watches: before each pass it lists what there is."""

    def __init__(self, client: Client, jobs: Jobs, machine: Machine) -> None:
        self.machine = machine
        self.jobs = jobs
        self.nodes = NodeCache()
        self._cache = Cache(lambda _: None, machine.clock.steady_ms)
        self._queue: KeyedQueue[JobKey] = KeyedQueue()
        self._states: dict[JobKey, JobState] = {}
        self._seen: set[JobKey] = set()
        self._reconciler = Reconciler(
            cache=self._cache,
            queue=self._queue,
            states=self._states,
            executor=Executor(client, self._cache, "test", _hear),
            jobset_kind=JobSetKind(client),
            nodes=self.nodes,
            pulses=Pulses(client, self.nodes.is_mass_outage),
            job_events=JobEvents(client),
            node_loss_ms=NODE_LOSS_MS,
            options=ManifestOptions(OPERATOR_KEY, "registry.test/operator:1", "registry.test/t:1"),
            metrics=OperatorMetrics(),
            progress=Progress(lambda: 0.0),
            quota=Workloads(client).wait_of,
            served=ServedSchema(client),
            clock=machine.clock,
        )

    def key(self, name: str) -> JobKey:
        """A job's key."""
        return JobKey(self.jobs.namespace, name)

    def state(self, name: str) -> JobState:
        """What is kept in memory of a job."""
        return self._states[self.key(name)]

    def look(self) -> None:
        """List all objects of the namespace."""
        for kind in _KINDS:
            listed = self.jobs.api.get(kind.path(self.jobs.namespace))
            version = int(listed["metadata"]["resourceVersion"])
            for item in listed["items"]:
                self._cache.put(kind, _of(kind, item), version)
            uids = {item["metadata"]["uid"] for item in listed["items"]}
            self._cache.prune(kind, self.jobs.namespace, uids, version)

    def know_node(self, name: str) -> None:
        """Take in a node as it is now."""
        self.nodes.put(NODE, self.jobs.api.get(NODE.path(None, name)))

    async def make(self, name: str, *, is_blind: bool = False) -> str:
        """One pass; ``is_blind``: by what was seen before.

        Raises:
            ApiError: a request that the pass depends on was refused.
        """
        if not is_blind:
            self.look()
        self._seen.add(self.key(name))
        return await self._reconciler.reconcile(self.key(name))

    async def make_until_running(self, name: str, node: str, pods: int = 3) -> list[Object]:
        """Passes until the job's pods are there; each gets the node, and runs."""

        async def are_there() -> bool:
            await self.make(name)
            return len(self.jobs.all(POD, name)) == pods

        await until(are_there, f"{pods} pods of {name}")
        return [self.jobs.run_pod(pod, node) for pod in self.jobs.all(POD, name)]

    async def settle(self, name: str) -> None:
        """Passes until there is nothing to do."""

        async def is_settled() -> bool:
            return await self.make(name) == "unchanged"

        await until(is_settled, f"a pass over {name} that changes nothing")

    def close(self) -> None:
        """Let no pass be due any more."""
        for key in self._seen:
            self._queue.forget(key)


def _of(kind: Kind, item: Object) -> Object:
    """An item of a list as an object: lists leave out what all items have in common."""
    return {"apiVersion": kind.api_version, "kind": kind.kind, **item}


async def _hear(_: Tell) -> None:
    """A coordinator hears everything."""


@contextlib.asynccontextmanager
async def passes_of(
    server: HasKubeconfig, jobs: Jobs, machine: Machine, **options: Any
) -> AsyncIterator[Passes]:
    """An operator of these jobs, new as after a restart; ``options`` are those of its client."""
    async with client_of(server, **options) as client:
        passes = Passes(client, jobs, machine)
        try:
            yield passes
        finally:
            passes.close()
