"""Look-ups beside the watches: few of them, however much is wrong at once."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import web
from kubernetes.aio.client import Configuration

from tests.operator.test_cache import tpu_node
from tpujob_operator.core.kinds import NODE
from tpujob_operator.core.nodes import ZONE_LABEL, Pulse, is_mass_outage, take_pulse
from tpujob_operator.core.views import JobSetView, JobView
from tpujob_operator.shell.client import Client
from tpujob_operator.shell.jobevents import JobEvents
from tpujob_operator.shell.nodecache import NodeCache
from tpujob_operator.shell.pulses import Pulses
from tpujob_operator.shell.quota import Workloads

_START_MS = 1_790_000_000_000
_SILENT = {"spec": {"renewTime": "2026-01-01T00:00:00Z"}}


def _workloads(request: web.Request) -> web.Response:
    """Those of JobSets u0 to u9, of the older one of Kueue's versions."""
    if "v1beta2" in request.path:
        return web.Response(status=404)
    reserved = {"type": "QuotaReserved", "status": "False", "message": "not enough v5e"}
    items = [
        {
            "metadata": {"labels": {"kueue.x-k8s.io/job-uid": f"u{number}"}},
            "spec": {},
            "status": {"conditions": [reserved]},
        }
        for number in range(10)
    ]
    return web.json_response({"metadata": {"resourceVersion": "100"}, "items": items})


