"""Faults of disks: full, and forgetful."""

from __future__ import annotations

from pathlib import Path

from faults.scene import Place, Scene


def fill(scene: Scene, place: Place, directory: str) -> None:
    """Fill a volume of a pod to its last byte."""
    scene.shell(place, f"dd if=/dev/zero of={directory}/fill bs=4k 2>/dev/null; true")


def free(scene: Scene, place: Place, directory: str) -> None:
    """Undo ``fill``."""
    scene.shell(place, f"rm -f {directory}/fill")


def flip_bit(directory: Path) -> int:
    """Flip a bit in the largest file of the newest checkpoint; returns its step."""
    step = max(int(path.name) for path in directory.iterdir() if path.name.isdecimal())
    data = [path for path in (directory / str(step)).rglob("*") if path.parent.name == "d"]
    victim = max(data, key=lambda path: path.stat().st_size)
    content = bytearray(victim.read_bytes())
    content[len(content) // 2] ^= 4
    victim.write_bytes(content)
    return step
