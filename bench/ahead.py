"""A job's first start with programs that were compiled while it waited, and without."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bench.figures import machine, show
from bench.installed import installed
from demo.__main__ import load_manifest, with_own_checkpoints
from demo.kube import Kube
from demo.watch import Watch
from localcluster.kubeapi import wait_for
from tpujob_agent.protocol import EventKind, Phase

_MANIFEST = Path(__file__).resolve().parent.parent / "examples" / "demo.yaml"
_LIMIT_S = 300.0


def run(repeat: int) -> None:
    """Start the demo's job by turns with and without ``preflight: Compile``; print its times."""
    times: dict[tuple[bool, str], list[float]] = {}
    with installed("bench-ahead", print) as (_, target):
        kube = Kube(target.kubeconfig, "bench-ahead")
        kube.ensure_namespace()
        manifest = load_manifest(_MANIFEST, target.volume)
        manifest["spec"]["trainer"]["config"]["steps"] = 2
        _start(kube, manifest, "warm-up", is_ahead=False)  # packs the data
        for n in range(repeat):
            for is_ahead in (False, True):
                print(f"{n + 1} of {repeat}, ahead: {is_ahead}; {machine()}", flush=True)
                for what, seconds in _start(kube, manifest, f"{n}-{is_ahead}", is_ahead).items():
                    times.setdefault((is_ahead, what), []).append(seconds)
    for (is_ahead, what), values in sorted(times.items(), key=lambda item: item[0][1]):
        show(f"{what}, {'compiled ahead' if is_ahead else 'without'}", values, "s")


def _start(kube: Kube, manifest: dict[str, Any], run_id: str, is_ahead: bool) -> dict[str, float]:
    """Seconds of the parts of a first start, of a job that waits for its hosts at first."""
    made = with_own_checkpoints(manifest, run_id)
    made["spec"]["preflight"] = "Compile" if is_ahead else "None"
    made["spec"]["trainer"]["config"]["checkpoint"] = {"keepPrograms": True}
    name = made["metadata"]["name"]
    _open_hosts(kube, is_open=False)
    kube.create_job(made)
    watch = Watch(kube, name)
    watch.start()
    try:
        if is_ahead:
            wait_for("the programs", lambda: _has_compiled(kube, f"{name}-programs"), _LIMIT_S, 0.5)
        _open_hosts(kube, is_open=True)
        wait_for("the end of the job", lambda: watch.has_ended, _LIMIT_S, 0.5)
    finally:
        watch.stop()
        _open_hosts(kube, is_open=True)
        kube.delete_job(name)
    return _parts(watch)


def _parts(watch: Watch) -> dict[str, float]:
    began = {
        str(event.data["phase"]): event.at_ms
        for event in watch.events
        if event.kind is EventKind.PHASE
    }
    started = next(e.at_ms for e in watch.events if e.kind is EventKind.GENERATION_STARTED)
    compiling_ms = began[Phase.SETUP.value] - began[Phase.COMPILE.value]
    whole_ms = began[Phase.TRAIN.value] - started
    return {"compile": compiling_ms / 1000, "trainers started → first step": whole_ms / 1000}


def _open_hosts(kube: Kube, *, is_open: bool) -> None:
    for node in kube.core.list_node().items:
        if "google.com/tpu" in (node.status.allocatable or {}):
            kube.core.patch_node(node.metadata.name, {"spec": {"unschedulable": not is_open}})


def _has_compiled(kube: Kube, job: str) -> bool:
    selector = f"batch.kubernetes.io/job-name={job}"
    pods = kube.core.list_namespaced_pod(kube.namespace, label_selector=selector).items
    return any(pod.status.phase == "Succeeded" for pod in pods)
