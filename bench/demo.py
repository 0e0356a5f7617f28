"""How long the demo's job stands still after each of its two faults, over several runs."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

from bench.figures import machine, show

_REPORT = Path(__file__).resolve().parent.parent / "build" / "demo" / "report.json"
#: Bars in seconds from the fault to the first finished step after it.
_BARS_S = {"process": 5.0, "preemption": 30.0}
_TITLES = {
    "process": "trainer killed (SIGKILL) → first resumed step",
    "preemption": "pod deleted → first resumed step",
}


def run(repeat: int) -> None:
    """Run the whole demo ``repeat`` times and print its times."""
    walls: list[float] = []
    resumed: dict[str, list[float]] = {cause: [] for cause in _BARS_S}
    for n in range(repeat):
        print(f"demo {n + 1} of {repeat}; {machine()}", flush=True)
        started = time.monotonic()
        done = subprocess.run([sys.executable, "-m", "demo"], check=False, capture_output=True)
        if done.returncode:
            print(done.stdout.decode(errors="replace")[-2000:])
            raise SystemExit(f"the demo failed with exit code {done.returncode}")
        walls.append(time.monotonic() - started)
        for incident in json.loads(_REPORT.read_text())["incidents"]:
            resumed[incident["cause"]].append(incident["recoveredAfterSeconds"])
    show("make demo, warm", walls, "s", 150.0)
    for cause, values in resumed.items():
        show(_TITLES[cause], values, "s", _BARS_S[cause])
