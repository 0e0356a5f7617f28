"""The objects of the current attempt exist."""

import dataclasses
from collections.abc import Iterator
from typing import Any

from tpujob_agent.protocol import Event, EventKind
from tpujob_operator.api import reasons
from tpujob_operator.api.conditions import ConditionType
from tpujob_operator.core.kinds import SECRET
from tpujob_operator.core.manifests import build, secret
from tpujob_operator.core.manifests.options import ManifestOptions
from tpujob_operator.core.memory import remaining_ms
from tpujob_operator.core.observations import FactKind
from tpujob_operator.core.plan import Action, Create, Delete, Note
from tpujob_operator.core.policies.attempts import LONGEST_DELAY_MS, budgets_used
from tpujob_operator.core.policies.placement import suspects_of
from tpujob_operator.core.policies.preflight import is_held
from tpujob_operator.core.situation import NOTHING, Outcome, Situation, Verdict, fact
from tpujob_operator.core.suspects import Avoided
from tpujob_operator.core.views import JobSetView

#: Seconds between two looks for a JobSet installation.
JOBSET_RETRY_S = 5.0
#: Secret and Service are not watched: they are created again this often.
REPAIR_INTERVAL_MS = 600_000
_NO_JOBSET = (
    "JobSet is not installed: the API server does not know jobsets.jobset.x-k8s.io. "
    "Install JobSet 0.12 or newer (https://jobset.sigs.k8s.io/docs/installation/); "
    "the job starts by itself within seconds then."
)


def wait_for_jobset_kind(situation: Situation) -> Outcome:
    """Say so when the cluster has no JobSet, and look again soon."""
    if situation.snapshot.cluster.has_jobset:
        return NOTHING
    return Outcome(
        verdicts={ConditionType.STALLED: Verdict(True, reasons.JOBSET_MISSING, _NO_JOBSET)},
        requeue_after_s=JOBSET_RETRY_S,
        is_final=True,
    )


def ensure_objects(situation: Situation) -> Outcome:
    """Make Secret, Service and JobSet of the current attempt, once nothing older is left."""
    snapshot = situation.snapshot
    if situation.jobset is not None:
        return _repair(situation, situation.jobset)
    is_same = situation.attempt == snapshot.attempt
    if snapshot.leftovers if is_same else snapshot.of_attempts:
        return _clear(situation)
    if is_held(situation):
        return NOTHING
    if situation.job.spec.suspend and situation.job.spec.queue:
        return NOTHING  # in its queue it would be started
    wait_ms = remaining_ms(situation.memory.next_attempt_ms, situation.now_ms, LONGEST_DELAY_MS)
    if wait_ms > 0:
        return Outcome(facts=_stopped(situation), requeue_after_s=wait_ms / 1000)
    return Outcome(
        actions=_creations(situation),
        facts=(fact(situation, FactKind.ATTEMPT_STARTED, attempt=situation.attempt),),
    )


def report_refusals(situation: Situation) -> Outcome:
    """Say so when the API server refuses what the job needs."""
    refusals = situation.snapshot.refusals
    if not refusals or ConditionType.STALLED in situation.verdicts:
        return NOTHING
    message = "; ".join(refusals) + ". The operator tries again, at growing intervals."
    return Outcome(verdicts={ConditionType.STALLED: Verdict(True, reasons.REFUSED, message)})


def _stopped(situation: Situation) -> tuple[Event, ...]:
    """What is waited for from now on is the back-off: nothing is left of the attempt before."""
    if not situation.history.ledger.stopping:
        return ()
    return (Event(0, situation.now_ms, EventKind.GENERATION_STOPPED, {}),)


def _creations(situation: Situation) -> tuple[Create, ...]:
    """The JobSet, and before it what its pods cannot start without."""
    *support, jobset = _manifests(situation, situation.snapshot.options)
    required = tuple(Create(manifest, needs_status=False) for manifest in support)
    message = (
        f"Attempt {situation.attempt} begins: {_slices(situation)} of "
        f"{situation.job.shape.hosts} hosts are asked for."
    )
    note = Note(reasons.CREATED, message)
    return (*required, Create(jobset, requires=required, on_success=(note,)))


def _manifests(situation: Situation, options: ManifestOptions) -> list[dict[str, Any]]:
    return build(
        situation.job,
        attempt=situation.attempt,
        options=options,
        budgets_used=budgets_used(situation),
        avoided=Avoided.of(suspects_of(situation)),
    )


def _slices(situation: Situation) -> str:
    spec = situation.job.spec
    return f"{spec.slices} slices" + (f" and {spec.spares} spares" if spec.spares else "")


def _repair(situation: Situation, jobset: JobSetView) -> Outcome:
    """Create Secret and Service again now and then: somebody may have deleted them."""
    strays = _strays(situation)
    wait_ms = remaining_ms(
        situation.snapshot.applied_ms + REPAIR_INTERVAL_MS, situation.now_ms, REPAIR_INTERVAL_MS
    )
    if wait_ms:
        return Outcome(actions=strays, requeue_after_s=wait_ms / 1000)
    return Outcome(actions=(*strays, *_repairs(situation, jobset)))


def _repairs(situation: Situation, jobset: JobSetView) -> Iterator[Create]:
    """What the attempt was made with: its pods name the Secret of the key that there was then."""
    options = situation.snapshot.options
    key = secret.find_key(options, jobset.key_id)
    *support, _ = _manifests(situation, dataclasses.replace(options, operator_key=key or ""))
    for manifest in support:
        if key is not None or manifest["kind"] != SECRET.kind:
            yield Create(manifest, needs_status=False)


def _strays(situation: Situation) -> tuple[Delete, ...]:
    """JobSets of other attempts, beside the one that is meant to be there.

    An operator that was held up for long may have made one that was no longer wanted.
    """
    return tuple(
        Delete(jobset.ref, f"attempt {situation.attempt} is the one that runs")
        for jobset in situation.snapshot.own_jobsets
        if jobset.attempt != situation.attempt and not jobset.is_deleting
    )


def _clear(situation: Situation) -> Outcome:
    """Two attempts would write the same checkpoints: the old one must be gone entirely."""
    planned = {action.ref.uid for action in situation.actions if isinstance(action, Delete)}
    deletions: tuple[Action, ...] = tuple(
        Delete(jobset.ref, "it belongs to an earlier attempt")
        for jobset in situation.snapshot.own_jobsets
        if not jobset.is_deleting and jobset.uid not in planned
    )
    message = "Pods of an earlier attempt are still there; the next one begins when they are gone."
    return Outcome(
        actions=deletions,
        verdicts={ConditionType.PROGRESSING: Verdict(True, reasons.NEW_ATTEMPT, message)},
    )
