"""Storage that is away, full or refused: nothing is put aside, and runs resume afterwards."""

from __future__ import annotations

import builtins
import contextlib
import errno
import os
import resource
import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.trainer.mounts import needs_mount, on_process_1
from tests.trainer.victims import Rig, small_files
from tests.trainer.worlds import Launcher, small_config
from tpujob_agent.protocol import ExitCode
from tpujob_checkpoint import claims, orbax_files, reading
from tpujob_checkpoint.errors import CheckpointUnavailableError
from tpujob_checkpoint.saving import _settled
from tpujob_checkpoint.schedule import Due

pytestmark = pytest.mark.usefixtures("no_garbage")

OLDER, NEWER = 4, 9
BOTH = [str(OLDER), str(NEWER)]


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    """Two checkpoints, saved on four devices."""
    made = Rig(tmp_path, devices=4)
    with closing(made.saver()) as saver:
        for step in (OLDER, NEWER):
            made.save(saver, step, local=False)
    return made


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is away is asked for twice, at once."""
    monkeypatch.setattr(reading, "PAUSES_S", (0.001,))


def _steps(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir() if path.name != claims.FILE)


@contextlib.contextmanager
def _no_more_files() -> Iterator[None]:
    """This process can open no file more (EMFILE)."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    # The lowest number that is free: the next file would get it.
    lowest = os.open("/dev/null", os.O_RDONLY)
    os.close(lowest)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


@contextlib.contextmanager
def _as_nobody() -> Iterator[None]:
    """All threads of this process are of a user who may not read the directory (EACCES)."""
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


@contextlib.contextmanager
def _stale_handles() -> Iterator[None]:
    """No file of the directory can be opened, as of an NFS server that has forgotten them.

    Nothing here makes a kernel say so: the error is put into Python's own opener.
    """
    real = builtins.open

    def opened(file: object, *options: Any, **more: Any) -> Any:
        if "/checkpoints/" in str(file):
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), str(file))
        return real(file, *options, **more)  # type: ignore[call-overload] # as it came

    with mock.patch("builtins.open", opened):
        yield


_OUTAGES = [
    pytest.param(_no_more_files, "EMFILE", id="EMFILE"),
    pytest.param(_stale_handles, "ESTALE", id="ESTALE"),
    pytest.param(
        _as_nobody,
        "EACCES",
        id="EACCES",
        marks=pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user"),
    ),
]


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize(("outage", "name"), _OUTAGES)
def test_error_of_a_reader_is_no_damage(
    rig: Rig, outage: type[contextlib.AbstractContextManager[None]], name: str
) -> None:
    """Neither in the listing nor in a step; both say which error it was."""
    with closing(rig.saver()) as saver:
        assert saver.restore(None).step == NEWER  # all programs are loaded now
        with outage(), pytest.raises(CheckpointUnavailableError, match=name):
            saver.restore(None)
        with outage(), pytest.raises(CheckpointUnavailableError, match=f"step 9 .*{name}"):
            saver._checkpoints.restore(NEWER)
        assert _steps(rig.checkpoints) == BOTH
        assert saver.restore(None).step == NEWER


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
@pytest.mark.usefixtures("impatient")
def test_step_of_another_user_is_told_with_what_to_do(rig: Rig) -> None:
    """The directory can be written, and a step in it cannot be read."""
    with closing(rig.saver()) as saver:
        saver.restore(None)
        (rig.checkpoints / str(NEWER)).chmod(0)
        said = r"step 9 .*EACCES.* let user id 65534 read all of its files"
        with _as_nobody(), pytest.raises(CheckpointUnavailableError, match=said):
            saver._checkpoints.restore(NEWER)
        assert _steps(rig.checkpoints) == BOTH


#: Runs the rest as a root that permissions hold for, as for any other user.
_WITHOUT_OVERRIDE = ("setpriv", "--bounding-set=-dac_override,-dac_read_search")
_READ_ONLY = (
    *("unshare", "--mount", "--propagation", "private", "sh", "-c"),
    'mount --bind "$0" "$0" && mount -o remount,ro,bind "$0" || exit 99; exec "$@"',
)


@needs_mount
@pytest.mark.parametrize("why", ["Permission denied", "Read-only file system"])
def test_directory_that_refuses_writes_is_told_before_the_start(
    rig: Rig, launcher: Launcher, why: str
) -> None:
    """With steps in it: exit code 1, which is the user's, what to do, and nothing is changed."""
    prefix: tuple[str, ...] = (*_READ_ONLY, str(rig.checkpoints))
    if why == "Permission denied":
        rig.checkpoints.chmod(0o500)
        prefix = _WITHOUT_OVERRIDE
    trainer = launcher.start(small_config(), devices=2, prefix=prefix)[0]
    assert trainer.wait() == 1, trainer.output()
    said = f"not writable by user id {os.geteuid()} ({why}): mount it writable for this user"
    assert said in trainer.output()
    rig.checkpoints.chmod(0o700)
    assert _steps(rig.checkpoints) == BOTH


