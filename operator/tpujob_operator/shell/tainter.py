"""Keeps all jobs from suspected nodes for a while; only where the administrator wants it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping

from tpujob_operator.core import taints
from tpujob_operator.core.kinds import NODE, Ref
from tpujob_operator.core.snapshot import JobKey
from tpujob_operator.shell.client import ApiError, Client
from tpujob_operator.shell.clock import now_ms
from tpujob_operator.shell.jobstate import JobState
from tpujob_operator.shell.nodecache import NodeCache

_log = logging.getLogger(__name__)
_PERIOD_S = 30.0


class Tainter:
    """Taints nodes by what all jobs together suspect, and takes its taints away in time."""

    def __init__(self, client: Client, nodes: NodeCache, states: Mapping[JobKey, JobState]) -> None:
        self._client = client
        self._nodes = nodes
        self._states = states

    async def run(self) -> None:
        """Look at the suspects for ever."""
        while True:
            await asyncio.sleep(_PERIOD_S)
            await self.step(now_ms())

    async def step(self, at_ms: int) -> None:
        """Change the taints that are to be changed; what fails is tried again the next time."""
        suspects = [
            suspect
            for state in self._states.values()
            for suspect in taints.suspects_for_all(state.history, state.memory, at_ms)
        ]
        plan = taints.plan_taints(suspects, self._nodes.all(), at_ms)
        for name, until_ms in {**plan.add, **dict.fromkeys(plan.remove, 0)}.items():
            try:
                await self._taint(name, until_ms)
            except ApiError as error:
                _log.warning("node %s keeps its taints: %s", name, error.message)

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
