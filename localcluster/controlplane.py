"""The control plane's processes: their command lines and credentials."""

import base64
import json
import secrets
from dataclasses import dataclass, field
from pathlib import Path

from localcluster.certs import Authority, signing_key
from localcluster.layout import SERVICE_CIDR, Endpoints, Layout, Spec

ADMIN = "admin"
# name -> (user name, groups): the stock identities, so that RBAC's own roles apply.
_COMPONENTS = {
    ADMIN: ("admin", "system:masters"),
    "kube-controller-manager": ("system:kube-controller-manager", ""),
    "kube-scheduler": ("system:kube-scheduler", ""),
    "kube-proxy": ("system:kube-proxy", ""),
    # What runs outside the cluster on its behalf: JobSet, kwok, CoreDNS.
    "extension": ("localcluster:extension", "system:masters"),
}


@dataclass(frozen=True)
class Daemon:
    """A process for the supervisor to hold."""

    name: str
    argv: list[str]
    env: dict[str, str] = field(default_factory=dict)
    restart: bool = True


def make_tokens(nodes: list[str]) -> dict[str, str]:
    """A bearer token for every component and node."""
    return {name: secrets.token_hex(16) for name in [*_COMPONENTS, *nodes]}


def write_credentials(layout: Layout, endpoints: Endpoints, tokens: dict[str, str]) -> None:
    """Make keys, certificates, the token file and everybody's kubeconfig."""
    authority = Authority(layout.pki)
    service = ["kubernetes", "kubernetes.default", "kubernetes.default.svc", "localhost"]
    addresses = {endpoints.host, "127.0.0.1", SERVICE_CIDR.rsplit(".", 1)[0] + ".1"}
    authority.issue("apiserver", "/CN=kube-apiserver", [*service, *sorted(addresses)])
    authority.issue("kubelet-client", "/O=system:masters/CN=kube-apiserver")
    # controller-runtime wants these very file names.
    authority.issue("tls", "/CN=jobset", [endpoints.host], layout.pki / "jobset")
    signing_key(layout.pki / "service-accounts.key")
    _write_private(layout.pki / "tokens.csv", _token_file(tokens))
    for name, token in tokens.items():
        target = layout.kubeconfig if name == ADMIN else layout.kubeconfig_of(name)
        target.parent.mkdir(parents=True, exist_ok=True)
        context = f"localcluster-{layout.root.name}"
        _write_private(target, _kubeconfig(authority.certificate, endpoints.url, token, context))


def _token_file(tokens: dict[str, str]) -> str:
    lines = []
    for name, token in tokens.items():
        user, groups = _COMPONENTS.get(name, (f"system:node:{name}", "system:nodes"))
        lines.append(f'{token},{user},{user},"{groups}"\n')
    return "".join(lines)


def _kubeconfig(ca: Path, url: str, token: str, context: str) -> str:
    # JSON is YAML. The CA is inlined, so that the file can be copied anywhere.
    authority = base64.b64encode(ca.read_bytes()).decode()
    cluster = {"server": url, "certificate-authority-data": authority}
    return json.dumps(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": context, "cluster": cluster}],
            "users": [{"name": context, "user": {"token": token}}],
            "contexts": [{"name": context, "context": {"cluster": context, "user": context}}],
            "current-context": context,
        },
        indent=1,
    )


def _write_private(path: Path, text: str) -> None:
    path.touch(mode=0o600)
    path.write_text(text, encoding="utf-8")


def etcd(binary: Path, layout: Layout, endpoints: Endpoints) -> Daemon:
    """The store. Loses nothing but its last seconds to a power cut, which nobody awaits here."""
    client = f"http://127.0.0.1:{endpoints.etcd}"
    peer = f"http://127.0.0.1:{endpoints.etcd_peer}"
    flags = {
        "name": "etcd",
        "data-dir": str(layout.root / "etcd"),
        "listen-client-urls": client,
        "advertise-client-urls": client,
        "listen-peer-urls": peer,
        "initial-advertise-peer-urls": peer,
        "initial-cluster": f"etcd={peer}",
        # A single member elects itself after this time.
        "heartbeat-interval": "10",
        "election-timeout": "60",
        "unsafe-no-fsync": "true",
        "log-level": "warn",
    }
    return Daemon("etcd", [str(binary), *_flags(flags)])