@pytest.mark.usefixtures("impatient")
def test_lack_of_device_memory_is_no_damage(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """A mesh that the state does not fit: JAX's own RESOURCE_EXHAUSTED."""
    load = orbax_files.load

    def load_beside_much_else(*arguments: object) -> object:
        jnp.zeros(1 << 50, jnp.uint8).block_until_ready()
        return load(*arguments)  # type: ignore[arg-type] # as they came

    with monkeypatch.context() as patch, closing(rig.saver()) as saver:
        patch.setattr(orbax_files, "load", load_beside_much_else)
        with pytest.raises(CheckpointUnavailableError, match=r"step 9 .*RESOURCE_EXHAUSTED"):
            saver.restore(None)
    assert _steps(rig.checkpoints) == BOTH
    with closing(rig.saver()) as saver:
        assert saver.restore(None).step == NEWER


def exhaust(*_: object, **__: object) -> None:
    """JAX's own error of a device without memory."""
    jnp.zeros(1 << 50, jnp.uint8).block_until_ready()


def test_copy_that_finds_no_room_on_the_devices_goes_to_the_host(
    rig: Rig, capsys: pytest.CaptureFixture[str]
) -> None:
    """The copy is ours: for lack of memory it may cost time, and no step. It is told once."""
    with closing(rig.saver()) as saver:
        saver.restore(None)
        saver._copy = _settled(exhaust)
        for step in (10, 11):
            rig.save(saver, step)
    assert capsys.readouterr().out.count("no room for a copy of step 10 on the devices") == 1
    with closing(rig.saver()) as saver:
        restored = saver.restore(None)
    assert restored.step == 11
    assert rig.is_state_of(11, restored.state)


@pytest.mark.parametrize("local", [False, True])
@pytest.mark.parametrize("moment", ["copy", "write"])
def test_lack_of_memory_for_a_save_is_no_error_of_the_user(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, moment: str, local: bool
) -> None:
    """Neither devices nor host have room, or the transfer finds none: an outage, in words."""
    with closing(rig.saver()) as saver:
        saver.restore(None)
        state = rig.state(10)
        if moment == "copy":
            saver._copy = _settled(exhaust)
            monkeypatch.setattr(jax, "device_put", exhaust)
        else:
            monkeypatch.setattr(orbax_files, "save", exhaust)
        monkeypatch.setattr(rig, "state", lambda _: state)
        with pytest.raises(CheckpointUnavailableError, match=r"step 10 .*RESOURCE_EXHAUSTED"):
            rig.save(saver, 10, local=local)
    assert _steps(rig.checkpoints) == BOTH


def no_host_memory(*_: object, **__: object) -> None:
    """NumPy's own error of a host without memory."""
    np.empty(1 << 60, np.uint8)


@pytest.mark.parametrize("fault", [exhaust, no_host_memory])
@pytest.mark.parametrize("what", ["shares", "copy"])
def test_snapshot_that_finds_no_memory_costs_only_the_snapshots(
    rig: Rig, capsys: pytest.CaptureFixture[str], fault: Callable[..., None], what: str
) -> None:
    """No checkpoint was due: training goes on, it is said once, and checkpoints are saved."""
    with closing(rig.saver()) as saver:
        saver.restore(None)
        first, second = rig.state(10), rig.state(11)
        shares, copy = saver._shares, saver._copy
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(saver, f"_{what}", _settled(fault))
            patch.setattr(jax, "device_put", fault)
            saver.save(10, first, Due(local=True))
            saver.save(11, second, Due(local=True))
        saver.wait()
        assert (saver._shares, saver._copy) == (shares, copy)
        assert saver.last_snapshot() is None  # no further one becomes due, on any process
        rig.save(saver, 12)
    said = [line for line in capsys.readouterr().out.splitlines() if "no snapshots in mem" in line]
    assert len(said) == 1
    assert "on process 0: the state of step 10 " in said[0]
    assert list(rig.snapshots.glob("*.snapshot")) == []
    with closing(rig.saver()) as saver:
        restored = saver.restore(None)
    assert restored.step == 12
    assert rig.is_state_of(12, restored.state)


def _no_thread(*_: object, **__: object) -> None:
    """Python's own error of a host that may begin no thread more, which nothing here makes."""
    raise RuntimeError("can't start new thread")


@pytest.mark.parametrize("fault", [exhaust, no_host_memory, _no_thread])
@pytest.mark.parametrize("place", ["memory._Layout.blocks", "snapshots._put"])
def test_snapshot_whose_write_finds_no_memory_is_the_last(
    rig: Rig, capsys: pytest.CaptureFixture[str], fault: Callable[..., None], place: str
) -> None:
    """The transfer or the copy into the file: said once, and nothing half written stays."""
    with closing(rig.saver()) as saver:
        saver.restore(None)
        rig.save(saver, 10, durable=False)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(f"tpujob_checkpoint.{place}", fault)
            rig.save(saver, 11, durable=False)
        rig.save(saver, 12, durable=False)
        assert saver.last_snapshot() is None
    said = capsys.readouterr().out
    assert said.count("no snapshots in memory on process 0: step 11 was not written: ") == 1
    names = sorted(path.name for path in rig.snapshots.iterdir() if path.name != "lock")
    assert names == ["10.snapshot"]
    with closing(rig.saver()) as saver:
        assert saver.restore(None).step == 10


def test_save_that_finds_no_room_leaves_what_was_there(rig: Rig) -> None:
    """It is an outage; the steps before are kept and restored."""
    with closing(rig.saver()) as saver:
        saver.restore(None)
        with small_files(), pytest.raises(CheckpointUnavailableError, match="step 10 could not"):
            rig.save(saver, 10, local=False)
    with closing(rig.saver()) as saver:
        assert saver.restore(None).step == NEWER
    # A write of the save that failed may come late: what it leaves is no step.
    assert [name for name in _steps(rig.checkpoints) if "tmp" not in name] == BOTH


@pytest.mark.parametrize("name", ["_METADATA", "manifest.ocdbt"])
def test_step_whose_files_change_at_the_commit_removes_no_older_one(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """What was committed is looked at: as long as it is not as written, all older steps stay."""
    with closing(rig.saver()) as saver:
        saver.restore(None)
        rig.save(saver, 10, local=False)  # as many as are kept
        save = orbax_files.save

        def save_on_a_bad_disk(path: Path, *arguments: Any) -> None:
            save(path, *arguments)
            (file,) = (Path(path) / "state").glob(name)
            os.truncate(file, file.stat().st_size // 2)

        told = mock.Mock()
        monkeypatch.setattr("tpujob.committed", told)
        with monkeypatch.context() as patch:
            patch.setattr(orbax_files, "save", save_on_a_bad_disk)
            with pytest.raises(CheckpointUnavailableError, match=f"step 11 .*EIO: .*{name} has"):
                rig.save(saver, 11, local=False)
        assert not told.called
    assert _steps(rig.checkpoints) == ["10", "11", *BOTH]
    with closing(rig.saver()) as saver:
        assert saver.restore(None).step == 10


_FAULTS = [
    # As of a stale cache or a bad disk: the file is short here, and every read of it fails.
    pytest.param("mount --bind /proc/$$/mem {file}", "manifest.ocdbt", id="one file"),
    # The volume is not mounted on this host: an empty directory in its place.
    pytest.param("mount -t tmpfs none {directory}", "ENOENT: ", id="all files"),
]


@needs_mount
@pytest.mark.parametrize(("fault", "why"), _FAULTS)
def test_fault_of_one_host_costs_no_checkpoint(
    rig: Rig, launcher: Launcher, fault: str, why: str
) -> None:
    """All wait for it, then end with the host's name; without the fault they resume there."""
    file = rig.checkpoints / str(NEWER) / "state" / "manifest.ocdbt"
    command = fault.format(file=file, directory=rig.checkpoints)
    assert launcher.checkpoints == rig.checkpoints
    world = launcher.start(small_config(), processes=2, devices=2, prefix=on_process_1(command))
    codes = [trainer.wait() for trainer in world]
    told = world[0].output()
    assert codes[0] == ExitCode.STORAGE_UNAVAILABLE, told
    lost = {ExitCode.PEER_LOST, -signal.SIGABRT}  # JAX ends a process whose leader has gone
    assert codes[1] in {ExitCode.STORAGE_UNAVAILABLE, *lost}, world[1].output()
    assert why in told, told
    assert "process 1" in told
    assert _steps(launcher.checkpoints) == BOTH
    again = launcher.start(small_config(), processes=2, devices=2)
    assert [trainer.wait() for trainer in again] == [ExitCode.DONE] * 2, again[0].output()
    assert f"restored step {NEWER} " in again[0].output()


def test_damage_that_everybody_sees_is_put_aside(rig: Rig, launcher: Launcher) -> None:
    """The same file, short for all processes: proof."""
    file = rig.checkpoints / str(NEWER) / "state" / "manifest.ocdbt"
    os.truncate(file, file.stat().st_size // 2)
    world = launcher.start(small_config(), processes=2, devices=2)
    assert [trainer.wait() for trainer in world] == [ExitCode.DONE] * 2, world[0].output()
    assert "checkpoint of step 9 is bad" in world[0].output()
    assert f"restored step {OLDER} " in world[0].output()


def test_damaged_snapshots_memory_is_not_needed(rig: Rig) -> None:
    """Files that cannot be opened cost the start from memory, and no snapshot."""
    with closing(rig.saver()) as saver:
        saver.restore(None)
        rig.save(saver, NEWER + 1, durable=False)
        with _no_more_files():
            assert saver._memory.restore(NEWER + 1) is None
        restored = saver._memory.restore(NEWER + 1)
        assert restored
        assert rig.is_state_of(NEWER + 1, restored.state)


def test_directory_of_a_fresh_run_may_be_empty(tmp_path: Path) -> None:
    """Nothing to restore is no outage."""
    made = Rig(tmp_path, devices=2)
    with closing(made.saver()) as saver:
        assert saver.restore(None).state is None
    shutil.rmtree(made.checkpoints)
