"""Faults of disks: full, and forgetful."""

from __future__ import annotations

from faults.scene import Place, Scene

#: Flips one bit in the middle of the largest file below the newest committed step.
_FLIP = """
import pathlib, sys
steps = [path for path in pathlib.Path(sys.argv[1]).iterdir() if path.name.isdecimal()]
step = max(steps, key=lambda path: int(path.name))
data = [path for path in step.rglob("*") if path.is_file() and "/d/" in str(path)]
victim = max(data, key=lambda path: path.stat().st_size)
with victim.open("r+b") as file:
    file.seek(victim.stat().st_size // 2)
    byte = file.read(1)[0]
    file.seek(-1, 1)
    file.write(bytes([byte ^ 4]))
print(step.name)
"""


def fill(scene: Scene, place: Place, directory: str) -> None:
    """Fill a volume of a pod to its last byte."""
    scene.shell(place, f"dd if=/dev/zero of={directory}/fill bs=4k 2>/dev/null; true")


def free(scene: Scene, place: Place, directory: str) -> None:
    """Undo ``fill``."""
    scene.shell(place, f"rm -f {directory}/fill")


def flip_bit(scene: Scene, place: Place, directory: str) -> int:
    """Flip a bit of the newest checkpoint of the bundled trainer; returns its step."""
    pod = scene.pod(place).metadata.name
    return int(scene.kube.exec(pod, "trainer", ["python", "-c", _FLIP, directory]))
