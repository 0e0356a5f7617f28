"""``make demo``: a real cluster, one TPUTrainingJob, two faults, and a report of every second."""

from __future__ import annotations

import argparse
import copy
import dataclasses
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml
from rich.console import Console

from demo import clusters, install, picture, reference, report, timeline
from demo.kube import Kube
from demo.view import View
from demo.watch import Watch
from faults import catalogue
from faults.scene import Place, Scene
from tpujob_agent.protocol import EventKind

_ROOT = Path(__file__).resolve().parent.parent
_MANIFEST = _ROOT / "examples" / "demo.yaml"
_OUT = _ROOT / "build" / "demo"
_NAMESPACE = "demo"
_TIMEOUT_S = 600.0


@dataclasses.dataclass(frozen=True, slots=True)
class _Planned:
    """A fault to make once the job has reached a step."""

    name: str
    at_step: int
    place: Place


_FAULTS = (
    _Planned("kill-trainer", 60, Place(1, 1)),
    _Planned("delete-pod", 120, Place(0, 1)),
)


class Demo:
    """One run of the demo."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._started = time.monotonic()
        self._made: list[catalogue.Made] = []
        self._run_id = time.strftime("%Y%m%d-%H%M%S")

    def run(self, cluster: str, *, keep: bool) -> int:
        """Run it all; the exit code."""
        self.say(f"cluster: {clusters.choose(cluster)}")
        target = clusters.prepare(cluster, self.say, tied=not keep)
        try:
            return self._run_on(target)
        finally:
            if keep:
                self._say_how_to_look_around(target)
            else:
                self.say("taking the cluster down")
                target.down()

    def say(self, text: str) -> None:
        """A line of progress with the time since the start."""
        self._console.print(f"[dim]\\[{time.monotonic() - self._started:4.0f}s][/dim] {text}")

    def _run_on(self, target: clusters.Target) -> int:
        self.say("installing the operator with its Helm chart")
        install.install(target.kubeconfig, target.chart_values)
        kube = Kube(target.kubeconfig, _NAMESPACE)
        kube.ensure_namespace()
        manifest = load_manifest(_MANIFEST, target.volume)
        steps = int(manifest["spec"]["trainer"]["config"]["steps"])
        watch = self._train(kube, manifest, _FAULTS)
        known = reference.is_known(manifest, target.image_key)
        if not known:
            self.say("first run of this image here: the same job once more, with no fault")
        course = reference.losses_of(
            manifest, target.image_key, lambda: self._uninterrupted(kube, manifest)
        )
        result = report.build(watch.job, watch.losses, course, steps=steps, faults=len(_FAULTS))
        self._show(watch, result)
        return 0 if not result.problems else 1

    def _train(self, kube: Kube, manifest: dict[str, Any], to_make: tuple[_Planned, ...]) -> Watch:
        name = manifest["metadata"]["name"]
        steps = int(manifest["spec"]["trainer"]["config"]["steps"])
        kube.delete_job(name)
        kube.create_job(with_own_checkpoints(manifest, self._run_id))
        watch = Watch(kube, name)
        watch.start()
        self.say(f"applied TPUTrainingJob {name}: {steps} steps on 2 slices of 2 hosts")
        with View(self._console, watch, steps=steps) as view:
            for fault in to_make:
                self._make(fault, kube, watch, view.tick)
            ended = watch.wait(lambda: watch.has_ended, _TIMEOUT_S, tick=view.tick)
        watch.stop()
        self.say(f"{name}: {watch.state}" if ended else f"{name} did not end in {_TIMEOUT_S:.0f} s")
        return watch

    def _make(self, fault: _Planned, kube: Kube, watch: Watch, tick: Callable[[], None]) -> None:
        watch.wait(lambda: watch.has_ended or watch.step >= fault.at_step, _TIMEOUT_S, tick=tick)
        if watch.has_ended or watch.step < fault.at_step:
            return  # the report says what is missing
        at_step = watch.step
        scene = Scene(kube, watch.job["metadata"]["name"])
        made = catalogue.make(fault.name, scene, fault.place)
        self._made.append(made)
        self.say(f"[red]fault[/red] at step {at_step}: {made.title} ({made.target})")

    def _uninterrupted(self, kube: Kube, manifest: dict[str, Any]) -> dict[int, float]:
        quiet = copy.deepcopy(manifest)
        quiet["metadata"]["name"] = "uninterrupted"
        quiet["spec"]["checkpoint"]["directory"] += "-uninterrupted"
        watch = self._train(kube, quiet, ())
        if watch.state != "Succeeded":
            raise RuntimeError(f"the uninterrupted run failed: {report.why(watch.status)}")
        return watch.losses

    def _show(self, watch: Watch, result: report.Report) -> None:
        result.write(_OUT / "report.json")
        self._console.print()
        report.show(result, self._console)
        self._draw(watch, result)
        self._tell_faults(result)
        verdict = "succeeded" if not result.problems else "[bold red]failed[/bold red]"
        shown = _OUT.relative_to(_ROOT)
        self.say(f"demo {verdict}: {shown}/report.json, {shown}/timeline.png")

    def _tell_faults(self, result: report.Report) -> None:
        for made, incident in zip(self._made, result.incidents, strict=False):
            resumed = report.resumed_at_ms(incident)
            if resumed:
                seconds = (resumed - made.at_ms) / 1000
                self.say(f"{made.title} → first resumed step: {seconds:.2f} s after the command")

    def _draw(self, watch: Watch, result: report.Report) -> None:
        if not watch.events:
            return
        created = report.milliseconds(watch.job["metadata"]["creationTimestamp"])
        end = created + round(result.wall_seconds * 1000)
        picture.draw(
            _OUT / "timeline.png",
            stretches=timeline.stretches(created, watch.events, end),
            steps=[
                (int(e.data["endedAtMs"]), int(e.data["lastStep"]))
                for e in watch.events
                if e.kind is EventKind.PROGRESS
            ],
            losses=result.losses,
            incidents=[
                {"atSeconds": (made.at_ms - created) / 1000, "label": made.title}
                for made in self._made
            ],
            title=f"TPUTrainingJob demo: {100 * result.goodput_ratio:.1f} % goodput "
            f"in {result.wall_seconds:.1f} s, {len(result.incidents)} incidents",
        )

    def _say_how_to_look_around(self, target: clusters.Target) -> None:
        self.say("the cluster stays up (KEEP=1); look around with")
        if target.kubeconfig:
            self._console.print(f"  export KUBECONFIG={target.kubeconfig}")
        for command in (
            "kubectl -n demo get tpujob,jobsets,pods -o wide",
            "kubectl -n demo describe tpujob demo",
            "kubectl -n demo logs demo-1-coordinator-0-0 # and so on",
            "make down  # when you have seen enough",
        ):
            self._console.print(f"  {command}")


def load_manifest(path: Path, volume: dict[str, Any]) -> dict[str, Any]:
    """The job of a file, with its volume ``shared`` as this cluster has it."""
    manifest: dict[str, Any] = yaml.safe_load(path.read_text())
    for entry in manifest["spec"]["trainer"]["volumes"]:
        if entry["name"] == "shared":
            entry.clear()
            entry.update({"name": "shared", **volume})
    return manifest


def with_own_checkpoints(manifest: dict[str, Any], run_id: str) -> dict[str, Any]:
    """The job with a directory of its own: in an old one it would resume at the last step."""
    fresh = copy.deepcopy(manifest)
    fresh["spec"]["checkpoint"]["directory"] += f"-{run_id}"
    return fresh


def main(argv: list[str] | None = None) -> int:
    """Entry point of ``python -m demo``."""
    parser = argparse.ArgumentParser(prog="demo", description=__doc__)
    parser.add_argument("--cluster", choices=["auto", "local", "kind", "current"], default="auto")
    parser.add_argument("--keep", action="store_true", help="leave the cluster up")
    args = parser.parse_args(argv)
    console = Console(highlight=False, soft_wrap=not sys.stdout.isatty())
    try:
        return Demo(console).run(args.cluster, keep=args.keep)
    except clusters.UnfitError as error:
        console.print(f"[bold red]make demo cannot run here:[/bold red] {error}")
        return 2


if __name__ == "__main__":
    sys.exit(main())
