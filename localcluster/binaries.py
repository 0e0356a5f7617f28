"""The cluster's programs, built from pinned Go modules and cached outside the repository.

Every project has a wrapper module under `modules/`, whose `go.mod` names the
programs as tools and whose `go.sum` pins all that goes into them. What is built is
keyed by version, module files and flags, so that a changed pin builds anew and an
unchanged one never does.
"""

import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from localcluster.cache import cache_dir, locked
from localcluster.gobuild import Build, go_command
from localcluster.progress import Progress, say

MODULES = Path(__file__).parent / "modules"
KUBERNETES_VERSION = "v1.36.3"


@dataclass(frozen=True)
class Project:
    """One Go module and the programs of it that a cluster runs."""

    name: str
    version: str
    packages: dict[str, str]
    """Go package of each program."""
    module: str = ""
    """Module path, for files that are read from its source tree."""
    tags: tuple[str, ...] = ()
    variables: tuple[str, ...] = ()
    """Values stamped into the programs by the linker."""
    assets: tuple[str, ...] = ()
    """Globs of source files kept beside the programs (manifests)."""
    dependency_assets: tuple[tuple[str, str], ...] = ()
    """More of them, of modules that it depends on: module path and glob."""

    @property
    def globs(self) -> tuple[tuple[str, str], ...]:
        """Module path and glob of all files kept beside the programs."""
        return (*((self.module, glob) for glob in self.assets), *self.dependency_assets)

    @property
    def arguments(self) -> list[str]:
        """Arguments of `go build`. -trimpath and -tags are part of Go's own cache key."""
        stamps = " ".join(["-s", "-w", *(f"-X {variable}" for variable in self.variables)])
        tags = [f"-tags={','.join(self.tags)}"] if self.tags else []
        return ["-mod=readonly", "-trimpath", "-buildvcs=false", *tags, f"-ldflags={stamps}"]

    @property
    def source(self) -> Path:
        """The wrapper module's folder."""
        return MODULES / self.name

    @property
    def folder(self) -> Path:
        """Where the built programs of exactly these pins and flags live."""
        digest = hashlib.sha256("\0".join(self.arguments).encode())
        for file in sorted(self.source.iterdir()):
            digest.update(file.read_bytes())
        return cache_dir("bin", f"{self.name}-{self.version}-{digest.hexdigest()[:12]}")


def _kubernetes() -> Project:
    names = (
        "kube-apiserver",
        "kube-controller-manager",
        "kube-scheduler",
        "kubectl",
        "kubelet",
        "kube-proxy",
    )
    # Without the stamp, programs say v0.0.0-master and version checks between them fail.
    stamps = tuple(
        f"{package}.{variable}"
        for package in ("k8s.io/component-base/version", "k8s.io/client-go/pkg/version")
        for variable in (
            f"gitVersion={KUBERNETES_VERSION}",
            "gitMajor=1",
            "gitMinor=36",
            "gitTreeState=clean",
            "buildDate=2026-01-01T00:00:00Z",
        )
    )
    return Project(
        "kubernetes",
        KUBERNETES_VERSION,
        {name: f"k8s.io/kubernetes/cmd/{name}" for name in names},
        variables=stamps,
    )


_CONTAINERD = "github.com/containerd/containerd/v2/cmd"

PROJECTS: tuple[Project, ...] = (
    # The slowest first: the progress line is then honest from the start.
    _kubernetes(),
    Project("etcd", "v3.6.8", {"etcd": "go.etcd.io/etcd/server/v3"}),
    Project(
        "jobset",
        "v0.12.0",
        {"jobset": "sigs.k8s.io/jobset"},
        module="sigs.k8s.io/jobset",
        assets=(
            "config/components/crd/bases/*.yaml",
            "config/components/webhook/manifests.yaml",
        ),
    ),
    Project(
        "kwok",
        "v0.8.0",
        {"kwok": "sigs.k8s.io/kwok/cmd/kwok"},
        module="sigs.k8s.io/kwok",
        assets=(
            "kustomize/stage/node/fast/node-initialize.yaml",
            "kustomize/stage/node/heartbeat-with-lease/node-heartbeat-with-lease.yaml",
            "kustomize/stage/pod/fast/pod-*.yaml",
        ),
    ),
    Project(
        "containerd",
        "v2.2.1",
        {
            name: f"{_CONTAINERD}/{name}"
            for name in ("containerd", "containerd-shim-runc-v2", "ctr")
        },
        tags=("no_btrfs",),
    ),
    # Its go.mod raises what it shares with Kubernetes to the same versions: compiled once.
    Project(
        "coredns",
        "v1.13.1",
        {"coredns": "tpujob.dev/localcluster/coredns"},
        module="github.com/coredns/coredns",
    ),
    Project("pause", "v1", {"pause": "tpujob.dev/localcluster/pause"}),
    # A peer, for the benchmark of recovery alone.
    Project(
        "kubeflow-trainer",
        "v2.2.0",
        {"trainer": "github.com/kubeflow/trainer/v2/cmd/trainer-controller-manager"},
        module="github.com/kubeflow/trainer/v2",
        assets=(
            "manifests/base/crds/trainer.kubeflow.org_*.yaml",
            "manifests/base/webhook/manifests.yaml",
            "manifests/base/runtimes/jax_distributed.yaml",
        ),
    ),
    # Only where a test or a benchmark adds it to its cluster. Newer releases are not verifiable.
    Project(
        "kueue",
        "v0.16.1",
        {"kueue": "sigs.k8s.io/kueue/cmd/kueue"},
        module="sigs.k8s.io/kueue",
        assets=(
            "config/components/crd/bases/*.yaml",
            "config/components/webhook/manifests.yaml",
        ),
        dependency_assets=(
            (
                "k8s.io/autoscaler/cluster-autoscaler/apis",
                "config/crd/autoscaling.x-k8s.io_provisioningrequests.yaml",
            ),
        ),
    ),
    Project("helm", "v4.3.1", {"helm": "helm.sh/helm/v4/cmd/helm"}),
    # No part of a cluster: what the trainer's tests take for buckets.
    Project(
        "fake-gcs-server",
        "v1.56.1",
        {"fake-gcs-server": "github.com/fsouza/fake-gcs-server"},
    ),
    Project("gofakes3", "v1.2.0", {"gofakes3": "github.com/johannesboyne/gofakes3/cmd/gofakes3"}),
)

