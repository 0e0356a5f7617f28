"""What a generation's order means for this pod: the trainer's environment, a leader's port."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import time
from pathlib import Path

from tpujob_agent.protocol import Env, Run

_LEADER_POLL_S = 0.01


def stacks_path(record: Path) -> Path:
    """The file for the trainer's stacks, beside its record."""
    return record.with_name(f"{record.name}-stacks")


def environment(run: Run, record: Path) -> dict[str, str | None]:
    """Variables of the trainer of a generation; None: to be unset."""
    ceiling = "" if run.step_ceiling is None else str(run.step_ceiling)
    # libtpu's own names, where the operator has set them for several slices. A world of one
    # slice has none of them, like a job of one slice: nothing is to go over the DCN.
    megascale = {
        "MEGASCALE_SLICE_ID": str(run.slice_id),
        "MEGASCALE_NUM_SLICES": str(run.num_slices),
        "MEGASCALE_COORDINATOR_ADDRESS": run.leader.rpartition(":")[0],
        "MEGASCALE_PORT": os.environ.get("MEGASCALE_PORT"),
    }
    is_multislice = run.num_slices > 1
    known = {name: value for name, value in megascale.items() if name in os.environ}
    return {name: value if is_multislice else None for name, value in known.items()} | {
        Env.RECORD: str(record),
        Env.STACKS: str(stacks_path(record)),
        Env.GENERATION: str(run.generation),
        Env.SLICE_ID: str(run.slice_id),
        Env.NUM_SLICES: str(run.num_slices),
        Env.STEP_CEILING: ceiling,
        Env.JAX_COORDINATOR_ADDRESS: run.leader,
        Env.JAX_NUM_PROCESSES: str(run.num_processes),
        Env.JAX_PROCESS_ID: str(run.process_id),
    }


def port_problem(leader: str) -> str:
    """Why the leader cannot listen on its port; empty when it can."""
    port = int(leader.rpartition(":")[2])
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("", port))
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            return f"port {port} of the leader is in use by another process"
        return f"cannot listen on the leader's port {port}: {error}"
    return ""


def await_leader(address: str, timeout_s: float) -> bool:
    """Whether the leader listens within this time.

    JAX's client sleeps for a second when it dials too early, so nobody dials before.
    """
    host, _, port = address.rpartition(":")
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError), socket.create_connection((host, int(port)), timeout=1.0):
            return True
        time.sleep(_LEADER_POLL_S)
    return False
