"""What proves that a step is damaged, and what only says that it could not be read."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
from etils import epath

from tpujob_checkpoint import contents
from tpujob_checkpoint.contents import Contents, ContentsDamagedError
from tpujob_checkpoint.errors import CheckpointUnusableError
from tpujob_checkpoint.faults import Finding, Kind, Verdict, brief, finding_of_load, judged

GOOD = Finding()
SHORT = Finding(Kind.DAMAGED, "manifest is short")
STALE = Finding(Kind.UNREAD, "ESTALE on host b")
FOREIGN = Finding(Kind.FOREIGN, "other sizes")


@pytest.mark.parametrize(
    ("found", "all_see_it", "kind"),
    [
        ([GOOD, GOOD], True, Kind.GOOD),
        ([GOOD, SHORT], False, Kind.DAMAGED),  # each has read its own part
        ([GOOD, SHORT], True, Kind.UNREAD),  # of the same file: one of the hosts is at fault
        ([SHORT, SHORT], True, Kind.DAMAGED),
        ([SHORT, STALE], True, Kind.UNREAD),
        ([SHORT, STALE], False, Kind.UNREAD),
        ([GOOD, STALE], False, Kind.UNREAD),
    ],
)
def test_damage_needs_proof(found: list[Finding], all_see_it: bool, kind: Kind) -> None:
    """Whatever one process alone fails at says nothing about the step."""
    verdicts = [judged(seen, all_see_it=all_see_it) for seen in (found, found[::-1])]
    assert [verdict.kind for verdict in verdicts] == [kind, kind]
    assert all(bool(verdict.reasons) is (kind is not Kind.GOOD) for verdict in verdicts)


@pytest.mark.parametrize("found", [[FOREIGN, FOREIGN], [FOREIGN, STALE], [GOOD, SHORT, FOREIGN]])
def test_another_models_step_ends_the_run_for_all(found: list[Finding]) -> None:
    """Also where others could not read it: nobody puts aside what somebody knows to be whole."""
    for seen in (found, found[::-1]):
        with pytest.raises(CheckpointUnusableError, match=r"^other sizes$"):
            judged(seen, all_see_it=True)


def test_proof_is_the_same_twice() -> None:
    """Digests that differ each time are a chip's fault: the reason is equal, the proof is not."""
    first, second = (Finding(Kind.DAMAGED, "digest differs", str(n)) for n in (1, 2))
    assert judged([first], all_see_it=True).proof != judged([second], all_see_it=True).proof
    assert judged([SHORT], all_see_it=True) == Verdict(Kind.DAMAGED, (SHORT.text,), (SHORT.text,))


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (ValueError("DATA_LOSS: Error reading: CRC-32C checksum verification failed"), "damaged"),
        (
            ValueError('Error opening "zarr3" driver: Error decoding manifest: ZSTD'),
            "damaged",
        ),
        (ValueError("UNAVAILABLE: CURL error"), "unread"),
        (ValueError("DEADLINE_EXCEEDED: slow"), "unread"),
        (ValueError("PERMISSION_DENIED: no"), "unread"),
        (ValueError("RESOURCE_EXHAUSTED: 2.0 GiB"), "unread"),
        (RuntimeError("RESOURCE_EXHAUSTED: Out of memory DATA_LOSS"), "unread"),
        (OSError(errno.ESTALE, "Stale file handle"), "unread"),
        (OSError(errno.EMFILE, "Too many open files"), "unread"),
        (MemoryError(), "unread"),
        (KeyError("an API that has changed"), "unread"),
    ],
)
def test_only_a_checksum_of_what_was_read_is_proof(error: Exception, kind: str) -> None:
    """All other errors of a load may be the reader's."""
    finding = finding_of_load(error, "on host a")
    assert finding.kind == kind
    assert kind == "damaged" or "on host a" in finding.text


def test_errno_is_told_by_name() -> None:
    """People look for it."""
    assert brief(OSError(errno.ESTALE, "Stale file handle", "/a")).startswith("ESTALE: ")


@pytest.fixture
def step(tmp_path: Path) -> Path:
    """A step of two files, with its contents written down."""
    (tmp_path / "9" / "state" / "d").mkdir(parents=True)
    (tmp_path / "9" / "state" / "d" / "data").write_bytes(b"1234")
    (tmp_path / "9" / "state" / "_METADATA").write_bytes(b"{}")
    contents.write(epath.Path(tmp_path / "9"), Contents("tree", 2, {"seed": 1}))
    return tmp_path / "9"


def _damage(step: Path) -> list[str]:
    path = epath.Path(step)
    return contents.damage(path, contents.read(path))


def test_contents_are_read_back(step: Path) -> None:
    """As they were written, and the commit's own mark is no damage."""
    known = contents.read(epath.Path(step))
    assert (known.tree, known.rows, known.origin) == ("tree", 2, {"seed": 1})
    assert sorted(known.files) == ["state/_METADATA", "state/d/data"]
    (step / "commit_success.txt").write_text("done")
    assert _damage(step) == []


def test_every_way_a_file_can_be_damaged_is_told(step: Path) -> None:
    """Short, changed, missing: by name."""
    (step / "state" / "d" / "data").write_bytes(b"123")
    assert _damage(step) == ["state/d/data has 3 bytes instead of 4"]
    (step / "state" / "_METADATA").write_bytes(b"[]")
    assert "state/_METADATA is changed" in _damage(step)
    (step / "state" / "_METADATA").unlink()
    assert "state/_METADATA is missing" in _damage(step)


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"\xff\xfe",
        b'{"contents": "{}", "check": "0"}',
        b'{"contents": 1}',
    ],
)
def test_damaged_contents_are_told(step: Path, raw: bytes) -> None:
    """Whatever lies there instead."""
    (step / contents.FILE).write_bytes(raw)
    with pytest.raises(ContentsDamagedError, match="is damaged"):
        contents.read(epath.Path(step))


def test_a_step_that_nobody_can_see_is_not_damaged(step: Path) -> None:
    """Without its contents or all files it is; a directory that is missing proves nothing."""
    known = contents.read(epath.Path(step))
    (step / contents.FILE).unlink()
    with pytest.raises(ContentsDamagedError, match="missing"):
        contents.read(epath.Path(step))
    empty = step.parent / "empty"
    empty.mkdir()
    for place, error in ((empty, ContentsDamagedError), (step.parent / "none", FileNotFoundError)):
        with pytest.raises(error):
            contents.read(epath.Path(place))
        with pytest.raises(error):
            contents.damage(epath.Path(place), known)
