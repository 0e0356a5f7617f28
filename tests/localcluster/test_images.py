"""Images built for real, by buildah, on the base made from Debian packages."""

import json
import os
import platform
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from localcluster import baseimage, images
from tests.waiting import PATIENCE_S, wait_until

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(
        platform.system() != "Linux" or os.geteuid() != 0 or shutil.which("apt-get") is None,
        reason="building images without Docker needs root on Debian or Ubuntu",
    ),
]

DOCKERFILE = """\
FROM python:3.13-slim AS base
RUN echo prepared > /prepared

FROM base AS probe
COPY code.py /code.py
USER 65532:65532
ENTRYPOINT ["python", "/code.py"]
"""
BUILD = """\
import sys
from pathlib import Path
from localcluster import images
print(images.build('probe', root=Path(sys.argv[1])).digest)
"""
REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A cache of our own, which starts with the base image of the machine's cache."""
    base = baseimage.archive(print)
    folder = tmp_path_factory.mktemp("cache")
    (folder / "images").mkdir()
    shutil.copy2(base, folder / "images")
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def checkout(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a small Dockerfile, built in the cache of our own."""
    monkeypatch.setenv("TPUJOB_CACHE", str(cache))
    monkeypatch.setenv("TPUJOB_IMAGE_BUILDER", "buildah")
    (tmp_path / "Dockerfile").write_text(DOCKERFILE)
    (tmp_path / "pyproject.toml").write_text('[project]\nversion = "1.2.3"\n')
    (tmp_path / "code.py").write_text(f"print({str(tmp_path)!r})\n")
    return tmp_path


def layers_of(archive: images.Archive) -> list[str]:
    """The names of an image's layers, lowest first."""
    with tarfile.open(archive.path) as tar:
        manifest = tar.extractfile("manifest.json")
        assert manifest is not None
        layers: list[str] = json.load(manifest)[0]["Layers"]
    return layers


def build_elsewhere(checkout: Path) -> subprocess.Popen[str]:
    """Start a build of `checkout` in a process of its own."""
    return subprocess.Popen(
        [sys.executable, "-c", BUILD, str(checkout)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
    )


def is_running(word: str) -> bool:
    """Whether a live process has `word` in its command line."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if word.encode() in path.read_bytes():
                return True
        except OSError:
            continue  # it has ended meanwhile
    return False


def test_unchanged_image_is_not_built_again(checkout: Path) -> None:
    """A second build of the same content returns the same archive and does nothing."""
    first = images.build("probe", root=checkout)
    told: list[str] = []
    second = images.build("probe", root=checkout, progress=told.append)

    assert second == first
    assert told == []
    assert first.reference == "tpujob/probe:dev"


def test_changed_code_changes_the_last_layer_only(checkout: Path) -> None:
    """Nodes that have the image need one small layer after a change of code."""
    before = images.build("probe", root=checkout)
    (checkout / "code.py").write_text("print('changed')\n")
    after = images.build("probe", root=checkout)

    assert after.digest != before.digest
    assert layers_of(after)[:-1] == layers_of(before)[:-1]
    assert layers_of(after)[-1] != layers_of(before)[-1]


def test_archive_carries_one_name(checkout: Path) -> None:
    """Loading an archive brings the image under the name that pods use, and no other."""
    archive = images.build("probe", root=checkout)
    with tarfile.open(archive.path) as tar:
        manifest = tar.extractfile("manifest.json")
        assert manifest is not None
        (image,) = json.load(manifest)

    assert len(image["RepoTags"]) == 1
    assert image["RepoTags"][0].endswith("tpujob/probe:dev")


def test_two_builds_at_once_agree(checkout: Path) -> None:
    """Of two processes that want the same image, one builds and both get it."""
    both = [build_elsewhere(checkout) for _ in range(2)]
    outputs = [process.communicate(timeout=PATIENCE_S)[0] for process in both]

    assert [process.returncode for process in both] == [0, 0], outputs
    assert len({output.splitlines()[-1] for output in outputs}) == 1
    assert sum("stage probe" in output for output in outputs) == 1


def test_killed_build_leaves_nothing(checkout: Path, cache: Path) -> None:
    """After SIGKILL neither processes nor mounts remain, and the next build succeeds."""
    marker = f"sleep 987{os.getpid()}"
    (checkout / "Dockerfile").write_text(DOCKERFILE.replace("echo prepared >", f"{marker}; echo >"))
    process = build_elsewhere(checkout)
    wait_until(lambda: is_running(marker.replace(" ", "\0")), "the build runs")
    process.kill()
    process.communicate(timeout=PATIENCE_S)

    wait_until(lambda: not is_running(marker.replace(" ", "\0")), "nothing of it is left")
    assert str(cache) not in Path("/proc/mounts").read_text()
    (checkout / "Dockerfile").write_text(DOCKERFILE)
    assert images.build("probe", root=checkout).path.exists()


def test_failing_step_is_shown(checkout: Path) -> None:
    """A step that fails ends the build with the step's own output, and keeps no archive."""
    broken = DOCKERFILE.replace("echo prepared >", "echo the reason; exit 7; echo >")
    (checkout / "Dockerfile").write_text(broken)

    with pytest.raises(RuntimeError, match=r"(?s)probe failed.*the reason"):
        images.build("probe", root=checkout)


def test_unreachable_mirror_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where Debian's packages cannot be had, the message names the way to another mirror."""
    monkeypatch.setenv("TPUJOB_CACHE", str(tmp_path))
    monkeypatch.setenv("TPUJOB_DEBIAN_MIRROR", "http://127.0.0.1:9/debian")  # nobody listens

    with pytest.raises(RuntimeError, match=r"(?s)127\.0\.0\.1:9.*in TPUJOB_DEBIAN_MIRROR"):
        baseimage.archive(print)
    assert not list(tmp_path.rglob("base-*"))


def run_inside(archive: images.Archive, root: Path, *command: str) -> str:
    """Unpack an image into `root` and run a command there as the image's user."""
    with tarfile.open(archive.path) as tar:
        manifest = tar.extractfile("manifest.json")
        assert manifest is not None
        image = json.load(manifest)[0]
        described = tar.extractfile(image["Config"])
        assert described is not None
        config = json.load(described)["config"]
        for layer in image["Layers"]:
            with tarfile.open(fileobj=tar.extractfile(layer)) as content:
                content.extractall(root, filter="fully_trusted")
    prepare = 'mount --rbind /dev "$0/dev" && mount -t proc proc "$0/proc" && exec "$@"'
    user = ["--userspec", config.get("User") or "0:0"]
    done = subprocess.run(
        [
            *(
                "unshare",
                "--mount",
                "--pid",
                "--fork",
                "--kill-child",
                "sh",
                "-c",
                prepare,
                str(root),
            ),
            *("chroot", *user, str(root), "env", "-i", *config["Env"], *command),
        ],
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def unpacked(tmp_path: Path) -> Iterator[Path]:
    """A folder for an image's files, emptied at once: images are large."""
    root = tmp_path / "root"
    root.mkdir()
    yield root
    shutil.rmtree(root)


def test_operator_image_has_what_it_needs(unpacked: Path) -> None:
    """As an unprivileged user: the packages import, and the agent to inject is there."""
    script = (
        "import os, zipfile, kopf, kubernetes.aio, pydantic, prometheus_client, aiohttp, "
        "tpujob_operator.__main__, tpujob_coordinator.__main__, tpujob_agent.protocol; "
        "names = zipfile.ZipFile('/opt/tpujob/agent.pyz').namelist(); "
        "print(os.getuid(), '__main__.py' in names, 'tpujob/__init__.py' in names)"
    )
    printed = run_inside(images.build("operator"), unpacked, "python", "-c", script)

    assert printed == "65532 True True\n"


def test_trainer_image_has_what_it_needs(unpacked: Path) -> None:
    """JAX finds devices, checkpoint and data libraries import, the text to train on is there."""
    script = (
        "import os, jax, optax, orbax.checkpoint, grain, array_record, tpujob; "
        "import tpujob_trainer.__main__; "
        "text = os.path.getsize(os.__file__); "
        "print(len(jax.devices()), jax.default_backend(), text > 10_000)"
    )
    printed = run_inside(images.build("trainer"), unpacked, "python", "-c", script)

    assert printed == "1 cpu True\n"
