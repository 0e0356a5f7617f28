"""HTTP for kubelet and Prometheus: /healthz, /readyz and /metrics."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from aiohttp import web
from prometheus_client import CollectorRegistry, disable_created_metrics
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

Check = Callable[[], str]


def _probe(check: Check) -> Callable[[web.Request], web.StreamResponse]:
    """A handler that answers 200, or 503 with the words of a check that finds fault."""

    async def answer(_: web.Request) -> web.StreamResponse:
        fault = check()
        return web.Response(text=f"{fault or 'ok'}\n", status=503 if fault else 200)

    return answer  # type: ignore[return-value] # aiohttp's own signature is narrower


async def serve_probes(port: int, healthy: Check, ready: Check) -> tuple[web.AppRunner, int]:
    """Serve the probes; returns the runner to clean up, and the port."""
    app = web.Application()
    app.router.add_get("/healthz", _probe(healthy))  # type: ignore[arg-type] # as above
    app.router.add_get("/readyz", _probe(ready))  # type: ignore[arg-type] # as above
    return await _serve(app, port)


async def serve_metrics(port: int, registry: CollectorRegistry) -> tuple[web.AppRunner, int]:
    """Serve /metrics in Prometheus' text format; returns the runner and the port."""

    async def answer(_: web.Request) -> web.Response:
        # With a thousand jobs this takes a second, in which the operator must not stand still.
        body = await asyncio.to_thread(generate_latest, registry)
        return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE_LATEST})

    # A timestamp beside every counter would double their number. The function has no types.
    disable_created_metrics()  # type: ignore[no-untyped-call]
    app = web.Application()
    app.router.add_get("/metrics", answer)
    return await _serve(app, port)


async def _serve(app: web.Application, port: int) -> tuple[web.AppRunner, int]:
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    # All interfaces of both families; a free port is the same one in a single family only.
    site = web.TCPSite(runner, None if port else "127.0.0.1", port)
    await site.start()
    return runner, int(runner.addresses[0][1])
