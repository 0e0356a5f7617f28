"""What a first run has to make before a cluster can start, with its progress in sight."""

from concurrent.futures import ThreadPoolExecutor

from localcluster import binaries, host, images
from localcluster.images import Archive
from localcluster.progress import Progress, say


def prepare_control_plane(progress: Progress = say) -> None:
    """Install and build all that a control plane needs; nothing when it is there.

    Raises:
        HostUnfitError: This host cannot run one.
        RuntimeError: A build or an installation failed.
    """
    host.prepare(full=False)
    binaries.ensure(binaries.CONTROL_PLANE, progress)


def prepare(progress: Progress = say) -> dict[str, Archive]:
    """Install and build all that a cluster with nodes needs; returns the images by target.

    Raises:
        HostUnfitError: This host cannot run one.
        RuntimeError: A build or an installation failed.
    """
    host.prepare(full=True)
    # Images come from the network and programs from the compiler: side by side.
    with ThreadPoolExecutor(1) as pool:
        building = pool.submit(build_images, progress)
        binaries.ensure({*binaries.CONTROL_PLANE, *binaries.NODES}, progress)
        return building.result()


def build_images(progress: Progress) -> dict[str, Archive]:
    """The images of the Dockerfile by target, built where the sources have changed."""
    return {target: images.build(target, progress=progress) for target in images.TARGETS}