PROGRAMS = frozenset(name for project in PROJECTS for name in project.packages)
CONTROL_PLANE = frozenset(
    {
        "etcd",
        "jobset",
        "kube-apiserver",
        "kube-controller-manager",
        "kube-scheduler",
        "kubectl",
    }
)
NODES = frozenset(
    {
        "containerd",
        "containerd-shim-runc-v2",
        "coredns",
        "ctr",
        "kube-proxy",
        "kubelet",
        "pause",
    }
)


def ensure(names: Iterable[str], progress: Progress = say) -> dict[str, Path]:
    """Paths of the named programs, built first where they are missing.

    Two processes that want the same program build it once: the second waits.

    Raises:
        KeyError: A name that no project has.
        RuntimeError: Go is missing or a build failed; the message says what to do.
    """
    wanted = set(names)
    if unknown := wanted - PROGRAMS:
        raise KeyError(f"no project builds {', '.join(sorted(unknown))}")
    todo = [project for project in PROJECTS if _missing(project, wanted)]
    for number, project in enumerate(todo, start=1):
        _build_once(project, wanted, f"[{number}/{len(todo)}]", progress)
    for project in PROJECTS:
        if wanted.intersection(project.packages) and _lacks_assets(project):
            with locked(project.folder / ".lock"):
                _keep_assets(project)
    return {
        name: project.folder / name
        for project in PROJECTS
        for name in project.packages
        if name in wanted
    }


def assets(name: str) -> list[Path]:
    """The manifests kept from the source tree of the built project `name`, in glob order."""
    project = next(project for project in PROJECTS if project.name == name)
    folder = project.folder / "assets"
    globs = [Path(glob).name for _, glob in project.globs]
    return list(dict.fromkeys(path for glob in globs for path in sorted(folder.glob(glob))))


def _missing(project: Project, wanted: set[str]) -> list[str]:
    folder = project.folder
    return [name for name in project.packages if name in wanted and not (folder / name).is_file()]


def _build_once(project: Project, wanted: set[str], prefix: str, progress: Progress) -> None:
    waiting = f"{prefix} another process builds {project.name} {project.version}: waiting for it"
    with locked(project.folder / ".lock", lambda: progress(waiting)):
        if missing := _missing(project, wanted):
            _build(project, missing, prefix, progress)


def _build(project: Project, names: list[str], prefix: str, progress: Progress) -> None:
    # All programs of a project in one `go build`: what they share compiles once.
    with tempfile.TemporaryDirectory(dir=project.folder, prefix=".building-") as folder:
        out = Path(folder)
        Build(
            label=f"{prefix} {project.name} {project.version} ({', '.join(names)})",
            source=project.source,
            arguments=project.arguments,
            packages={name: project.packages[name] for name in names},
            progress=progress,
        ).run(out)
        _keep_assets(project)
        for name in names:
            (out / name).rename(project.folder / name)


def _lacks_assets(project: Project) -> bool:
    """Whether the programs were kept before a glob was added, as that is no part of their key."""
    folder = project.folder / "assets"
    return not all(any(folder.glob(Path(glob).name)) for _, glob in project.globs)


def _keep_assets(project: Project) -> None:
    folder = project.folder / "assets"
    for module, glob in project.globs:
        folder.mkdir(exist_ok=True)
        for path in _source_of(project, module).glob(glob):
            # Whole at once: another process may be reading the one of before.
            part = Path(shutil.copyfile(path, folder / f"{path.name}.part"))
            part.replace(folder / path.name)


def _source_of(project: Project, module: str) -> Path:
    """Go's copy of the source tree of a module that a project pins."""
    shown = subprocess.run(
        [go_command(), "list", "-mod=readonly", "-m", "-f", "{{.Dir}}", module],
        cwd=project.source,
        env={**os.environ, "GOWORK": "off"},
        capture_output=True,
        text=True,
        check=True,
    )
    return Path(shown.stdout.strip())
