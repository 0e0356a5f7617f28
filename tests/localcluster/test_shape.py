"""What a cluster is asked to be, and what follows from it without running anything."""

import json
import socket
import threading
from pathlib import Path

import pytest

from localcluster import cgroups, cli, controlplane, host, jobset, kwok, network, nodeinit
from localcluster.cache import locked
from localcluster.cluster import Cluster, NoClusterError
from localcluster.kubeapi import path_of
from localcluster.layout import Endpoints, Layout, Spec, State, free_ports
from localcluster.node import Node
from localcluster.template import full_name
from localcluster.tpu import tpu_labels


@pytest.mark.parametrize("name", ["", "-a", "a-", "A", "a_b", "a" * 33, "a/b"])
def test_bad_name_is_refused_with_the_rule(name: str) -> None:
    """A name that cannot be a folder, a link and a context is refused, saying what can."""
    with pytest.raises(ValueError, match="lower-case letters, digits and dashes"):
        Spec(name=name)


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ({"nodes": 0}, "from 1 to 100"),
        ({"nodes": 101}, "from 1 to 100"),
        ({"kwok": -1}, "negative"),
        ({"hosts_per_slice": 0}, "at least 1"),
    ],
)
def test_bad_shape_is_refused(shape: dict[str, int], message: str) -> None:
    """Numbers that make no cluster are refused before anything starts."""
    with pytest.raises(ValueError, match=message):
        Spec(**shape)  # type: ignore[arg-type]


def test_nodes_are_pooled_by_slice() -> None:
    """Every slice has a node pool of its own, as on GKE."""
    spec = Spec(nodes=4, hosts_per_slice=2)
    pools = [tpu_labels(spec, i)["cloud.google.com/gke-nodepool"] for i in range(4)]
    assert pools == ["slice-0", "slice-0", "slice-1", "slice-1"]


def test_one_real_node_has_no_tpus() -> None:
    """Pods that do not tolerate the TPU taint find a place."""
    assert Spec(nodes=2).real_nodes == ["node0", "node1", "cpu0"]
    assert Spec(control_plane_only=True).real_nodes == []


def test_simulated_nodes_stand_for_tpu_hosts() -> None:
    """Without real nodes kwok's take any pod, and one of them needs no toleration."""
    nodes = kwok.nodes(Spec(control_plane_only=True, kwok=2))
    tpus = {n["metadata"]["name"]: n["status"]["capacity"].get("google.com/tpu") for n in nodes}
    assert tpus == {"kwok-0": "4", "kwok-1": "4", "kwok-cpu0": None}
    assert nodes[-1]["spec"]["taints"] == []


def test_simulated_nodes_beside_real_ones_repel() -> None:
    """No pod that expects a container lands on a simulated node by chance."""
    (node,) = kwok.nodes(Spec(kwok=1, taint=False))
    assert [taint["key"] for taint in node["spec"]["taints"]] == ["kwok.x-k8s.io/node"]


def test_free_ports_are_free_and_distinct() -> None:
    """Every port can be bound, and none lies in the range of outgoing connections."""
    ports = free_ports(8)
    assert len(set(ports)) == 8
    for port in ports:
        assert port < 32000
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("127.0.0.1", port))


def test_state_survives_the_disk(tmp_path: Path) -> None:
    """What `up` records is what later commands read, and only the owner can."""
    state = State(Spec(nodes=3), Endpoints.in_subnet(200, 7), {"admin": "t"}, tied=True)
    path = tmp_path / "cluster.json"
    state.save(path)
    assert State.load(path) == state
    assert path.stat().st_mode & 0o077 == 0


def test_addresses_of_a_subnet_do_not_collide() -> None:
    """Bridge, nodes, pods and uplink of the largest cluster are disjoint."""
    pods = {network.pod_range(200, index) for index in range(101)}
    nodes = {network.node_address(200, index) for index in range(101)}
    assert len(pods) == len(nodes) == 101
    assert "10.200.0.0/24" not in pods
    assert "10.200.255.0/24" not in pods
    assert "10.200.0.1" not in nodes


def test_cgroup_hierarchies_of_both_versions() -> None:
    """Hybrid hosts have many hierarchies, modern ones a single one."""
    text = (
        "25 1 0:22 / /sys/fs/cgroup/cpu rw,relatime shared:1 - cgroup cgroup rw,cpu\n"
        "26 1 0:23 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n"
        "27 1 0:24 / /proc rw - proc proc rw\n"
    )
    found = [(str(h.mount), h.version) for h in cgroups.hierarchies(text)]
    assert found == [("/sys/fs/cgroup/cpu", 1), ("/sys/fs/cgroup/unified", 2)]


