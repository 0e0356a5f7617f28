"""Keeps all jobs from suspected nodes for a while; only where the administrator wants it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping

from tpujob_operator.core import taints
from tpujob_operator.core.kinds import NODE, Ref
from tpujob_operator.core.nodes import SUSPECT_TAINT
from tpujob_operator.core.snapshot import JobKey
from tpujob_operator.shell.client import ApiError, Client
from tpujob_operator.shell.clock import wall_ms
from tpujob_operator.shell.jobstate import JobState
from tpujob_operator.shell.nodecache import NodeCache

_log = logging.getLogger(__name__)
_PERIOD_S = 30.0


class Tainter:
    """Taints nodes by what jobs of several namespaces suspect, and frees them in time."""

    def __init__(self, client: Client, nodes: NodeCache, states: Mapping[JobKey, JobState]) -> None:
        self._client = client
        self._nodes = nodes
        self._states = states
        self._refused: set[str] = set()  # nodes of which it has been told

    async def run(self, *, is_on: bool) -> None:
        """Look at the suspects for ever; if not ``is_on``, only free what is tainted."""
        while True:
            await (self.step(wall_ms()) if is_on else self.free())
            await asyncio.sleep(_PERIOD_S)

    async def step(self, at_ms: int) -> None:
        """Change the taints that are to be changed; what fails is tried again the next time."""
        suspects = [
            (key.namespace, suspect)
            for key, state in list(self._states.items())
            for suspect in taints.suspects_for_all(state.history, state.memory, at_ms)
        ]
        plan = taints.plan_taints(taints.agreed(suspects), self._nodes.all(), at_ms)
        for name, until_ms in {**plan.add, **dict.fromkeys(plan.remove, 0)}.items():
            await self._try(name, until_ms)

    async def free(self) -> None:
        """Take all of our taints away: the setting that made them is off."""
        for node in self._nodes.all():
            if node.suspected_until_ms:
                await self._try(node.name, 0)

    async def _try(self, name: str, until_ms: int) -> None:
        try:
            await self._taint(name, until_ms)
            self._refused.discard(name)
        except ApiError as error:
            if name not in self._refused:
                _log.warning(
                    "node %s keeps its taints: %s. To free it: kubectl taint nodes %s %s-",
                    name, error.message, name, SUSPECT_TAINT,
                )  # fmt: skip
            self._refused.add(name)

    async def _taint(self, name: str, until_ms: int) -> None:
        node = await self._client.get(NODE, None, name)
        if node is None:
            return
        meta = node["metadata"]
        body = {
            # A list can only be written as a whole: somebody else's change must not be lost.
            "metadata": {"resourceVersion": meta["resourceVersion"]},
            "spec": {"taints": taints.with_taint(node["spec"].get("taints") or (), until_ms)},
        }
        self._nodes.put(NODE, await self._client.patch(Ref(NODE, "", name, meta["uid"]), body))
        _log.info("node %s is %s", name, "tainted" if until_ms else "free of its taint again")
