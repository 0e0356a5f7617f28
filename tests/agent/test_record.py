"""The heartbeat record and the client that writes it."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.agent.rig import ROOT
from tests.waiting import wait_until
from tpujob.record import (
    RING_SIZE,
    SAMPLES_KEPT,
    RecordReader,
    RecordWriter,
    SaveRequest,
    Snapshot,
)
from tpujob_agent.protocol import Env, Phase


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where the record is."""
    return tmp_path / "record"


def test_what_is_written_is_read(path: Path) -> None:
    """Every call of a training loop shows in the agent's snapshot."""
    reader = RecordReader(path, generation=3)
    assert reader.read() == Snapshot()
    writer = RecordWriter(path)
    writer.phase(Phase.RESTORE)
    writer.restored(40)
    for step in range(41, 44):
        writer.step(step, 0.5, 100, 0.002)
    writer.save_blocked(0.25)
    writer.committed(42)
    writer.model_flops(4.8e10)
    seen = reader.read()
    assert seen.pid == os.getpid()
    assert (seen.phase, seen.restored_step) == (Phase.TRAIN, 40)
    assert (seen.first_step, seen.step, seen.tokens, seen.input_wait_ms) == (41, 43, 300, 6)
    assert (seen.committed_step, seen.save_blocked_ms) == (42, 250)
    assert seen.flops_per_token == 48_000_000_000
    assert 0 < seen.phase_at_ms <= seen.first_step_at_ms <= seen.step_at_ms
    assert seen.committed_at_ms >= seen.step_at_ms


def test_the_newest_losses_are_kept(path: Path) -> None:
    """The ring laps without mixing up steps, and keeps what JSON cannot say."""
    reader, writer = RecordReader(path, 1), RecordWriter(path)
    for step in range(1, RING_SIZE + 11):
        writer.step(step, math.nan if step == RING_SIZE else 1 / step, 0, 0.0)
    written = reader.read().losses_written
    assert written == RING_SIZE + 10
    pairs = reader.losses(0, written)
    assert [pair[0] for pair in pairs] == list(range(11, RING_SIZE + 11))
    assert math.isnan(pairs[RING_SIZE - 11][1])
    assert reader.losses(written - 1, written) == [[RING_SIZE + 10, 1 / (RING_SIZE + 10)]]


def test_times_of_steps_are_kept_one_by_one(path: Path) -> None:
    """What a host did with its step, with the pauses and saves since the one before."""
    reader, writer = RecordReader(path, 1), RecordWriter(path)
    writer.step(1, None, 0, 0.0)  # tells no times
    writer.collecting("start", {})
    writer.collecting("stop", {})
    writer.save_blocked(0.25)
    writer.step(2, None, 0, 0.5, (1000.0, 0.125))
    writer.step(3, None, 0, 0.0, (1001.0, 0.125))
    written = reader.read().samples_written
    first, second = reader.samples(0, written, 4)
    assert first[:4] == [2, 1_000_000, 500, 125]
    assert first[4] >= 0
    assert (first[5], second[5]) == (250, 0)
    assert reader.samples(written, written, 4) == []


def test_hosts_choose_the_same_steps(path: Path) -> None:
    """Whatever was told before: of many steps the multiples of a power of two."""
    reader, writer = RecordReader(path, 1), RecordWriter(path)
    for step in range(1, SAMPLES_KEPT + 101):
        writer.step(step, None, 0, 0.0, (float(step), 0.0))
    written = reader.read().samples_written
    last = SAMPLES_KEPT + 100
    assert [row[0] for row in reader.samples(written - 4, written, 4)] == [
        *range(last - 3, last + 1)
    ]
    chosen = [[row[0] for row in reader.samples(after, written, 4)] for after in (0, 100, 101)]
    assert chosen[0] == chosen[1] == [128, 192, 256, 320]
    assert set(chosen[2]) <= set(chosen[0])


def test_probes_are_counted(path: Path) -> None:
    """The newest one is told, and that it is new."""
    reader, writer = RecordReader(path, 1), RecordWriter(path)
    assert (reader.read().probes, reader.read().probe_us) == (0, 0)
    writer.probe(0.5)
    writer.probe(0.0025)
    assert (reader.read().probes, reader.read().probe_us) == (2, 2500)
    writer.recompiled()
    assert reader.read().recompiles == 1


_WRITER = """
import sys
from pathlib import Path
from tpujob.record import RecordWriter
writer = RecordWriter(Path(sys.argv[1]))
while True:
    writer.restored(5)
"""


def test_a_section_that_is_being_written_is_not_read(path: Path) -> None:
    """Nobody takes half of it for a fresh start."""
    reader = RecordReader(path, 1)
    writer = subprocess.Popen(
        [sys.executable, "-c", _WRITER, path],
        env={"PYTHONPATH": f"{ROOT / 'trainer'}:{ROOT / 'operator'}"},
    )
    try:
        wait_until(lambda: reader.read().restored_step == 5, "the first writing")
        seen = {reader.read().restored_step for _ in range(100_000)}
    finally:
        writer.kill()
        writer.wait()
    assert seen <= {5, -1}  # one that never came to rest is left out, which is no step


def test_a_writer_killed_half_way_does_not_stop_the_reader(path: Path) -> None:
    """A torn section is left out, wherever it is torn; the others still tell."""
    reader, writer = RecordReader(path, 1), RecordWriter(path)
    writer.step(1, None, 0, 0.0)
    writer.committed(1)
    whole = path.read_bytes()
    writer.step(2, None, 100, 1.0)
    for word in range(128, 200, 8):  # of the loop's section; those of the next step are there
        with path.open("r+b") as record:
            record.seek(word)
            is_changed = record.read(8) != whole[word : word + 8]
            record.seek(word)
            record.write(whole[word : word + 8])
        seen = reader.read()
        assert (seen.step, seen.committed_step) == (0 if is_changed else 2, 1)
        writer.step(2, None, 100, 1.0)
        whole = path.read_bytes()
        writer.step(2, None, 100, 1.0)


