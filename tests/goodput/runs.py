"""Runs told twice: as a coordinator's timeline, and as calls of Google's goodput recorder.

The library's clock starts with the first process and knows steps by their starts only; both
tellings are made from the same moments.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ml_goodput_measurement.src.goodput import GoodputCalculator, GoodputRecorder

from tests.core.histories import event, loss, progress
from tpujob_agent.protocol import EventKind, Phase
from tpujob_operator.core.ledger import Ledger
from tpujob_operator.core.observations import Fact, FactKind, Observation
from tpujob_operator.core.timetypes import TimeType, TimeView

JOB = "j"
START_MS = 1_790_000_000_000


class Log:
    """What the recorder writes to and the calculator reads from, in the place of a cloud's log."""

    def __init__(self) -> None:
        self.entries: list[dict[str, Any]] = []

    def write_cloud_logging_entry(self, entry: dict[str, Any]) -> None:
        """Keep one entry."""
        self.entries.append(entry)

    def read_cloud_logging_entries(
        self, *_: object, **__: object
    ) -> tuple[list[dict[str, Any]], tuple[dt.datetime, str]]:
        """All entries, with the time and the name of the last one."""
        return self.entries, (dt.datetime.now(dt.UTC), "last")


def _time(at_ms: int) -> dt.datetime:
    return dt.datetime.fromtimestamp(at_ms / 1000, dt.UTC)


