"""The interval that pays reaches a real program from what its own saves have cost."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path

from tests.agent.rig import rig
from tests.waiting import wait_until
from tpujob_agent.protocol import EventKind

PROGRAM = """
import time
import tpujob
tpujob.restored(0)
known = None
for step in range(1, 1_000_000):
    time.sleep(0.01)
    tpujob.step(step)
    if step % 50 == 0:
        tpujob.committed(step, blocked_s=0.05, lag_s=0.2)
    if tpujob.save_interval_s() != known:
        known = tpujob.save_interval_s()
        print(f"saves every {known} s", flush=True)
"""


def test_measured_saves_become_an_interval(tmp_path: Path) -> None:
    """Agent, coordinator and back: the program reads what the timeline says."""
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    with rig(tmp_path, slices=1, hosts=2) as made:
        made.config = dataclasses.replace(made.config, chips=5_000, plans_interval=True)
        made.start([sys.executable, str(program)])
        planned = made.wait_event(EventKind.INTERVAL)["data"]
        assert (planned["blockedMs"], planned["lagMs"]) == (50, 200)
        told = f"saves every {planned['intervalMs'] / 1000} s"
        agents = made.agents.values()
        wait_until(lambda: all(told in agent.text for agent in agents), "all programs are told")
