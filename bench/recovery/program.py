"""The bundled trainer as all systems of the benchmark run it: given to ``python -c`` in its image.

With ``STOCK`` set, what it does about failures is undone, and JAX behaves as it ships: heartbeats
of 100 s, an exit that waits for peers, SIGTERM to JAX's preemption service, no look at the leader's
port, and JAX's own compilation cache alone.
"""

from __future__ import annotations

import os
import sys
import time
from contextlib import nullcontext
from pathlib import Path
from threading import Event
from typing import Any

#: Whoever finds this file stands still for ever, with the main thread.
BLOCK = "/tmp/block"  # noqa: S108 - a container has one of its own
HOSTS_PER_SLICE = 2
CONFIG = "CONFIG"  # variable with the trainer's configuration


def main() -> None:
    """Become the trainer."""
    _take_place()
    if os.environ.get("STOCK"):
        _as_jax_ships()
    elif "TPUJOB_CACHE_DIR" not in os.environ:
        rank = os.environ["JAX_PROCESS_ID"]
        os.environ["TPUJOB_CACHE_DIR"] = f"{os.environ['FOLDER']}/programs/{rank}"
    from tpujob_trainer import __main__ as trainer  # noqa: PLC0415 - the environment comes first
    from tpujob_trainer import telemetry  # noqa: PLC0415

    report = telemetry.report

    def report_unless_blocked(*report_of: Any, **options: Any) -> None:
        if Path(BLOCK).exists():
            Path(BLOCK).unlink()  # its successor in this container shall go on
            while True:
                time.sleep(1)
        report(*report_of, **options)

    telemetry.report = report_unless_blocked
    arguments = ["--config", f"env:{CONFIG}"]
    if os.environ.get("STOCK"):
        sys.exit(trainer.run(arguments))
    trainer.main(arguments)


def _take_place() -> None:
    """JobSet alone tells a pod its indices, and nobody makes JAX's variables of them."""
    if "JAX_PROCESS_ID" not in os.environ:
        host = int(os.environ["JOB_COMPLETION_INDEX"])
        rank = int(os.environ["SLICE"]) * HOSTS_PER_SLICE + host
        os.environ["JAX_PROCESS_ID"] = str(rank)


def _as_jax_ships() -> None:
    import jax  # noqa: PLC0415 - as above

    from tpujob_checkpoint import distributed  # noqa: PLC0415
    from tpujob_trainer import train  # noqa: PLC0415

    def join(world: distributed.World) -> None:
        jax.distributed.initialize(world.coordinator, world.num_processes, world.process_id)

    vars(distributed).update(join=join)
    vars(train).update(noticing_sigterm=lambda: nullcontext(Event()))  # never set
    jax.config.update("jax_compilation_cache_dir", f"{os.environ['FOLDER']}/jax-cache")
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)


if __name__ == "__main__":
    main()
