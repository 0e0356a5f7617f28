"""What a run tells about its steps."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from tests.trainer.test_profiler import traced_steps
from tests.trainer.worlds import Launcher, small_config
from tpujob.record import RecordReader
from tpujob_agent.protocol import Env


@pytest.fixture
def lines(launcher: Launcher, tmp_path: Path) -> list[dict[str, float]]:
    """The JSON lines of a small run that saves at steps 4 and 8 and traces steps 5 and 6."""
    config = small_config(steps=8, profile={"steps": "5-6", "directory": str(tmp_path / "p")})
    reader = RecordReader(tmp_path / "record", generation=1)
    trainer = launcher.run(config, env={Env.RECORD: str(tmp_path / "record")})
    assert trainer.wait() == 0, trainer.output()
    seen = reader.read()
    assert (seen.step, seen.tokens) == (8, 8 * 4 * 32)
    assert len(reader.losses(0, seen.losses_written)) == 8
    return [json.loads(line) for line in trainer.output().splitlines() if line.startswith("{")]


def test_steps_are_told_with_their_times(lines: list[dict[str, float]], tmp_path: Path) -> None:
    """Every step has a line whose spans fit into each other, and the trace holds its steps."""
    assert [line["step"] for line in lines] == list(range(1, 9))
    for line in lines:
        assert math.isfinite(line["loss"])
        assert line["tokens"] == 4 * 32
        assert line["gradNorm"] > 0
        assert min(line["inputWaitMs"], line["saveBlockedMs"]) >= 0
        # Both end when the numbers are there; a step begins no later than its dispatch ended.
        assert line["dispatchMs"] > 0
        assert line["readyMs"] > 0
    arrivals = [line["arrivedAtMs"] for line in lines]
    assert arrivals == sorted(arrivals)
    saved = [line for line in lines if line["saveBlockedMs"] > 0]
    assert [line["step"] for line in saved] == [4, 8]
    assert all(line["saveBlockedMs"] <= line["ms"] for line in saved)
    assert traced_steps(tmp_path / "p") == {"steps-5-6": {5, 6}}


def test_documents_can_be_kept_apart(launcher: Launcher, tmp_path: Path) -> None:
    """With masks the same rows give another loss, as nothing is predicted across documents."""
    text = _short_documents(tmp_path)
    losses = [
        launcher.run(
            small_config(
                steps=2,
                data={"source": str(text), "maskDocuments": mask},
                checkpoint={"directory": str(tmp_path / f"masks-{mask}")},
            )
        ).losses()
        for mask in (False, True)
    ]
    assert set(losses[0]) == set(losses[1]) == {1, 2}
    assert losses[0][1] != losses[1][1]


def test_buckets_train_with_one_program_each(launcher: Launcher, tmp_path: Path) -> None:
    """Every bucket's program is compiled before the first step, and all are used."""
    data = {"source": str(_short_documents(tmp_path)), "buckets": "8,16,32"}
    trainer = launcher.run(small_config(steps=12, data=data))
    assert trainer.wait() == 0, trainer.output()
    for length in (8, 16, 32):
        assert f"train step of length {length} compiled" in trainer.output()
    losses = trainer.losses()
    assert set(losses) == set(range(1, 13))
    assert all(math.isfinite(loss) for loss in losses.values())


def _short_documents(tmp_path: Path) -> Path:
    root = tmp_path / "documents"
    root.mkdir()
    for number in range(200):
        (root / f"{number}.txt").write_text("word " * (1 + number % 7))
    return root