def test_a_wait_for_a_save_shows_while_it_lasts(path: Path) -> None:
    """The program tells its beginning, its limit, and, however it ends, its end."""
    reader = RecordReader(path, 1)
    code = (
        "import sys, tpujob\n"
        "def pause():\n"
        "    print(flush=True)\n"
        "    sys.stdin.readline()\n"
        "with tpujob.waiting_for_save():\n"
        "    pause()\n"
        "try:\n"
        "    with tpujob.waiting_for_save(2.5):\n"
        "        pause()\n"
        "        raise OSError\n"
        "except OSError:\n"
        "    pause()\n"
    )
    env = {Env.RECORD: str(path), "PYTHONPATH": str(ROOT / "trainer")}
    pipe = subprocess.PIPE
    seen = [reader.read()]
    with subprocess.Popen(
        [sys.executable, "-c", code], env=env, stdin=pipe, stdout=pipe
    ) as program:
        assert program.stdin
        assert program.stdout
        for _ in range(3):
            program.stdout.readline()
            seen.append(reader.read())
            program.stdin.write(b"\n")
            program.stdin.flush()
    assert [one.save_wait_since_ms > 0 for one in seen] == [False, True, True, False]
    assert [one.save_wait_limit_ms for one in seen] == [-1, -1, 2_500, -1]


def test_a_new_generation_starts_empty(path: Path) -> None:
    """An old trainer that still writes has its own file, which nobody reads any more."""
    RecordReader(path, 1)
    old = RecordWriter(path)
    reader = RecordReader(path, 2)
    old.step(7, None, 0, 0.0)
    assert reader.read().step == 0


def test_a_save_is_asked_for_at_one_step(path: Path) -> None:
    """All ranks must answer yes at the same step and at no other."""
    reader = RecordReader(path, 1)
    reader.ask_for_save(12)
    code = "import tpujob; print([s for s in range(20) if tpujob.should_save(s)])"
    env = {Env.RECORD: str(path), "PYTHONPATH": str(ROOT / "trainer")}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, check=True)
    assert done.stdout.strip() == b"[12]"


def test_a_save_may_come_with_the_wish_to_leave(path: Path) -> None:
    """The trainer reads both, and a later save without the wish takes it back."""
    reader, writer = RecordReader(path, 1), RecordWriter(path)
    assert writer.save_request() == SaveRequest(0, then_leave=False)
    reader.ask_for_save(12, then_leave=True)
    assert writer.save_request() == SaveRequest(12, then_leave=True)
    reader.ask_for_save(20)
    assert writer.save_request() == SaveRequest(20, then_leave=False)


@pytest.mark.parametrize("value", [None, "/nowhere/record"])
def test_without_an_agent_nothing_happens(value: str | None) -> None:
    """A script runs the same where no agent is, or where its record cannot be opened."""
    code = (
        "import tpujob; tpujob.phase('init'); tpujob.restored(0); tpujob.step(1, loss=2.0);"
        "tpujob.committed(1); tpujob.save_blocked(0.1);"
        "tpujob.waiting_for_save().__enter__();"
        "assert not tpujob.should_save(1); assert tpujob.step_ceiling() is None; print('fine')"
    )
    env = {"PYTHONPATH": str(ROOT / "trainer")} | ({Env.RECORD: value} if value else {})
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, check=True)
    assert done.stdout.strip() == b"fine"
    assert (b"progress is not reported" in done.stderr) == bool(value)


def test_a_misspelt_phase_is_told() -> None:
    """A typing error in a script raises, also where no agent runs."""
    import tpujob

    with pytest.raises(ValueError, match="traning"):
        tpujob.phase("traning")


def test_interval_of_the_coordinator_reaches_the_program(path: Path) -> None:
    """None until it is told one, then seconds; taken back with 0."""
    reader = RecordReader(path, 1)
    code = (
        "import sys, tpujob\n"
        "for _ in range(3):\n"
        "    print(tpujob.save_interval_s(), flush=True)\n"
        "    sys.stdin.readline()"
    )
    env = {Env.RECORD: str(path), "PYTHONPATH": str(ROOT / "trainer")}
    pipe = subprocess.PIPE
    with subprocess.Popen(
        [sys.executable, "-c", code], env=env, stdin=pipe, stdout=pipe
    ) as program:
        assert program.stdin
        assert program.stdout
        seen = []
        for interval_ms in (2_500, 0, 0):
            seen.append(program.stdout.readline().strip())
            reader.save_every(interval_ms)
            program.stdin.write(b"\n")
            program.stdin.flush()
    assert seen == [b"None", b"2.5", b"None"]


def test_a_commit_tells_its_cost_or_that_it_is_not_known(path: Path) -> None:
    """-1 is no cost, and no commit has none."""
    reader, writer = RecordReader(path, 1), RecordWriter(path)
    writer.save_blocked(0.1)
    seen = [reader.read()]
    writer.committed(1, blocked_s=0.25, lag_s=3.0)
    seen.append(reader.read())
    writer.committed(2)
    seen.append(reader.read())
    costs = [(one.commit_blocked_ms, one.commit_lag_ms) for one in seen]
    assert costs == [(-1, -1), (250, 3_000), (-1, -1)]
