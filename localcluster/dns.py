"""CoreDNS beside the control plane, and the Service by which pods reach it."""

from pathlib import Path

from localcluster.controlplane import Daemon
from localcluster.kubeapi import Object
from localcluster.layout import DNS_SERVICE_IP, Endpoints, Layout

PROBE_NAME = "kubernetes.default.svc.cluster.local"


def daemon(binary: Path, layout: Layout, endpoints: Endpoints) -> Daemon:
    """The server's process. Names outside the cluster do not exist: pods have no way out."""
    corefile = layout.root / "Corefile"
    corefile.write_text(
        f"""\
cluster.local:53 in-addr.arpa:53 ip6.arpa:53 {{
  bind {endpoints.host}
  errors
  kubernetes cluster.local in-addr.arpa ip6.arpa {{
    kubeconfig {layout.kubeconfig_of("extension")}
    ttl 5
  }}
}}
.:53 {{
  bind {endpoints.host}
  template ANY ANY {{
    rcode NXDOMAIN
  }}
}}
""",
        encoding="utf-8",
    )
    return Daemon("coredns", [str(binary), f"-conf={corefile}"])


def objects(endpoints: Endpoints) -> list[Object]:
    """The Service `kube-dns`, without selector, and its one endpoint."""
    ports = [
        {"name": "dns", "port": 53, "protocol": "UDP"},
        {"name": "dns-tcp", "port": 53, "protocol": "TCP"},
    ]
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "kube-dns", "namespace": "kube-system"},
        "spec": {"clusterIP": DNS_SERVICE_IP, "ports": ports},
    }
    slice_ = {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {
            "name": "kube-dns",
            "namespace": "kube-system",
            "labels": {"kubernetes.io/service-name": "kube-dns"},
        },
        "addressType": "IPv4",
        "endpoints": [{"addresses": [endpoints.host]}],
        "ports": ports,
    }
    return [service, slice_]
