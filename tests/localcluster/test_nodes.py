"""Real nodes run real containers, resolve names, lose power and come back."""

import hashlib
import json
import os
import subprocess
import tarfile
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from localcluster import binaries, cgroups, host, imagearchive, images, processes
from localcluster.cluster import Cluster
from localcluster.kubeapi import is_listening
from localcluster.layout import Layout, Spec
from tests.waiting import wait_until

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(bool(host.why_not(full=True)), reason=str(host.why_not(full=True))),
]

_NAME = f"e2e-{uuid.uuid4().hex[:8]}"
_KUBELET_PORT = 10250
_POD = """
apiVersion: v1
kind: Pod
metadata: {name: NAME}
spec:
  terminationGracePeriodSeconds: 1
  nodeSelector: {kubernetes.io/hostname: NODE}
  tolerations: [{key: google.com/tpu, operator: Exists}]
  containers:
  - name: c
    image: tpujob/operator:dev
    command: [sleep, infinity]
    resources: {limits: {google.com/tpu: 4}}
    volumeMounts: [{name: shared, mountPath: /shared}]
  volumes: [{name: shared, hostPath: {path: /mnt/shared}}]
"""


@pytest.fixture(scope="module")
def running() -> Iterator[Cluster]:
    """A cluster with two TPU nodes and the operator's image."""
    archive = images.build("operator").path
    spec = Spec(name=_NAME, nodes=2, node_monitor_grace_s=20)
    with Cluster.up(spec, images=[archive], tied=True) as cluster:
        yield cluster


def _start(running: Cluster, name: str, node: str) -> None:
    running.kubectl("apply", "--filename=-", stdin=_POD.replace("NAME", name).replace("NODE", node))
    running.kubectl("wait", "--for=condition=Ready", f"pod/{name}", "--timeout=180s")


def _python(running: Cluster, pod: str, code: str) -> str:
    return running.kubectl("exec", pod, "--", "python", "-c", code).stdout.strip()


def _is_ready(running: Cluster, node: str) -> bool:
    path = '--output=jsonpath={.status.conditions[?(@.type=="Ready")].status}'
    return running.kubectl("get", "node", node, path).stdout == "True"


def _chips(running: Cluster, node: str) -> str:
    path = r"--output=jsonpath={.status.allocatable.google\.com/tpu}"
    return running.kubectl("get", "node", node, path).stdout


def test_nodes_look_like_tpu_hosts(running: Cluster) -> None:
    """Nodes are Ready and carry GKE's labels, taint and chips; one carries none."""
    assert all(_is_ready(running, node) for node in ("node0", "node1", "cpu0"))
    assert [_chips(running, node) for node in ("node0", "node1", "cpu0")] == ["4", "4", ""]
    labels = running.kubectl("get", "node", "node1", "--show-labels").stdout
    assert "cloud.google.com/gke-tpu-topology=2x4" in labels
    assert "cloud.google.com/gke-nodepool=slice-0" in labels


def test_pod_runs_and_resolves_names(running: Cluster) -> None:
    """A pod runs, finds the API server by name, and is told at once what does not exist."""
    _start(running, "names", "node0")
    find = "import socket; print(socket.gethostbyname('kubernetes.default.svc.cluster.local'))"
    assert _python(running, "names", find) == "10.96.0.1"
    with pytest.raises(subprocess.CalledProcessError):
        _python(running, "names", "import socket; socket.gethostbyname('nowhere.example.com')")
    running.kubectl("delete", "pod", "names")


def test_shared_folder_is_everywhere(running: Cluster) -> None:
    """What a pod writes to /mnt/shared is seen by pods of other nodes and by the host."""
    _start(running, "writer", "node0")
    _start(running, "reader", "node1")
    _python(running, "writer", "open('/shared/word', 'w').write('hello')")
    assert _python(running, "reader", "print(open('/shared/word').read())") == "hello"
    assert (running.shared_dir / "word").read_text() == "hello"
    running.kubectl("delete", "pod", "writer", "reader")


