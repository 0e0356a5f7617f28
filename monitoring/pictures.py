"""Pictures of the dashboards, drawn with Grafana's own panels from the series of a Prometheus.

``python -m monitoring.pictures http://localhost:9090 --namespace N --job J`` needs Node and npm;
panels and a browser come from npm into the machine's cache, half a gigabyte, once.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import re
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from localcluster.cache import cache_dir, locked
from monitoring import dashboards

_SOURCES = Path(__file__).parent / "grafana"
_POINTS = 300
#: Labels and points (Unix time, value) of each series of an expression.
Series = list[tuple[Mapping[str, str], list[tuple[float, float]]]]
Ask = Callable[[str], Series]


def board(name: str, content: str, ask: Ask, values: Mapping[str, str]) -> dict[str, Any]:
    """A dashboard's file with the data of its panels, as ``board.jsx`` takes it."""
    given = json.loads(content)
    panels = [_panel(panel, ask, values) for panel in given["panels"]]
    rows = max(panel["at"]["y"] + panel["at"]["h"] for panel in panels)
    return {"name": name, "title": given["title"], "rows": rows, "panels": panels}


def _panel(panel: Mapping[str, Any], ask: Ask, values: Mapping[str, str]) -> dict[str, Any]:
    defaults = panel["fieldConfig"]["defaults"]
    stacking = defaults.get("custom", {}).get("stacking", {}).get("mode", "none")
    return {
        "title": panel["title"],
        "type": panel["type"],
        "unit": defaults["unit"],
        "isStacked": stacking == "normal",
        "at": panel["gridPos"],
        "series": [
            _series(points, _legend(target["legendFormat"], labels))
            for target in panel["targets"]
            for labels, points in _shown(panel, ask(_filled(target["expr"], values)))
        ],
    }


def _shown(panel: Mapping[str, Any], found: Series) -> Series:
    """Bars show what there is in the end; curves also what there was."""
    if panel["type"] != "bargauge":
        return found
    end = max((points[-1][0] for _, points in found), default=0.0)
    return [(labels, points) for labels, points in found if points[-1][0] == end]


def _filled(expression: str, values: Mapping[str, str]) -> str:
    for name, value in values.items():
        expression = expression.replace(f"${name}", value)
    return expression


def _legend(form: str, labels: Mapping[str, str]) -> str:
    if form == "__auto":
        return ""
    return re.sub(r"{{(\w+)}}", lambda found: labels.get(found[1], ""), form)


def _series(points: list[tuple[float, float]], name: str) -> dict[str, Any]:
    times, values = [1000 * at for at, _ in points], [value for _, value in points]
    return {"name": name, "times": times, "values": values}


class Prometheus:
    """Range queries over one span of time."""

    def __init__(self, url: str, start_s: float, end_s: float) -> None:
        self._url = url
        self._start_s, self._end_s = start_s, end_s

    def ask(self, expression: str) -> Series:
        """All series of an expression; values that are no numbers are left out."""
        step_s = max(1.0, (self._end_s - self._start_s) / _POINTS)
        span = {"start": self._start_s, "end": self._end_s, "step": step_s}
        query = urllib.parse.urlencode({"query": expression, **span})
        with urllib.request.urlopen(f"{self._url}/api/v1/query_range?{query}") as answer:  # noqa: S310 - the user names it
            found = json.load(answer)["data"]["result"]
        told = [(series["metric"], numbers(series["values"])) for series in found]
        return [(labels, points) for labels, points in told if points]


def numbers(values: Iterable[tuple[float, str]]) -> list[tuple[float, float]]:
    """The points that are numbers: a share of nothing is none, and JSON has no word for it."""
    return [(at, float(value)) for at, value in values if math.isfinite(float(value))]


def draw(boards: Sequence[Mapping[str, Any]], folder: Path) -> None:
    """Write a PNG of each board.

    Raises:
        RuntimeError: Node is missing, or a step failed; the message says which.
    """
    if shutil.which("npm") is None:
        raise RuntimeError("pictures need Node 20 with npm: install them, then run this again")
    lock = (_SOURCES / "package-lock.json").read_bytes()
    place = cache_dir("pictures", hashlib.sha256(lock).hexdigest()[:12])
    with locked(place / "lock"), tempfile.TemporaryDirectory() as drafts:
        shutil.copytree(_SOURCES, place, dirs_exist_ok=True)
        if not (place / "installed").exists():
            _run(place, "npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund")
            (place / "installed").touch()
        _run(
            place, "node_modules/.bin/esbuild", "board.jsx", "--bundle", "--minify",
            "--outfile=board.js", "--define:global=window", "--loader:.ttf=empty",
            '--define:process.env.NODE_ENV="production"', "--log-level=error",
        )  # fmt: skip
        data = Path(drafts) / "boards.json"
        data.write_text(json.dumps(boards))
        folder.mkdir(parents=True, exist_ok=True)
        _run(place, "node", "shoot.mjs", str(data), str(folder.resolve()))


def _run(place: Path, *command: str) -> None:
    done = subprocess.run(command, cwd=place, check=False, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(
            f"{' '.join(command[:2])} failed:\n{(done.stdout + done.stderr)[-2000:]}"
        )


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(prog="python -m monitoring.pictures", description=__doc__)
    parser.add_argument("url", help="address of a Prometheus")
    parser.add_argument("--namespace", required=True)
    parser.add_argument("--job", required=True)
    parser.add_argument("--end", type=float, default=time.time(), help="Unix time; default: now")
    parser.add_argument("--seconds", type=float, default=3600.0, help="how far back (3600)")
    parser.add_argument("--out", type=Path, default=Path("docs/images/dashboards"))
    given = parser.parse_args(arguments)
    start_s = given.end - given.seconds
    prometheus = Prometheus(given.url, start_s, given.end)
    values = {"namespace": given.namespace, "job": given.job, "__rate_interval": "30s"}
    span = {"fromMs": 1000 * start_s, "toMs": 1000 * given.end}
    boards = [
        board(name.removesuffix(".json"), content, prometheus.ask, values) | span
        for name, content in dashboards.outputs()
    ]
    draw(boards, given.out)
    print(f"wrote {len(boards)} pictures to {given.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
