"""A control plane comes up, works, and leaves nothing behind, however it ends."""

import json
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from localcluster import cluster, host, kwok, processes
from localcluster.cluster import Cluster, NoClusterError
from localcluster.layout import Layout, Spec
from tests.waiting import wait_until

pytestmark = [
    pytest.mark.control_plane,
    pytest.mark.skipif(bool(host.why_not(full=False)), reason=str(host.why_not(full=False))),
]

_JOBSET = {
    "apiVersion": "jobset.x-k8s.io/v1alpha2",
    "kind": "JobSet",
    "metadata": {"name": "js"},
    "spec": {
        "replicatedJobs": [
            {
                "name": "slice",
                "replicas": 2,
                "template": {
                    "spec": {
                        "parallelism": 2,
                        "completions": 2,
                        "template": {
                            "spec": {
                                "restartPolicy": "OnFailure",
                                "tolerations": [{"key": "google.com/tpu", "operator": "Exists"}],
                                "containers": [
                                    {
                                        "name": "c",
                                        "image": "none",
                                        "resources": {"limits": {"google.com/tpu": 4}},
                                    }
                                ],
                            }
                        },
                    }
                },
            }
        ]
    },
}


def _values(running: Cluster, *arguments: str) -> list[str]:
    return running.kubectl("get", *arguments).stdout.split()


@pytest.fixture
def name() -> Iterator[str]:
    """A cluster name of this test's own, cleared in the end."""
    name = f"test-{uuid.uuid4().hex[:8]}"
    yield name
    cluster.down(name)


def _traces(name: str) -> list[object]:
    layout = Layout.of(name)
    return [*processes.marked(layout.mark), *([layout.root] if layout.root.exists() else [])]


def test_jobset_runs_on_simulated_nodes(name: str) -> None:
    """JobSets become Jobs and pods, pods run and end as their annotation says, down is clean."""
    running = Cluster.up(Spec(name=name, control_plane_only=True, kwok=4), tied=True)
    running.kubectl("create", "namespace", "ns")
    running.kubectl("--namespace=ns", "apply", "--filename=-", stdin=json.dumps(_JOBSET))
    phases = ("--namespace=ns", "pods", "--output=jsonpath={.items[*].status.phase}")
    wait_until(lambda: _values(running, *phases) == ["Running"] * 4, "running pods")
    jobs = _values(running, "--namespace=ns", "jobs", "--output=name")
    assert jobs == ["job.batch/js-slice-0", "job.batch/js-slice-1"]
    running.kubectl("--namespace=ns", "annotate", "pods", "--all", f"{kwok.EXIT_CODE}=0")
    state = ("--namespace=ns", "jobset", "js", "--output=jsonpath={.status.terminalState}")
    wait_until(lambda: _values(running, *state) == ["Completed"], "completed JobSet")
    running.down()
    assert _traces(name) == []


def test_simulated_pod_fails_as_asked(name: str) -> None:
    """A pod's exit code other than 0 is a failure that Kubernetes sees as such."""
    running = Cluster.up(Spec(name=name, control_plane_only=True, kwok=1), tied=True)
    running.kubectl("run", "p", "--image=none", "--restart=Never")
    phase = ("pod", "p", "--output=jsonpath={.status.phase}")
    wait_until(lambda: _values(running, *phase) == ["Running"], "running pod")
    running.kubectl("annotate", "pod", "p", f"{kwok.EXIT_CODE}=17")
    wait_until(lambda: _values(running, *phase) == ["Failed"], "failed pod")
    code = "--output=jsonpath={.status.containerStatuses[0].state.terminated.exitCode}"
    assert _values(running, "pod", "p", code) == ["17"]


def test_nothing_outlives_a_killed_supervisor(name: str) -> None:
    """After kill -9 of the supervisor no process stays, and the same name comes up again."""
    spec = Spec(name=name, control_plane_only=True)
    Cluster.up(spec, tied=True)
    pid = processes.Processes(Layout.of(name)).supervisor_pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not list(processes.marked(Layout.of(name).mark)), "no process is left")
    with pytest.raises(RuntimeError, match="was killed; bring it up anew"):
        Cluster(name).processes()
    with Cluster.up(spec, tied=True) as again:
        assert "default" in again.kubectl("get", "namespaces").stdout
    assert _traces(name) == []


def test_tied_cluster_ends_with_its_owner(name: str) -> None:
    """A killed owner takes its cluster along, and the next `up` of anybody clears the rest."""
    script = (
        "from localcluster.cluster import Cluster; from localcluster.layout import Spec;"
        f"Cluster.up(Spec(name={name!r}, control_plane_only=True), tied=True);"
        "print('ready', flush=True); import signal; signal.pause()"
    )
    root = Path(__file__).parents[2]
    with subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, cwd=root
    ) as owner:
        assert owner.stdout is not None
        assert any(line == "ready\n" for line in owner.stdout)
        owner.kill()
    wait_until(lambda: not list(processes.marked(Layout.of(name).mark)), "no process is left")
    other = f"{name}-b"
    with Cluster.up(Spec(name=other, control_plane_only=True), tied=True):
        assert _traces(name) == []
        with pytest.raises(NoClusterError):
            Cluster(name)


def test_two_clusters_live_side_by_side(name: str) -> None:
    """Clusters of different names share nothing."""
    other = f"{name}-b"
    with (
        Cluster.up(Spec(name=name, control_plane_only=True), tied=True) as first,
        Cluster.up(Spec(name=other, control_plane_only=True), tied=True) as second,
    ):
        first.kubectl("create", "namespace", "only-here")
        assert "only-here" not in second.kubectl("get", "namespaces").stdout


def test_failed_start_shows_the_guilty_log(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A control plane that does not come up says why, and leaves only its logs."""
    monkeypatch.setattr("localcluster.controlplane._advertised", lambda _: {"nonsense": "1"})
    with pytest.raises(RuntimeError, match="unknown flag: --nonsense"):
        Cluster.up(Spec(name=name, control_plane_only=True), tied=True)
    assert [path.name for path in Layout.of(name).root.iterdir()] == ["logs"]
    assert list(processes.marked(Layout.of(name).mark)) == []
