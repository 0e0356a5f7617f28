"""The images of all nodes: one containerd root in the cache that every node starts from.

Unpacking an image takes seconds per node. Here it is done once, and a node begins with a
copy made of hard links (layers and blobs are never rewritten; databases are really copied).
"""

import hashlib
import json
import os
import shutil
import subprocess
import tarfile
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from localcluster import binaries, imagearchive
from localcluster.cache import cache_dir, locked
from localcluster.kubeapi import wait_for
from localcluster.node import PAUSE_IMAGE
from localcluster.processes import TOOL_PATH
from localcluster.progress import Progress

_START_S = 30.0
# Everything dies with us: no mount and no process is left, whatever ends this program.
_CONFINED = (
    *("setpriv", "--pdeathsig", "KILL"),
    *("unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"),
)
# Unpacked layers need not be kept a second time in packed form.
_IMPORT = ("--local", "--discard-unpacked-layers")
_CONFIG = """\
version = 3
disabled_plugins = [
  "io.containerd.grpc.v1.cri", "io.containerd.cri.v1.images", "io.containerd.cri.v1.runtime",
  "io.containerd.nri.v1.nri",
]
"""


@dataclass(frozen=True)
class Image:
    """An image in a docker-archive."""

    path: Path
    reference: str
    """Full name, as containerd knows it."""
    digest: str


def identify(path: Path) -> Image:
    """Read name and ID of the image in a docker-archive.

    Raises:
        RuntimeError: It is none, or the image in it has no name.
    """
    digest = imagearchive.image_id(path)
    with tarfile.open(path) as tar:
        manifest = tar.extractfile("manifest.json")
        tags = json.load(manifest)[0].get("RepoTags") if manifest else None
    if not tags:
        raise RuntimeError(f"{path}: the image has no name; save it by name, not by ID")
    return Image(path, full_name(tags[0]), digest)


def full_name(reference: str) -> str:
    """A reference with registry and tag, as Docker's rule completes it."""
    first, slash, _ = reference.partition("/")
    is_registry = slash and ("." in first or ":" in first or first == "localhost")
    if not is_registry:
        reference = f"docker.io/{reference if slash else f'library/{reference}'}"
    return reference if ":" in reference.rpartition("/")[2] else f"{reference}:latest"


class Template:
    """The shared containerd root."""

    def __init__(self, programs: dict[str, Path], progress: Progress) -> None:
        """Use the template of this containerd version.

        Args:
            programs: Paths of containerd, ctr and pause.
            progress: Takes a line when something takes long.
        """
        self._programs = programs
        self._progress = progress
        version = next(p.version for p in binaries.PROJECTS if p.name == "containerd")
        self._folder = cache_dir("images", f"containerd-{version}")
        self._root = self._folder / "root"
        self._index = self._folder / "loaded.json"

    def ensure(self, archives: Sequence[Path]) -> list[Image]:
        """Unpack those images that are not there yet; returns all of them."""
        with self._locked():
            images = [self._pause(), *(identify(path) for path in archives)]
            loaded = self._loaded()
            if new := [image for image in images if loaded.get(image.reference) != image.digest]:
                self._import(new)
        return images

    def copy(self, target: Path, record: Path) -> None:
        """Make `target` a containerd root with all images, listed in the file `record`."""
        with self._locked():
            shutil.copy2(self._index, record)
            # cp keeps what overlayfs needs: owners, whiteouts and extended attributes.
            command = ["cp", "--archive", "--link", f"{self._root}/.", str(target)]
            subprocess.run(command, check=True, capture_output=True)
            for database in self._root.glob("io.containerd.*/*.db"):
                own = target / database.relative_to(self._root)
                own.unlink()
                shutil.copy2(database, own)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        with locked(self._folder / ".lock", lambda: self._progress("images: waiting for another")):
            yield

    def _loaded(self) -> dict[str, str]:
        return read_record(self._index) if self._root.is_dir() else {}

    def _pause(self) -> Image:
        path = self._folder / f"pause-{self._programs['pause'].parent.name}.tar"
        if not path.exists():
            _write_pause(path, self._programs["pause"])
        return identify(path)

    def _import(self, images: list[Image]) -> None:
        started = time.monotonic()
        loaded = self._loaded()
        with tempfile.TemporaryDirectory(prefix="tpujob-") as folder, self._daemon(Path(folder)):
            for image in images:
                self._progress(f"images: unpacking {image.reference} once for all nodes")
                load(self._ctr(Path(folder)), image.path)
                loaded[image.reference] = image.digest
            _collect_garbage(self._ctr(Path(folder)))
        write_record(self._index, loaded)
        self._progress(f"images: ready after {time.monotonic() - started:.1f} s")

    def _ctr(self, folder: Path) -> list[str]:
        return [str(self._programs["ctr"]), f"--address={folder}/containerd.sock"]

    @contextmanager
    def _daemon(self, folder: Path) -> Iterator[None]:
        config = folder / "containerd.toml"
        config.write_text(_CONFIG, encoding="utf-8")
        command = [
            *(*_CONFINED, str(self._programs["containerd"]), f"--config={config}"),
            *(f"--root={self._root}", f"--state={folder}/state"),
            f"--address={folder}/containerd.sock",
        ]
        log_path = self._folder / "containerd.log"
        with log_path.open("wb") as log:
            process = subprocess.Popen(
                command, stdout=log, stderr=log, env={"PATH": TOOL_PATH}, start_new_session=True
            )
        try:
            wait_for(
                f"containerd to unpack images (see {log_path})",
                lambda: self._answers(folder),
                _START_S,
            )
            yield
        finally:
            process.kill()
            process.wait()

    def _answers(self, folder: Path) -> bool:
        if not (folder / "containerd.sock").exists():
            return False
        shown = [*self._ctr(folder), "--connect-timeout=1s", "version"]
        return subprocess.run(shown, check=False, capture_output=True).returncode == 0


