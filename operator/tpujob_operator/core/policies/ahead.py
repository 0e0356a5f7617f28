"""Compiling ahead: what a job will run is compiled while the job waits for its chips.

Nothing waits for it, and what goes wrong with it is told by its own Job alone.
"""

from __future__ import annotations

from tpujob_agent.preflight import Answer
from tpujob_operator.core.manifests import preflight, programs
from tpujob_operator.core.plan import Action, Create, Delete
from tpujob_operator.core.policies.preflight import is_due
from tpujob_operator.core.situation import NOTHING, Outcome, Situation
from tpujob_operator.core.views import JobView


def compile_ahead(situation: Situation) -> Outcome:
    """Begin when the preflight lets the job start; give up when the job trains without."""
    made = situation.snapshot.programs
    if made is not None:
        return Outcome(actions=_end(made, _why_needless(situation, made)))
    if not _is_answered_now(situation):
        return NOTHING
    manifest = programs.build(situation.job, situation.snapshot.options)
    return Outcome(actions=(Create(manifest, is_optional=True),) if manifest else ())


def remove_ahead(situation: Situation) -> tuple[Action, ...]:
    """What is to be deleted of it when the job is over."""
    made = situation.snapshot.programs
    if made is None or made.is_over:
        return ()
    return _end(made, "the job has ended")


def _is_answered_now(situation: Situation) -> bool:
    """Whether this pass has learnt that the job may start, and there is a compiler for it.

    Only in this one: a Job that is gone later has done what it could.
    """
    known = situation.snapshot.memory.checks
    new = [check for check in situation.memory.checks if check.answer and check not in known]
    is_on_cpus = programs.runs_on_cpus(situation.job)
    return any(
        check.answer == Answer.FITS or (is_on_cpus and check.answer == Answer.UNABLE)
        for check in new
    )


def _why_needless(situation: Situation, made: JobView) -> str:
    """Empty: it is not."""
    if made.owner_uid != situation.snapshot.uid:
        return ""  # the garbage collector removes a namesake's
    if not situation.job.spec.trainer or made.checked != preflight.checked(situation.job):
        return "it compiles for an earlier spec"
    is_late = situation.history.ledger.is_training and not is_due(situation)
    return "the job trains without it" if is_late and not made.is_over else ""


def _end(made: JobView, why: str) -> tuple[Action, ...]:
    return (Delete(made.ref, why),) if why and not made.is_deleting else ()
