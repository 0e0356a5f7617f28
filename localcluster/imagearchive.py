"""Images in a file: the docker-archive format, which every container tool reads."""

import hashlib
import io
import json
import tarfile
from collections.abc import Mapping
from pathlib import Path

# The default of 16 KiB doubles the time an archive takes to write.
_COPY_BYTES = 4 << 20


def write(archive: Path, reference: str, config: bytes, layers: Mapping[str, Path]) -> None:
    """Write a docker-archive.

    Args:
        archive: The file to write.
        reference: The image's name and tag.
        config: The image's configuration, JSON; its SHA-256 is the image ID.
        layers: Uncompressed layers, lowest first, each under its SHA-256 in hexadecimal.
    """
    config_name = f"{hashlib.sha256(config).hexdigest()}.json"
    names = [f"{digest}.tar" for digest in layers]
    manifest = [{"Config": config_name, "RepoTags": [reference], "Layers": names}]
    with tarfile.TarFile(archive, "w", copybufsize=_COPY_BYTES) as tar:
        _add_bytes(tar, "manifest.json", json.dumps(manifest).encode())
        _add_bytes(tar, config_name, config)
        for name, path in zip(names, layers.values(), strict=True):
            tar.add(path, arcname=name)


def image_id(archive: Path) -> str:
    """The ID of the image in a docker-archive, `sha256:…`.

    Raises:
        RuntimeError: The file is no docker-archive.
    """
    try:
        with tarfile.open(archive) as tar:
            manifest = tar.extractfile("manifest.json")
            config = json.load(manifest)[0]["Config"] if manifest else ""
    except (tarfile.TarError, KeyError, ValueError) as error:
        raise RuntimeError(f"{archive} is no docker-archive ({error}); delete it") from error
    # Docker itself writes `blobs/sha256/HEX`, everybody else `HEX.json`.
    return f"sha256:{Path(config).stem}"


def _add_bytes(tar: tarfile.TarFile, name: str, content: bytes) -> None:
    info = tarfile.TarInfo(name)
    info.size = len(content)
    tar.addfile(info, io.BytesIO(content))