def test_power_cut_and_return(running: Cluster) -> None:
    """A node without power turns NotReady; with power again its pod runs, its chips are there."""
    _start(running, "victim", "node1")
    running.fail_node("node1")
    wait_until(lambda: not _is_ready(running, "node1"), "node1 is not Ready")
    running.heal_node("node1")
    wait_until(lambda: _is_ready(running, "node1"), "node1 is Ready")
    restarts = "--output=jsonpath={.status.containerStatuses[0].restartCount}"
    wait_until(
        lambda: running.kubectl("get", "pod", "victim", restarts).stdout == "1", "one restart"
    )
    assert _chips(running, "node1") == "4"
    running.kubectl("delete", "pod", "victim")


def test_cut_network_and_return(running: Cluster) -> None:
    """A node without network keeps its containers running."""
    _start(running, "island", "node0")
    _python(running, "island", "open('/tmp/alive', 'w')")
    where = '--output=jsonpath={.status.addresses[?(@.type=="InternalIP")].address}'
    address = running.kubectl("get", "node", "node0", where).stdout
    assert is_listening(address, _KUBELET_PORT)
    running.fail_node("node0", network=True)
    assert not is_listening(address, _KUBELET_PORT)
    running.heal_node("node0")
    wait_until(
        lambda: (
            running.kubectl("exec", "island", "--", "ls", "/tmp/alive", check=False).returncode == 0
        ),
        "the container is reached again",
    )
    running.kubectl("delete", "pod", "island")


def test_image_is_loaded_into_running_nodes(running: Cluster, tmp_path: Path) -> None:
    """Containers start from an image that was loaded after the cluster came up."""
    archive = _tiny_image(tmp_path)
    lines: list[str] = []
    running.load_image(archive, lines.append)
    assert [line.split()[-2] for line in lines] == ["node0", "node1", "cpu0"]
    running.kubectl("run", "tiny", "--image=test/tiny:1", "--restart=Never")
    running.kubectl("wait", "--for=condition=Ready", "pod/tiny", "--timeout=180s")
    running.kubectl("delete", "pod", "tiny", "--grace-period=1")


def _tiny_image(folder: Path) -> Path:
    """An image of one program, `test/tiny:1`, that no cluster has yet."""
    layer = folder / "layer.tar"
    with tarfile.open(layer, "w") as tar:
        tar.add(binaries.ensure({"pause"})["pause"], "tiny")
    digest = hashlib.sha256(layer.read_bytes()).hexdigest()
    config = {
        "architecture": "arm64" if os.uname().machine == "aarch64" else "amd64",
        "os": "linux",
        "config": {"Entrypoint": ["/tiny"]},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
    }
    archive = folder / "tiny.tar"
    imagearchive.write(archive, "test/tiny:1", json.dumps(config).encode(), {digest: layer})
    return archive


def test_bad_archive_is_refused(running: Cluster, tmp_path: Path) -> None:
    """A file that is no image is refused before any node is touched."""
    wrong = tmp_path / "wrong.tar"
    wrong.write_text("no tar at all")
    with pytest.raises(RuntimeError, match="is no docker-archive"):
        running.load_image(wrong)


def test_unknown_node_is_named_with_the_known(running: Cluster) -> None:
    """Failing a node that does not exist says which do."""
    with pytest.raises(ValueError, match="there are node0, node1, cpu0"):
        running.fail_node("node7")


def test_down_leaves_no_trace(tmp_path: Path) -> None:
    """No process, mount, link, namespace, cgroup or folder of a cluster outlives `down`."""
    name = f"{_NAME}-b"
    before = _host_state(name)
    cluster = Cluster.up(Spec(name=name, nodes=1), tied=True)
    (tmp_path / "kubeconfig").write_bytes(cluster.kubeconfig.read_bytes())
    cluster.down()
    assert _host_state(name) == before
    assert not Layout.of(name).root.exists()


def _host_state(name: str) -> dict[str, object]:
    """What of a cluster could be seen on the host; other clusters may come and go."""
    layout = Layout.of(name)
    mounts = Path("/proc/self/mountinfo").read_text()
    links = subprocess.run(["ip", "-brief", "link"], capture_output=True, text=True, check=True)
    return {
        "processes": list(processes.marked(layout.mark)),
        "mounts": [line for line in mounts.splitlines() if str(layout.root) in line],
        "cgroups": [h.mount for h in cgroups.hierarchies() if (h.mount / layout.cgroup).exists()],
        "forwarding": Path("/proc/sys/net/ipv4/ip_forward").read_text(),
        "bridges": [line for line in links.stdout.splitlines() if line.startswith("tpujob0")],
        "euid": os.geteuid(),
    }