def apiserver(binary: Path, layout: Layout, endpoints: Endpoints, *, audit: bool = False) -> Daemon:
    """The API server, with Node, NodeRestriction and RBAC authorization as in production."""
    pki = layout.pki
    key = str(pki / "service-accounts.key")
    flags = {
        "etcd-servers": f"http://127.0.0.1:{endpoints.etcd}",
        "bind-address": endpoints.bind,
        "secure-port": str(endpoints.apiserver),
        "tls-cert-file": str(pki / "apiserver.crt"),
        "tls-private-key-file": str(pki / "apiserver.key"),
        "cert-dir": str(layout.root / "apiserver"),
        "client-ca-file": str(pki / "ca.crt"),
        "token-auth-file": str(pki / "tokens.csv"),
        "authorization-mode": "Node,RBAC",
        "enable-admission-plugins": "NodeRestriction",
        "allow-privileged": "true",
        "service-cluster-ip-range": SERVICE_CIDR,
        "service-account-issuer": "https://kubernetes.default.svc.cluster.local",
        "service-account-key-file": key,
        "service-account-signing-key-file": key,
        "kubelet-client-certificate": str(pki / "kubelet-client.crt"),
        "kubelet-client-key": str(pki / "kubelet-client.key"),
        # Names of nodes resolve nowhere: logs and exec go to addresses.
        "kubelet-preferred-address-types": "InternalIP,Hostname",
        # Webhooks and APIServices go straight to pods: no kube-proxy is needed here.
        "enable-aggregator-routing": "true",
        "profiling": "false",
        **_advertised(endpoints),
        **(_audited(layout) if audit else {}),
    }
    return Daemon("kube-apiserver", [str(binary), *_flags(flags)])


def _audited(layout: Layout) -> dict[str, str]:
    """Who, verb, resource and answer of each request, written before the next one is answered."""
    policy = {
        "apiVersion": "audit.k8s.io/v1",
        "kind": "Policy",
        "omitStages": ["RequestReceived"],
        "rules": [{"level": "Metadata"}],
    }
    path = layout.root / "audit-policy.yaml"
    path.write_text(json.dumps(policy), encoding="utf-8")
    return {
        "audit-policy-file": str(path),
        "audit-log-path": str(layout.audit_log),
        "audit-log-mode": "blocking",
    }


def _advertised(endpoints: Endpoints) -> dict[str, str]:
    if endpoints.subnet is not None:
        return {"advertise-address": endpoints.host}
    # Loopback may not be advertised and nothing inside needs the Service: publish none.
    return {"advertise-address": "192.0.2.1", "endpoint-reconciler-type": "none"}


def controller_manager(binary: Path, layout: Layout, spec: Spec) -> Daemon:
    """All stock controllers, but for the one that hands out pod ranges (nodes have theirs)."""
    pki = layout.pki
    flags = {
        "kubeconfig": str(layout.kubeconfig_of("kube-controller-manager")),
        "leader-elect": "false",
        "secure-port": "0",
        "use-service-account-credentials": "true",
        "controllers": "*,-node-ipam-controller",
        "service-account-private-key-file": str(pki / "service-accounts.key"),
        "root-ca-file": str(pki / "ca.crt"),
        "cluster-signing-cert-file": str(pki / "ca.crt"),
        "cluster-signing-key-file": str(pki / "ca.key"),
        # The default of 20 requests a second makes its start 4 s longer.
        "kube-api-qps": "500",
        "kube-api-burst": "1000",
        "node-monitor-grace-period": f"{spec.node_monitor_grace_s}s",
        "profiling": "false",
    }
    return Daemon("kube-controller-manager", [str(binary), *_flags(flags)])


def scheduler(binary: Path, layout: Layout) -> Daemon:
    """The stock scheduler."""
    flags = {
        "kubeconfig": str(layout.kubeconfig_of("kube-scheduler")),
        "leader-elect": "false",
        "secure-port": "0",
        "profiling": "false",
    }
    return Daemon("kube-scheduler", [str(binary), *_flags(flags)])


def _flags(values: dict[str, str]) -> list[str]:
    return [f"--{name}={value}" for name, value in values.items()]
