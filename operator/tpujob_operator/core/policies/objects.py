"""The objects of the current attempt exist."""

from tpujob_agent.protocol import Event, EventKind
from tpujob_operator.api import reasons
from tpujob_operator.api.conditions import ConditionType
from tpujob_operator.core.manifests import build
from tpujob_operator.core.observations import FactKind
from tpujob_operator.core.plan import Action, Apply, Delete, Note
from tpujob_operator.core.policies.attempts import budgets_used
from tpujob_operator.core.policies.placement import suspects_of
from tpujob_operator.core.policies.preflight import is_held
from tpujob_operator.core.situation import NOTHING, Outcome, Situation, Verdict, fact
from tpujob_operator.core.suspects import Avoided

#: Seconds between two looks for a JobSet installation.
JOBSET_RETRY_S = 5.0
#: Secret and Service are not watched: they are applied anew this often.
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
        return _repair(situation)
    is_same = situation.attempt == snapshot.attempt
    if snapshot.leftovers if is_same else snapshot.of_attempts:
        return _clear(situation)
    if is_held(situation):
        return NOTHING
    if situation.job.spec.suspend and situation.job.spec.queue:
        return NOTHING  # in its queue it would be started
    wait_ms = situation.memory.next_attempt_ms - situation.now_ms
    if wait_ms > 0:
        return Outcome(facts=_stopped(situation), requeue_after_s=wait_ms / 1000)
    return Outcome(
        actions=tuple(Apply(manifest) for manifest in _manifests(situation)),
        facts=(fact(situation, FactKind.ATTEMPT_STARTED, attempt=situation.attempt),),
        notes=(
            Note(
                reasons.CREATED,
                f"Attempt {situation.attempt} begins: {_slices(situation)} of "
                f"{situation.job.shape.hosts} hosts are asked for.",
            ),
        ),
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


def _manifests(situation: Situation) -> list[dict[str, object]]:
    return build(
        situation.job,
        attempt=situation.attempt,
        options=situation.snapshot.options,
        budgets_used=budgets_used(situation),
        avoided=Avoided.of(suspects_of(situation)),
    )


def _slices(situation: Situation) -> str:
    spec = situation.job.spec
    return f"{spec.slices} slices" + (f" and {spec.spares} spares" if spec.spares else "")


def _repair(situation: Situation) -> Outcome:
    """Apply Secret and Service again now and then: somebody may have deleted them."""
    due_ms = situation.snapshot.applied_ms + REPAIR_INTERVAL_MS - situation.now_ms
    if due_ms > 0:
        return Outcome(requeue_after_s=due_ms / 1000)
    manifests = [item for item in _manifests(situation) if item["kind"] != "JobSet"]
    return Outcome(actions=tuple(Apply(manifest) for manifest in manifests))


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
