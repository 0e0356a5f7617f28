"""Candidates for a Lease on the real API server: one leads, and the fence knows which."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from localcluster.cluster import Cluster
from tests.operator.clients import client_of
from tests.waiting import PATIENCE_S, until
from tpujob_operator.core.election import LeaseTiming
from tpujob_operator.core.kinds import LEASE
from tpujob_operator.shell.client import Client
from tpujob_operator.shell.lease import LeaseElection, LostLeaseError, NotLeaderError

pytestmark = pytest.mark.control_plane
_LONG = LeaseTiming(duration_s=600, renew_deadline_s=500, retry_s=0.2)
_SHORT = LeaseTiming(duration_s=1.0, renew_deadline_s=0.7, retry_s=0.2)


@pytest.fixture
async def client(control_plane: Cluster) -> AsyncIterator[Client]:
    """A client without limiter and fence."""
    async with client_of(control_plane) as made:
        yield made


def _candidate(client: Client, namespace: str, name: str, timing: LeaseTiming) -> LeaseElection:
    return LeaseElection(client, namespace, "operator", name, timing)


async def _lease(client: Client, namespace: str) -> dict[str, Any]:
    lease = await client.get(LEASE, namespace, "operator")
    assert lease is not None
    return lease


async def _renew_unanswered(client: Client, namespace: str) -> None:
    """What a renewal leaves behind whose answer the holder has not got."""
    stored = await _lease(client, namespace)
    stored["spec"]["renewTime"] = "2026-01-01T00:00:00.000000Z"
    await client.request("update", LEASE.path(namespace, "operator"), body=stored)


async def _is_renewed(client: Client, namespace: str, version: str) -> bool:
    return bool((await _lease(client, namespace))["metadata"]["resourceVersion"] != version)


async def test_one_leads_until_it_releases(client: Client, namespace: str) -> None:
    """The second waits for as long as the first renews, and leads once it has released."""
    first, second = (_candidate(client, namespace, name, _LONG) for name in "ab")
    await first.acquire()
    waiting = asyncio.create_task(second.acquire())
    keeping = asyncio.create_task(first.keep())
    version = (await _lease(client, namespace))["metadata"]["resourceVersion"]
    await until(lambda: _is_renewed(client, namespace, version), "a renewal")
    assert not waiting.done()
    with pytest.raises(NotLeaderError):
        second.write_time_s()
    keeping.cancel()
    await first.release()
    assert not first.is_leader
    await asyncio.wait_for(waiting, PATIENCE_S)
    spec = (await _lease(client, namespace))["spec"]
    assert (spec["holderIdentity"], spec["leaseTransitions"]) == ("b", 2)


async def test_renewal_without_an_answer_does_not_keep_the_lease(
    client: Client, namespace: str
) -> None:
    """The end cuts off a renewal that the API server makes all the same."""
    only = _candidate(client, namespace, "a", _LONG)
    await only.acquire()
    await _renew_unanswered(client, namespace)
    await only.release()
    assert not (await _lease(client, namespace))["spec"].get("holderIdentity")


async def test_silent_leader_is_followed_and_learns_of_it(client: Client, namespace: str) -> None:
    """Without renewals the fence closes before another one leads; the old one then ends."""
    first, second = (_candidate(client, namespace, name, _SHORT) for name in "ab")
    await first.acquire()
    await asyncio.wait_for(second.acquire(), PATIENCE_S)
    with pytest.raises(NotLeaderError):
        first.write_time_s()
    with pytest.raises(LostLeaseError, match="b holds Lease"):
        await asyncio.wait_for(first.keep(), PATIENCE_S)
    await first.release()  # is not its own any more
    assert (await _lease(client, namespace))["spec"]["holderIdentity"] == "b"


async def test_leader_after_an_outage_leads_on(client: Client, namespace: str) -> None:
    """Nobody has taken the Lease meanwhile: there is nothing to end for."""
    only = _candidate(client, namespace, "a", _SHORT)
    await only.acquire()
    await until(lambda: not only.is_leader, "a closed fence")
    async with _kept(only):
        await until(lambda: only.is_leader, "an open fence")
    assert (await _lease(client, namespace))["spec"]["leaseTransitions"] == 1


@contextlib.asynccontextmanager
async def _kept(candidate: LeaseElection) -> AsyncIterator[None]:
    keeping = asyncio.create_task(candidate.keep())
    async with asyncio.timeout(PATIENCE_S):
        yield
    assert not keeping.done()
    keeping.cancel()


async def test_deleted_lease_is_made_again_by_its_holder(client: Client, namespace: str) -> None:
    """Who waits lets it expire, so that the leader makes it again first."""
    first, second = (_candidate(client, namespace, name, _LONG) for name in "ab")
    await first.acquire()
    waiting = asyncio.create_task(second.acquire())
    # It has seen the Lease when it begins to sleep.
    await until(lambda: second._seen.holder, "a look at the Lease")
    await client.request("delete", LEASE.path(namespace, "operator"))
    async with _kept(first):
        await until(lambda: client.get(LEASE, namespace, "operator"), "the Lease")
    assert (await _lease(client, namespace))["spec"]["holderIdentity"] == "a"
    assert not waiting.done()
    waiting.cancel()


async def test_renewal_without_an_answer_is_found_again(client: Client, namespace: str) -> None:
    """The renewal happened, its answer was lost: the leader finds its own name, and leads on."""
    only = _candidate(client, namespace, "a", _LONG)
    await only.acquire()
    await _renew_unanswered(client, namespace)
    version = (await _lease(client, namespace))["metadata"]["resourceVersion"]
    async with _kept(only):
        await until(lambda: _is_renewed(client, namespace, version), "a renewal")
    assert only.is_leader


async def test_only_the_leader_writes(
    control_plane: Cluster, client: Client, namespace: str
) -> None:
    """The fence stops every write of a replica that does not lead, and no reading."""
    standby = _candidate(client, namespace, "a", _LONG)
    config_map = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "x", "namespace": namespace},
    }
    path = f"/api/v1/namespaces/{namespace}/configmaps"
    async with client_of(control_plane, fence=standby.write_time_s) as fenced:
        for verb in ("create", "patch", "update", "delete"):
            with pytest.raises(NotLeaderError):
                await fenced.request(verb, path, body=config_map)
        assert (await fenced.request("list", path))["metadata"]
        await standby.acquire()
        await fenced.request("create", path, body=config_map)


async def test_fence_that_closes_while_a_connection_is_made_lets_nothing_out(
    control_plane: Cluster, namespace: str
) -> None:
    """The fence is asked again when the connection stands, new or used before."""
    answers = [10.0]

    def fence() -> float:
        if not answers:
            raise NotLeaderError
        return answers.pop()

    path = f"/api/v1/namespaces/{namespace}/configmaps"
    body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "x"}}
    async with client_of(control_plane, fence=fence) as fenced:
        with pytest.raises(NotLeaderError):
            await fenced.request("create", path, body=body)
        names = [item["metadata"]["name"] for item in (await fenced.request("list", path))["items"]]
        answers.append(10.0)
        with pytest.raises(NotLeaderError):  # on the connection of the listing
            await fenced.request("create", path, body=body)
        assert "x" not in names
        assert not await _has(fenced, f"{path}/x")


async def _has(client: Client, path: str) -> bool:
    items = (await client.request("list", path.rpartition("/")[0]))["items"]
    return path.rpartition("/")[2] in [item["metadata"]["name"] for item in items]