@dataclasses.dataclass
class Run:
    """A run in the making; times in milliseconds."""

    now_ms: int = START_MS
    told: list[Observation] = dataclasses.field(default_factory=list)
    log: Log = dataclasses.field(default_factory=Log)
    step: int = 0
    saved: int = 0
    generation: int = 0
    stalled_ms: int = 0

    def __post_init__(self) -> None:
        logger: Any = self.log  # the library's own parameter for its tests
        self.recorder = GoodputRecorder(JOB, "log", logging_enabled=True, cloud_logger=logger)

    # ---- what happens

    def world(
        self,
        *,
        init: int = 8_000,
        restore: int = 2_000,
        compiles: int = 5_000,
        tells_restore: bool = False,
    ) -> None:
        """A world starts, restores the last saved step and comes to its first step.

        With ``tells_restore`` its checkpointer writes to the library's log, too, as Orbax can.
        """
        self.generation += 1
        self.step = self.saved
        self._tell(EventKind.GENERATION_STARTED, hosts=1, slices=[0], wantedSlices=1)
        self.recorder.record_job_start_time(_time(self.now_ms))
        self._phase(Phase.INIT)
        self.recorder.record_tpu_init_start_time(_time(self.now_ms))
        self.now_ms += init
        self.recorder.record_tpu_init_end_time(_time(self.now_ms))
        self._phase(Phase.RESTORE)
        self.recorder.record_training_preparation_start_time(_time(self.now_ms))
        self.now_ms += restore
        self._tell(EventKind.RESTORED, step=self.saved)
        if tells_restore:
            self._write_restore(restore)
        self.recorder.record_training_preparation_end_time(_time(self.now_ms))
        self._phase(Phase.COMPILE)
        self._begin_step()
        self.now_ms += compiles
        self._phase(Phase.TRAIN)

    def steps(self, times_ms: Iterable[int], *, save_every: int = 0, blocked_ms: int = 0) -> None:
        """Steps of these times; every so many one is saved, which holds up the loop."""
        for ms in times_ms:
            self.now_ms += ms
            self.step += 1
            saves = save_every and self.step % save_every == 0
            if saves:
                self._save(blocked_ms)
            stall = {"saveBlockedMs": blocked_ms} if saves else {}
            done = progress(self.now_ms, self.step, self.step, generation=self.generation, **stall)
            self.told.append(done)
            if saves:
                self._commit()
            self._begin_step()

    def crash(self, *, into_step: int = 0, detection: int = 0, down: int = 0) -> None:
        """A fault so far into a step, noticed later, and the wait for the next world."""
        onset_ms = self.now_ms + into_step
        self.now_ms = onset_ms + detection
        self.told.append(loss(self.now_ms, onset_ms, generation=self.generation, step=self.step))
        self._gone(down)

    def leave(self, *, blocked_ms: int, down: int) -> None:
        """Everybody saves the last step and leaves in order, as before a preemption."""
        del self.log.entries[-1]  # no further step is begun
        left_ms = self.now_ms = self.now_ms + blocked_ms
        self._tell(EventKind.GENERATION_LEFT, leftAtMs=left_ms, step=self.step)
        self._commit()
        self._gone(down)

    def finish(self) -> None:
        """The run ends with its last step: the next one, begun above, is none."""
        del self.log.entries[-1]
        self._commit()
        self.told.append(Fact(self.now_ms, FactKind.SUCCEEDED))
        self.recorder.record_job_end_time(_time(self.now_ms))

    def fail(self) -> None:
        """The job ends for good; steps that were not saved are lost."""
        del self.log.entries[-1]
        self.told.append(Fact(self.now_ms, FactKind.FAILED))
        self.recorder.record_job_end_time(_time(self.now_ms))

    # ---- what comes of it

    def ours(self) -> TimeView:
        """The ledger's times."""
        ledger = Ledger.start(START_MS)
        for seen in self.told:
            ledger = ledger.apply(seen)
        return ledger.view(self.now_ms)

    def theirs(self, folder: Path) -> tuple[float, dict[str, float]]:
        """The library's goodput and badput by kind, in percent."""
        logger: Any = self.log
        calculator = GoodputCalculator(JOB, "log", cloud_logger=logger, cache_dir=str(folder))
        goodput, badput, _ = calculator.get_job_goodput(include_badput_breakdown=True)
        return goodput, {kind.name: value for kind, value in badput.items() if value}

    # ----

    def _tell(self, kind: EventKind, **data: Any) -> None:
        self.told.append(event(self.now_ms, kind, generation=self.generation, **data))

    def _gone(self, down_ms: int) -> None:
        self._tell(EventKind.GENERATION_STOPPED)
        self._tell(EventKind.MEMBER_LEFT)
        self.told.append(Fact(self.now_ms, FactKind.PODS_UNBOUND))
        self.now_ms += down_ms

    def _phase(self, phase: Phase) -> None:
        self._tell(EventKind.PHASE, phase=phase.value)

    def _begin_step(self) -> None:
        self.recorder.record_step_start_time(self.step + 1, _time(self.now_ms))

    def _commit(self) -> None:
        self.saved = self.step
        self._tell(EventKind.COMMITTED, step=self.step)

    def _save(self, blocked_ms: int) -> None:
        began_ms, self.now_ms = self.now_ms, self.now_ms + blocked_ms
        statistics = {
            "step": self.step,
            "event_type": "save",
            "directory": "gs://bucket/checkpoints",
            "synchronous": False,
            "wait_for_prev_duration_secs": 0.0,
            "checkpointer_blocking_duration_secs": blocked_ms / 1000,
            "get_old_steps_duration_secs": 0.0,
            "checkpoint_manager_blocking_start_time": began_ms / 1000,
            "checkpoint_manager_blocking_duration_secs": blocked_ms / 1000,
        }
        self.log.write_cloud_logging_entry({"job_name": JOB, **statistics})

    def _write_restore(self, ms: int) -> None:
        statistics = {
            "step": self.saved,
            "event_type": "restore",
            "directory": "gs://bucket/checkpoints",
            "checkpointer_duration_secs": ms / 1000,
            "checkpoint_manager_start_time": (self.now_ms - ms) / 1000,
            "checkpoint_manager_duration_secs": ms / 1000,
        }
        self.log.write_cloud_logging_entry({"job_name": JOB, **statistics})


def goodput_percent(view: TimeView) -> float:
    """The ledger's goodput as the library means it: a slow step is a step."""
    steps_ms = sum(
        view.by_type_ms.get(kind, 0) for kind in (TimeType.PRODUCTIVE, TimeType.DEGRADED)
    )
    return 100 * (steps_ms + view.unsettled_ms) / view.wall_ms
