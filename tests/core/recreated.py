"""Worlds of jobs whose programs no agent runs, and what can become of their pods."""

from typing import Any

from tests.core.making import Object
from tests.core.world import World, job_object
from tests.specs import OWN_PROGRAM
from tpujob_operator.api.base import rfc3339

#: Between two looks at what has ended with an error.
GATHER_MS = 2_000
#: Until the watch of pods counts as no longer late.
UNSEEN_MS = 5_000


def settled(budgets: dict[str, int] | None = None, **spec: Any) -> World:
    """A world in which a job of two hosts runs."""
    recovery = {"pods": "Recreate", "budgets": budgets or {}}
    world = World(obj=job_object(**{**OWN_PROGRAM, "recovery": recovery, **spec}))
    world.settle()
    run(world)
    return world


def run(world: World) -> None:
    """All pods get nodes, and run."""
    world.run_pods()
    world.now_ms += 5_000
    world.settle()


def end(world: World, host: int, code: int, after_ms: int = 0, **terminated: Any) -> None:
    """The program of a host ends."""
    at = rfc3339(world.now_ms + after_ms)
    state = {"terminated": {"exitCode": code, "finishedAt": at, **terminated}}
    phase = "Failed" if code else "Succeeded"
    pod = pod_of(world, host)
    pod["status"] = {"phase": phase, "containerStatuses": [{"name": "main", "state": state}]}


def take(world: World, host: int, reason: str = "", after_ms: int = 0) -> None:
    """Kubernetes deletes the pod of a host, with a grace period of 30 s."""
    pod = pod_of(world, host)
    asked_ms = world.now_ms + after_ms
    pod["metadata"] |= {
        "deletionTimestamp": rfc3339(asked_ms + 30_000),
        "deletionGracePeriodSeconds": 30,
    }
    if reason:
        disruption = {"type": "DisruptionTarget", "status": "True", "reason": reason}
        pod["status"]["conditions"] = [disruption]


def pod_of(world: World, host: int) -> Object:
    """The pod of a host: each slice has one."""
    return world.pod(f"j-{world.status['attempt']}-slice-{host}")


def lose(world: World, after_ms: int = GATHER_MS) -> dict[str, Any]:
    """Let the operator see what has happened, gather and decide; the newest incident."""
    world.settle()
    world.now_ms += after_ms
    world.step()
    found: dict[str, Any] = world.status["incidents"][-1]
    return found