@contextlib.asynccontextmanager
async def client_of(asked: list[str], node: dict[str, Any] | None = None) -> AsyncIterator[Client]:
    """A client of a server that notes what is asked, and knows only nodes that are not Ready."""

    async def answer(request: web.Request) -> web.Response:
        asked.append(request.path)
        if request.path.endswith("/events"):
            message = f"refused, {len(asked)}"
            return web.json_response({"items": [{"message": message, "lastTimestamp": "x"}]})
        if request.path.endswith("/workloads"):
            return _workloads(request)
        is_lease = "/leases/" in request.path
        return web.json_response(_SILENT if is_lease else node or tpu_node(1))

    app = web.Application()
    app.router.add_get("/{path:.*}", answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    configuration = Configuration()
    configuration.host = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        async with Client(configuration) as client:
            yield client
    finally:
        await runner.cleanup()


async def test_a_zone_of_silent_nodes_is_asked_about_at_one_rate() -> None:
    """All jobs look every 2 s at all their nodes; two requests each were hundreds a second."""
    asked: list[str] = []
    names = [f"n{number}" for number in range(200)]
    async with client_of(asked) as client:
        pulses = Pulses(client)
        found: dict[str, Pulse] = {}
        for second in range(0, 20, 2):
            for first in range(0, 200, 50):
                now_ms = _START_MS + second * 1000
                found |= await pulses.take(names[first : first + 50], now_ms)
    looks = [path for path in asked if "/nodes/" in path]
    assert len(looks) <= 20 * 20 + 200  # the first look at each is not held up
    assert set(found) == set(names)


async def test_silence_is_proved_at_that_rate_too() -> None:
    """It takes no longer than the limit and one turn."""
    names = [f"n{number}" for number in range(40)]
    proofs: set[str] = set()
    async with client_of([]) as client:
        pulses = Pulses(client)
        for second in range(0, 66, 2):
            now_ms = _START_MS + second * 1000
            found = await pulses.take(names, now_ms)
            proofs |= {name for name in found if found[name].proof_of_death(60_000, now_ms)}
    assert proofs == set(names)


async def test_nobody_is_dead_while_most_are_silent(caplog: pytest.LogCaptureFixture) -> None:
    """What is lost then is the way to the control plane; the log says so, once."""
    is_outage = True
    async with client_of([]) as client:
        pulses = Pulses(client, lambda _: is_outage)
        for second in range(0, 200, 10):
            now_ms = _START_MS + second * 1000
            (pulse,) = (await pulses.take(["n"], now_ms)).values()
            assert not pulse.proof_of_death(60_000, now_ms)
        is_outage = False
        (pulse,) = (await pulses.take(["n"], now_ms + 60_000)).values()
        assert pulse.proof_of_death(60_000, now_ms + 60_000)
    assert caplog.text.count("most TPU nodes are not Ready at once") == 1


def test_a_deleted_node_is_gone_in_an_outage_too() -> None:
    """Somebody has said so."""
    assert take_pulse(None, None, None, _START_MS, is_outage=True) == Pulse(exists=False)


@pytest.mark.parametrize(
    ("unready", "total", "is_outage"),
    [(10, 10, False), (11, 11, True), (11, 22, False), (12, 22, True), (60, 1000, False)],
)
def test_most_nodes_and_more_than_a_few_make_an_outage(
    unready: int, total: int, *, is_outage: bool
) -> None:
    """One slice of one job that is lost as a whole is none."""
    assert is_mass_outage(unready, total) is is_outage
    nodes = NodeCache()
    for number in range(total):
        node: dict[str, Any] = tpu_node(1, uid=f"u{number}")
        node["metadata"]["name"] = f"n{number}"
        ready = {"type": "Ready", "status": "Unknown" if number < unready else "True"}
        nodes.put(NODE, node | {"status": {"conditions": [ready]}})
    assert nodes.is_mass_outage("") is is_outage
    nodes.prune(NODE, None, set(), 9)
    assert not nodes.is_mass_outage("")


@pytest.mark.parametrize("unready", [0, 30, 31, 60])
async def test_a_zone_that_is_cut_off_is_an_outage_of_its_own(unready: int) -> None:
    """Its 60 nodes are few of a thousand, and none of them is proved dead; others may be."""
    nodes = NodeCache()
    for number in range(1_000):
        node = _in_zone("b" if number < 60 else "a")
        node["metadata"] |= {"name": f"n{number}", "uid": f"u{number}"}
        ready = {"type": "Ready", "status": "Unknown" if number < unready else "True"}
        nodes.put(NODE, node | {"status": {"conditions": [ready]}})
    assert nodes.is_mass_outage("b") is (unready > 30)
    assert not nodes.is_mass_outage("a")
    for zone, is_spared in (("b", unready > 30), ("a", False)):
        assert await _is_spared(nodes, zone) is is_spared


def _in_zone(zone: str) -> dict[str, Any]:
    node: dict[str, Any] = tpu_node(1)
    node["metadata"]["labels"][ZONE_LABEL] = zone
    return node


async def _is_spared(nodes: NodeCache, zone: str) -> bool:
    """Whether a silent node of a zone counts as alive."""
    async with client_of([], _in_zone(zone)) as client:
        pulses = Pulses(client, nodes.is_mass_outage)
        await pulses.take(["n"], _START_MS)
        (pulse,) = (await pulses.take(["n"], _START_MS + 60_000)).values()
    return not pulse.proof_of_death(60_000, _START_MS + 60_000)


async def test_events_of_a_job_are_read_at_growing_intervals() -> None:
    """Each time the API server goes through all events of the namespace."""
    asked: list[str] = []
    now_s = 1000.0
    job = JobView(namespace="ns", name="j-1-slice-0", uid="u")
    async with client_of(asked) as client:
        events = JobEvents(client, lambda: now_s)
        words = []
        for _ in range(600):  # a pass every second
            words.append((await events.words_about([job]))[job.name])
            now_s += 1.0
    assert len(asked) == 7  # after 0, 5, 15, 35, 75, 155 and 315 s
    assert words[0] == words[4] == "refused, 1"
    assert words[-1] == "refused, 7"


async def test_jobs_that_wait_for_quota_share_a_listing() -> None:
    """A thousand queued jobs were a hundred listings a second, each a scan of the namespace."""
    asked: list[str] = []
    now_s = 0.0
    jobsets = [
        JobSetView(namespace="ns", name=f"j{number}-1", uid=f"u{number}", version=number)
        for number in range(11)
    ]
    async with client_of(asked) as client:
        workloads = Workloads(client, lambda: now_s)
        for _ in range(20):
            waits = await asyncio.gather(*map(workloads.wait_of, jobsets))
            now_s += 1.0
    listings = [path for path in asked if "v1beta1" in path]
    assert len(listings) == 2
    assert {wait.words for wait in waits[:10]} == {"not enough v5e"}
    assert "no Workload" in waits[10].words


async def test_a_listing_is_never_older_than_the_jobset() -> None:
    """Else the job would tell of an eviction in words of before."""
    asked: list[str] = []
    async with client_of(asked) as client:
        workloads = Workloads(client, lambda: 0.0)
        jobset = JobSetView(namespace="ns", name="j-1", uid="u0", version=100)
        for version in (100, 100, 101):
            await workloads.wait_of(dataclasses.replace(jobset, version=version))
    assert len([path for path in asked if "v1beta1" in path]) == 2
