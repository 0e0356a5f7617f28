"""Simulated jobs: the real coordinator recovers, the real ledger adds up, the formula agrees."""

import dataclasses
import random

import pytest

from tpujob_agent.protocol import EventKind
from tpujob_coordinator.stages import Stage
from tpujob_operator.core.timetypes import TimeType
from tpujob_operator.sim.faults import Fault, FaultKind
from tpujob_operator.sim.job import START_MS, Job
from tpujob_operator.sim.outcome import simulate
from tpujob_operator.sim.scenario import LADDER, Faults, Features, Scenario, Times

SMALL = Scenario("small", 1_024, 256, 2)
HOUR_MS = 3_600_000
EVERYTHING = Features(elastic=True, spares=1)


def _run(scenario: Scenario, *faults: Fault) -> Job:
    job = Job(scenario)
    job.run(sorted(faults))
    return job


def _with(features: Features, **changes: object) -> Scenario:
    return dataclasses.replace(SMALL, features=features, **changes)  # type: ignore[arg-type] # names of its fields


def _recovered_s(job: Job) -> list[float]:
    return [incident.recovered_after_ms / 1000 for incident in job.history.incidents.newest]


def test_undisturbed_job_loses_its_start_and_its_saves_only() -> None:
    """Without faults there is one world, and every type of time is what was put in."""
    job = _run(_with(Features()))
    view = job.history.ledger.view(job.now_ms)
    assert job.core.stage is Stage.RUNNING
    assert job.core.newest_generation == 1
    lost = {kind: ms for kind, ms in view.by_type_ms.items() if kind is not TimeType.PRODUCTIVE}
    stall_ms = lost.pop(TimeType.CHECKPOINT_STALL)
    assert {kind: ms for kind, ms in lost.items() if ms} == {
        TimeType.RUNTIME_INIT: 18_000, TimeType.RESTORE: 60_000, TimeType.SETUP: 13_000
    }  # fmt: skip
    assert 0 < stall_ms < 0.01 * view.wall_ms


def test_crash_restarts_in_place() -> None:
    """A crash costs a start: nothing is scheduled, nothing is waited for."""
    job = _run(_with(Features()), Fault(HOUR_MS, FaultKind.CRASH, (2,)))
    assert _recovered_s(job) == [18 + 60 + 13]


def test_dead_host_is_noticed_by_its_silence_and_replaced() -> None:
    """The core's own five seconds pass, and then the slice is made anew."""
    job = _run(_with(Features()), Fault(HOUR_MS, FaultKind.HOST, (2,)))
    assert _recovered_s(job) == [5 + 96 + 91]
    (incident,) = job.history.incidents.newest
    assert incident.detected_after_ms == 5_000


def test_spare_slice_saves_the_wait_for_a_replacement() -> None:
    """The world goes on with the spare as soon as the loss is noticed."""
    job = _run(_with(Features(spares=1)), Fault(HOUR_MS, FaultKind.HOST, (2,)))
    assert _recovered_s(job) == [5 + 91]
    assert job.core.world is not None
    assert job.core.world.slices == (0, 1, 3, 4)


def test_maintenance_with_notice_loses_no_step() -> None:
    """Everybody saves before the host goes."""
    job = _run(_with(Features(spares=1)), Fault(HOUR_MS, FaultKind.PLANNED, (2,)))
    (incident,) = job.history.incidents.newest
    assert (incident.cause.value, incident.lost_steps) == ("preemption", 0)
    assert job.core.pacing.measures.rate.failures == 0


def test_smaller_world_trains_while_a_slice_is_missing() -> None:
    """After its patience the job goes on with three slices, and grows when the fourth returns."""
    scenario = _with(Features(elastic=True), times=Times(replace=7_200.0))
    job = _run(scenario, Fault(HOUR_MS, FaultKind.HOST, (2,)))
    events = job.core.timeline.after(0, limit=job.core.timeline.last, most_bytes=1 << 30)
    sizes = [len(e.data["slices"]) for e in events if e.kind is EventKind.GENERATION_STARTED]
    assert sizes == [4, 3, 4]
    patient = dataclasses.replace(scenario, features=Features())
    assert job.step > _run(patient, Fault(HOUR_MS, FaultKind.HOST, (2,))).step


