"""``python -m tpujob_coordinator``: serve one job until it is over."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import uuid
from collections.abc import Mapping
from typing import Any

from aiohttp import web

from tpujob_agent.protocol import CoordinatorConfig, Env
from tpujob_coordinator.core import Core
from tpujob_coordinator.http import Visitors, make_app
from tpujob_coordinator.link import Link
from tpujob_coordinator.lobby import Lobby
from tpujob_coordinator.membership import places
from tpujob_coordinator.shell import Clock, Shell, log
from tpujob_coordinator.stages import Stage

#: After the job has finished, how long the operator may take to read the end of the timeline.
ACKNOWLEDGE_S = 15.0
#: A suspended or deleted job ends the workers' pods and this one within so long of each other,
FAREWELL_BEGINS_S = 2.0
#: and the workers then have this long to save; the pod's grace period is a little longer.
FAREWELL_ENDS_S = 30.0
USAGE_ERROR = 64
#: Connections that have not proved themselves: two for each agent, and so many more.
SPARE_SEATS = 64


def settings(env: Mapping[str, str]) -> tuple[CoordinatorConfig, str]:
    """The configuration and the token.

    Raises:
        ValueError: a variable is missing or malformed.
    """
    text, token = env.get(Env.COORDINATOR_CONFIG, ""), env.get(Env.TOKEN, "")
    if not text or not token:
        raise ValueError(
            f"the variables {Env.COORDINATOR_CONFIG} and {Env.TOKEN} are needed: "
            "the operator sets them on the coordinator pod"
        )
    try:
        return CoordinatorConfig.from_json(text), token
    except (TypeError, ValueError) as error:
        raise ValueError(f"{Env.COORDINATOR_CONFIG} is malformed: {error}") from error


async def serve(config: CoordinatorConfig, token: str) -> int:
    """Serve until the job has finished (0) or SIGTERM (143)."""
    clock = Clock()
    shell = Shell(Core(config, uuid.uuid4().hex, clock.now_ms()), clock)
    visitors = Visitors()
    runner = web.AppRunner(make_app(shell, token, visitors), access_log=None)
    await runner.setup()
    assert runner.server is not None
    loop = asyncio.get_running_loop()
    receive = visitors.received_by(runner.server)
    pages = await loop.create_server(receive, None, config.http_port)
    lobby = Lobby(2 * places(config) + SPARE_SEATS)
    agents = await loop.create_server(
        lambda: Link(shell, token, lobby), None, config.agent_port, backlog=1024
    )
    end: asyncio.Future[int] = loop.create_future()
    leaving = _watch(end)
    jobs = [
        asyncio.create_task(_leave(shell, leaving, end)),
        asyncio.create_task(shell.tick_forever()),
        asyncio.create_task(_finished(shell, end)),
    ]
    exit_code = await end
    for job in jobs:
        job.cancel()
    agents.close()
    pages.close()
    await runner.cleanup()
    return exit_code


def _watch(end: asyncio.Future[int]) -> asyncio.Event:
    """End on a bug: a new coordinator rebuilds its state, a lame one never does.

    Returns what SIGTERM sets.
    """
    loop = asyncio.get_running_loop()
    leaving = asyncio.Event()

    def fail(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        loop.default_exception_handler(context)
        if not isinstance(context.get("exception"), OSError | None) and not end.done():
            end.set_result(1)

    loop.set_exception_handler(fail)
    loop.add_signal_handler(signal.SIGTERM, leaving.set)
    return leaving


async def _leave(shell: Shell, leaving: asyncio.Event, end: asyncio.Future[int]) -> None:
    """At SIGTERM: go at once if only this pod goes, else when the others have saved."""
    await leaving.wait()
    await shell.wait_farewell(FAREWELL_BEGINS_S, FAREWELL_ENDS_S)
    if not end.done():
        end.set_result(128 + signal.SIGTERM)


async def _finished(shell: Shell, end: asyncio.Future[int]) -> None:
    await shell.wait_for(Stage.FINISHED)
    await shell.wait_acknowledged(ACKNOWLEDGE_S)
    await shell.finish()
    if not end.done():
        end.set_result(0)


def main() -> int:
    """Entry point; returns the exit code."""
    try:
        config, token = settings(os.environ)
    except ValueError as error:
        log(str(error))
        return USAGE_ERROR
    return asyncio.run(serve(config, token))


if __name__ == "__main__":
    sys.exit(main())