def read_record(path: Path) -> dict[str, str]:
    """The ID of each image that a containerd root holds, by full name."""
    if not path.exists():
        return {}
    record: dict[str, str] = json.loads(path.read_text(encoding="utf-8"))
    return record


def write_record(path: Path, record: dict[str, str]) -> None:
    """Keep the IDs of the images that a containerd root holds."""
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps(record, indent=1), encoding="utf-8")
    temporary.rename(path)


def load(ctr: Sequence[str], archive: Path) -> None:
    """Import an archive into the containerd that the command `ctr` speaks to.

    Raises:
        RuntimeError: It failed.
    """
    command = [*ctr, "--namespace=k8s.io", "images", "import", *_IMPORT, "-"]
    # By standard input: the node may see another file, or none, under this path.
    with archive.open("rb") as content:
        done = subprocess.run(command, stdin=content, check=False, capture_output=True)
    if done.returncode:
        raise RuntimeError(f"cannot load {archive}: {done.stderr.decode().strip()}")


def _collect_garbage(ctr: Sequence[str]) -> None:
    # The end of a lease is the only way to have it done now: else what images of the same
    # name left behind is copied to every node.
    leases = [*ctr, "--namespace=k8s.io", "leases"]
    subprocess.run([*leases, "create", "--id=garbage"], check=True, capture_output=True)
    subprocess.run([*leases, "delete", "--sync", "garbage"], check=True, capture_output=True)


def _write_pause(path: Path, program: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="tpujob-") as folder:
        layer = Path(folder) / "layer.tar"
        with tarfile.open(layer, "w") as tar:
            tar.add(program, "pause", filter=_plain)
        digest = hashlib.sha256(layer.read_bytes()).hexdigest()
        config = {
            "architecture": _architecture(),
            "os": "linux",
            "config": {"Entrypoint": ["/pause"], "User": "65535:65535"},
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
        }
        temporary = path.with_suffix(".tmp")
        imagearchive.write(temporary, PAUSE_IMAGE, json.dumps(config).encode(), {digest: layer})
        temporary.rename(path)


def _plain(info: tarfile.TarInfo) -> tarfile.TarInfo:
    info.uid = info.gid = info.mtime = 0
    info.uname = info.gname = ""
    info.mode = 0o755
    return info


def _architecture() -> str:
    return {"x86_64": "amd64", "aarch64": "arm64"}.get(os.uname().machine, os.uname().machine)