def test_webhooks_point_at_our_controller() -> None:
    """A webhook's Service becomes a URL, and pods of others are left alone."""
    webhook = {
        "clientConfig": {"service": {"name": "s", "namespace": "n", "path": "/mutate"}},
        "rules": [{"resources": ["pods"]}],
    }
    jobset.point_at(webhook, "https://127.0.0.1:9443", b"ca")
    assert webhook["clientConfig"] == {
        "url": "https://127.0.0.1:9443/mutate",
        "caBundle": "Y2E=",
    }
    assert "jobset-name" in json.dumps(webhook["objectSelector"])


@pytest.mark.parametrize(
    ("thing", "path"),
    [
        ({"apiVersion": "v1", "kind": "Node"}, "/api/v1/nodes/x"),
        (
            {"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "namespace": "n"},
            "/apis/discovery.k8s.io/v1/namespaces/n/endpointslices/x",
        ),
        (
            {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass"},
            "/apis/scheduling.k8s.io/v1/priorityclasses/x",
        ),
        (
            {"apiVersion": "kueue.x-k8s.io/v1beta1", "kind": "Topology"},
            "/apis/kueue.x-k8s.io/v1beta1/topologies/x",
        ),
        (
            {"apiVersion": "v1", "kind": "Endpoints", "namespace": "n"},
            "/api/v1/namespaces/n/endpoints/x",
        ),
        (
            {"apiVersion": "gateway.networking.k8s.io/v1", "kind": "Gateway", "namespace": "n"},
            "/apis/gateway.networking.k8s.io/v1/namespaces/n/gateways/x",
        ),
    ],
)
def test_path_of_an_object(thing: dict[str, str], path: str) -> None:
    """Objects of the core and of other groups, namespaced or not, have the right URL."""
    namespace = thing.pop("namespace", None)
    assert path_of({**thing, "metadata": {"name": "x", "namespace": namespace}}) == path


@pytest.mark.parametrize(
    ("short", "full"),
    [
        ("tpujob/operator:dev", "docker.io/tpujob/operator:dev"),
        ("python", "docker.io/library/python:latest"),
        ("localhost/a/b:1", "localhost/a/b:1"),
        ("example.com:5000/a", "example.com:5000/a:latest"),
    ],
)
def test_full_name_of_an_image(short: str, full: str) -> None:
    """Names are completed by Docker's rule, which is how containerd knows them."""
    assert full_name(short) == full


def test_node_files_hide_nothing_of_the_host(tmp_path: Path) -> None:
    """A node's own tree covers /run, /mnt and /var only, and has all its daemons."""
    layout = Layout(tmp_path)
    endpoints = Endpoints.in_subnet(200, 7)
    controlplane.write_credentials(layout, endpoints, controlplane.make_tokens(["node0"]))
    node = Node("node0", 0, Spec(), layout, endpoints)
    node.write_files()
    init = json.loads((node.folder / "init.json").read_text())
    mounts = nodeinit.Mounts(**init["mounts"])
    assert {Path(target).parts[1] for target in mounts.binds} == {"run", "mnt", "var"}
    assert [d["name"] for d in init["daemons"]] == ["containerd", "kubelet", "kube-proxy"]
    kubelet = json.loads((node.folder / "etc/kubelet.json").read_text())
    assert kubelet["registerWithTaints"][0]["key"] == "google.com/tpu"


def test_unknown_cluster_says_how_to_get_one(capsys: pytest.CaptureFixture[str]) -> None:
    """A command on a cluster that is not up fails with the command that brings it up."""
    with pytest.raises(NoClusterError, match="up --name nobody"):
        Cluster("nobody")
    assert cli.main(["status", "--name", "nobody"]) == 1
    assert "localcluster up --name nobody" in capsys.readouterr().err


def test_unfit_host_gets_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no cluster can run, one sentence names what would work."""
    monkeypatch.setattr("sys.platform", "darwin")
    reason = host.why_not(full=False)
    assert reason is not None
    assert "needs Linux" in reason
    assert "CLUSTER=kind" in reason


def test_down_of_nothing_is_fine(capsys: pytest.CaptureFixture[str]) -> None:
    """Bringing down what is not up succeeds and says so."""
    assert cli.main(["down", "--name", "nobody"]) == 0
    assert "not up" in capsys.readouterr().out


def test_unlinked_lock_locks_out_nobody(tmp_path: Path) -> None:
    """Who waited for a lock that its holder unlinked takes the new one, not the lost one."""
    path = tmp_path / "lock"
    waiting, entered = threading.Event(), threading.Event()

    def wait_and_enter() -> None:
        with locked(path, waiting.set):
            entered.set()
            assert path.exists()

    with locked(path):
        second = threading.Thread(target=wait_and_enter)
        second.start()
        assert waiting.wait(10)
        path.unlink()
        assert not entered.is_set()
    second.join(10)
    assert entered.is_set()
    assert path.exists()
