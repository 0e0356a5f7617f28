"""One start of a cluster, step by step."""

import contextlib
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from localcluster import controlplane, dns, jobset, kwok, network
from localcluster.kubeapi import Api, wait_for
from localcluster.layout import Endpoints, Layout, Spec, State
from localcluster.nodes import IMAGE_RECORD, Nodes, link_programs
from localcluster.processes import Processes
from localcluster.progress import Progress
from localcluster.template import Template

#: Seconds on a quiet machine, minutes on a busy one; a dead process is noticed at once.
API_READY_S = 240.0
_NODES_READY_S = 240.0
_DNS_S = 120.0
_CRASHES = 3


class Start:
    """Brings up the cluster of a spec, with programs that are built."""

    def __init__(
        self, spec: Spec, layout: Layout, programs: dict[str, Path], progress: Progress
    ) -> None:
        """Prepare; nothing runs yet."""
        self._spec = spec
        self._layout = layout
        self._programs = programs
        self._progress = progress
        self._processes = Processes(layout)

    def run(self, owner_pid: int | None, images: Sequence[Path]) -> None:
        """Bring everything up; return when it is ready to be used.

        Args:
            owner_pid: A process whose end ends the cluster too.
            images: Docker-archives that all nodes shall have.
        """
        layout, spec = self._layout, self._spec
        for folder in (layout.root, layout.logs, layout.shared):
            folder.mkdir(exist_ok=True)
        layout.shared.chmod(0o1777)
        full = not spec.control_plane_only
        self._processes.launch(namespaces=full, owner_pid=owner_pid)
        with ThreadPoolExecutor(1) as pool:
            unpacked = pool.submit(self._prepare_nodes, images)
            api, state = self._start_control_plane(full=full, tied=owner_pid is not None)
            self._start_nodes(api, state, unpacked)
            self._finish(api, state)

    def _prepare_nodes(self, images: Sequence[Path]) -> None:
        if self._spec.control_plane_only:
            return
        template = Template(self._programs, self._progress)
        template.ensure(images)
        for name in self._spec.real_nodes:
            folder = self._layout.node(name)
            target = folder / "var" / "lib" / "containerd"
            target.mkdir(parents=True)
            template.copy(target, folder / IMAGE_RECORD)

    def _start_control_plane(self, *, full: bool, tied: bool) -> tuple[Api, State]:
        layout, spec = self._layout, self._spec
        endpoints = self._endpoints() if full else Endpoints.loopback()
        state = State(spec, endpoints, controlplane.make_tokens(spec.real_nodes), tied)
        controlplane.write_credentials(layout, endpoints, state.tokens)
        state.save(layout.state)
        start, programs = self._processes.start, self._programs
        start(controlplane.etcd(programs["etcd"], layout, endpoints))
        binary = programs["kube-apiserver"]
        start(controlplane.apiserver(binary, layout, endpoints, audit=spec.audit))
        api = Api(endpoints.url, state.tokens[controlplane.ADMIN], layout.pki / "ca.crt")
        with self._blaming("kube-apiserver"):
            wait_for(
                "the API server",
                lambda: api.is_ready() or self._keeps_running("kube-apiserver"),
                API_READY_S,
                0.02,
            )
        manager = programs["kube-controller-manager"]
        start(controlplane.controller_manager(manager, layout, spec))
        start(controlplane.scheduler(programs["kube-scheduler"], layout))
        return api, state

    def _endpoints(self) -> Endpoints:
        pid = self._processes.supervisor_pid
        assert pid is not None
        return Endpoints.in_subnet(*network.attach(pid))

    def _start_nodes(self, api: Api, state: State, unpacked: "Future[None]") -> None:
        crds, hooks = jobset.manifests(state.endpoints, (self._layout.pki / "ca.crt").read_bytes())
        jobset.install_crds(api, crds)
        binary = self._programs["jobset"]
        self._processes.start(jobset.daemon(binary, self._layout, state.endpoints))
        if self._spec.kwok:
            self._start_kwok(api)
        for hook in hooks:
            api.apply(hook)
        unpacked.result()
        if self._spec.real_nodes:
            self._start_dns(api, state.endpoints)
            link_programs(self._programs, self._layout.bin)
        nodes = Nodes(self._layout, state, api)
        for name in self._spec.real_nodes:
            nodes.switch_on(name)
        for name in self._spec.real_nodes:
            with self._blaming(f"{name}/kubelet"):
                nodes.equip(name)

    def _start_dns(self, api: Api, endpoints: Endpoints) -> None:
        self._processes.start(dns.daemon(self._programs["coredns"], self._layout, endpoints))
        for thing in dns.objects(endpoints):
            api.apply(thing)

    def _start_kwok(self, api: Api) -> None:
        self._processes.start(kwok.daemon(self._programs["kwok"], self._layout))
        for node in kwok.nodes(self._spec):
            api.request("POST", "/api/v1/nodes", node)

    def _finish(self, api: Api, state: State) -> None:
        with self._blaming("jobset"):
            jobset.wait_until_serving(api, state.endpoints)
        kwok_nodes = [node["metadata"]["name"] for node in kwok.nodes(self._spec)]
        wanted = {*self._spec.real_nodes, *(kwok_nodes if self._spec.kwok else ())}
        with self._blaming("kwok" if kwok_nodes else "node0/kubelet"):
            wait_for(
                f"{len(wanted)} nodes to be Ready",
                lambda: wanted <= ready_nodes(api),
                _NODES_READY_S,
            )
        if self._spec.real_nodes:
            with self._blaming("coredns"):
                wait_for(
                    "CoreDNS",
                    lambda: network.answers_dns(state.endpoints.host, dns.PROBE_NAME),
                    _DNS_S,
                )

    def _keeps_running(self, name: str) -> bool:
        """False, so that the wait goes on; an error where waiting has no sense."""
        restarts = {child["name"]: child["restarts"] for child in self._processes.list()}
        if restarts[name] < _CRASHES:
            return False
        raise TimeoutError(f"{name} ended {_CRASHES} times")

    @contextlib.contextmanager
    def _blaming(self, name: str) -> Iterator[None]:
        try:
            yield
        except TimeoutError as error:
            tail = self._processes.tail(name)
            raise RuntimeError(f"{error}; the last lines of {name}:\n{tail}") from error


def ready_nodes(api: Api) -> set[str]:
    """Names of the nodes that are Ready."""
    return {
        node["metadata"]["name"]
        for node in api.get("/api/v1/nodes")["items"]
        for condition in node["status"].get("conditions", [])
        if condition["type"] == "Ready" and condition["status"] == "True"
    }