def test_everything_goes_where_nothing_restarts_in_place() -> None:
    """All pods are made anew, and one fault is one restart."""
    job = _run(_with(Features(in_place=False)), Fault(HOUR_MS, FaultKind.CRASH, (0,)))
    (recovered_s,) = _recovered_s(job)
    assert recovered_s == 611 + 91


@pytest.mark.parametrize("features", LADDER.values(), ids=LADDER)
@pytest.mark.parametrize("seed", [1, 2])
def test_any_faults_leave_a_job_that_trains_and_a_ledger_that_adds_up(
    features: Features, seed: int
) -> None:
    """After two days of a fault every half hour, types and unsettled time are the wall time."""
    scenario = _with(features, faults=Faults(per_chip_day=48 / 1_024, planned=5, width=2))
    job = _run(scenario, *scenario.draw(seed))
    view = job.history.ledger.view(job.now_ms)
    assert sum(view.by_type_ms.values()) + view.unsettled_ms == view.wall_ms
    assert view.wall_ms == scenario.duration_ms
    assert job.now_ms == START_MS + view.wall_ms
    assert job.history.ledger.committed_step > 0


@pytest.mark.parametrize("features", [Features(), EVERYTHING])
def test_steady_stretches_told_at_once_change_no_sum(features: Features) -> None:
    """Hourly words and a word after every save lead to the same ledger, to a tenth of a point."""
    faults = Faults(per_chip_day=12 / 1_024)
    coarse = _with(features, faults=faults)
    fine = dataclasses.replace(coarse, told_every_s=0)
    one, other = simulate("coarse", coarse, 3), simulate("fine", fine, 3)
    assert one.restarts == other.restarts
    assert one.goodput == pytest.approx(other.goodput, abs=1e-3)
    for group, share in one.shares.items():
        assert share == pytest.approx(other.shares[group], abs=1e-3)


@pytest.mark.parametrize("features", [Features(), Features(spares=1)])
def test_one_agent_stands_for_a_slice(features: Features) -> None:
    """Four agents in every slice lead to the same job as one."""
    scenario = _with(features, faults=Faults(per_chip_day=12 / 1_024))
    every = dataclasses.replace(scenario, agents_per_slice=4)
    one, four = _run(scenario, *scenario.draw(5)), _run(every, *scenario.draw(5))
    assert one.step == four.step
    assert one.history.ledger.closed == four.history.ledger.closed


@pytest.mark.parametrize("mtbf_h", [2, 8])
def test_formula_and_simulation_agree(mtbf_h: int) -> None:
    """The formula that plans the interval predicts what the simulated job comes to."""
    faults = Faults(per_chip_day=24 / mtbf_h / 1_024, host_share=0)
    outcome = simulate("job", _with(Features(), faults=faults, days=30), 1)
    assert outcome.mtbf_s == pytest.approx(mtbf_h * 3600, rel=0.35)
    assert outcome.goodput == pytest.approx(outcome.predicted, abs=0.005)


def test_planned_interval_beats_others() -> None:
    """Among fixed intervals none does better than what the job works out, but for chance."""
    faults = Faults(per_chip_day=12 / 1_024, host_share=0)
    auto = simulate("auto", _with(Features(), faults=faults, days=30), 2)
    for steps in (3, 100, 1_000):
        scenario = _with(Features(auto_interval=False), faults=faults, days=30)
        fixed = simulate("fixed", dataclasses.replace(scenario, fixed_interval_steps=steps), 2)
        assert auto.goodput > fixed.goodput


def test_equal_seeds_give_equal_outcomes() -> None:
    """A table can be made again, number by number."""
    scenario = _with(EVERYTHING, faults=Faults(per_chip_day=12 / 1_024, weibull_shape=0.7))
    seed = random.Random(4).randrange(1000)
    assert simulate("a", scenario, seed) == simulate("a", scenario, seed)
