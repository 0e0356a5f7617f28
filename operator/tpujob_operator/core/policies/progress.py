"""How far the job has come: the conditions of a job that is under way."""

from collections import Counter

from tpujob_agent.protocol import Cause, Phase
from tpujob_operator.api import reasons
from tpujob_operator.api.conditions import ConditionType
from tpujob_operator.core.incidents import Incident
from tpujob_operator.core.observations import FactKind
from tpujob_operator.core.situation import NOTHING, Outcome, Situation, Verdict, fact

#: A coordinator may start, or start anew, for so long before its silence is told.
_SILENCE_MS = 60_000
#: Reasons of conditions and events for what is being recovered from.
REASON_OF_CAUSE = {
    Cause.PROCESS: reasons.PROCESS_LOST,
    Cause.USER_ERROR: reasons.USER_ERROR,
    Cause.HANG: reasons.HANG,
    Cause.CHECKPOINT: reasons.CHECKPOINT_BAD,
    Cause.STORAGE: reasons.STORAGE_UNAVAILABLE,
    Cause.PREEMPTION: reasons.PREEMPTED,
    Cause.MAINTENANCE: reasons.MAINTENANCE,
    Cause.NODE: reasons.NODE_LOST,
    Cause.COORDINATOR: reasons.COORDINATOR_LOST,
    Cause.STRAGGLER: reasons.STRAGGLER,
    Cause.UNKNOWN: reasons.OTHER_LOSS,
}


def note_bound_pods(situation: Situation) -> Outcome:
    """Tell the ledger when as many slices as wanted have nodes, and when that ends."""
    ledger = situation.history.ledger
    if ledger.generation or ledger.complete or situation.job.spec.suspend:
        return NOTHING
    bound = Counter(
        pod.place[0] for pod in situation.snapshot.workers if pod.node and not pod.is_lost
    )
    whole = sum(1 for count in bound.values() if count >= situation.job.shape.hosts)
    is_bound = whole >= situation.job.spec.slices
    if is_bound == ledger.bound:
        return NOTHING
    kind = FactKind.PODS_BOUND if is_bound else FactKind.PODS_UNBOUND
    return Outcome(facts=(fact(situation, kind),))


def report_training(situation: Situation) -> Outcome:
    """Ready while training with no incident open; Progressing while nothing stands in the way."""
    if situation.job.spec.suspend or situation.history.ledger.queued:
        return NOTHING
    ledger = situation.history.ledger
    is_training = ledger.is_training and not situation.history.incidents.open
    verdicts = {ConditionType.READY: _ready(situation, is_training=is_training)}
    if ConditionType.PROGRESSING not in situation.verdicts:
        verdicts[ConditionType.PROGRESSING] = _progressing(situation, is_training=is_training)
    return Outcome(verdicts=verdicts)


def report_restart(situation: Situation) -> Outcome:
    """Restarting from a loss until the first step after it."""
    incidents = situation.history.incidents.open
    if (
        not incidents
        or ConditionType.RESTARTING in situation.verdicts
        or situation.job.spec.suspend
        or situation.history.ledger.queued
    ):
        return NOTHING
    newest = incidents[-1]
    message = f"Recovering. {place_of(newest)}: {newest.message or newest.cause.value}"
    return Outcome(
        verdicts={ConditionType.RESTARTING: Verdict(True, REASON_OF_CAUSE[newest.cause], message)}
    )


def report_silent_coordinator(situation: Situation) -> Outcome:
    """Degraded while the coordinator runs but cannot be read: the status grows old then."""
    if not situation.snapshot.is_key_known and situation.jobset is not None:
        return _degraded(reasons.KEY_UNKNOWN, _KEY_UNKNOWN.format(jobset=situation.jobset))
    silent_ms = situation.snapshot.silent_since_ms
    if not silent_ms:
        return NOTHING
    wait_ms = silent_ms + _SILENCE_MS - situation.now_ms
    if wait_ms > 0:
        return Outcome(requeue_after_s=wait_ms / 1000)
    if situation.snapshot.is_unauthorized and situation.jobset is not None:
        why = situation.snapshot.silent_why
        message = _COORDINATOR_REFUSES.format(jobset=situation.jobset, why=why)
        return _degraded(reasons.COORDINATOR_REFUSES, message)
    why = f" ({situation.snapshot.silent_why})" if situation.snapshot.silent_why else ""
    return _degraded(reasons.COORDINATOR_UNREACHABLE, _COORDINATOR_UNREACHABLE.format(why=why))


def _degraded(reason: str, message: str) -> Outcome:
    return Outcome(verdicts={ConditionType.DEGRADED: Verdict(True, reason, message)})


_BLIND = "so step and goodput stand still here; training is not affected."
_COORDINATOR_UNREACHABLE = (
    f"The coordinator runs, but the operator cannot read it{{why}}, {_BLIND} Look at the "
    "coordinator pod's log, and whether a network policy keeps the operator from port 7078."
)
_COORDINATOR_REFUSES = (
    f"The coordinator does not accept the operator's requests ({{why}}), {_BLIND} If nothing is "
    "wrong with the clocks, somebody has changed the job's Secret: delete the Secret that the "
    "job's pods name, and then JobSet {jobset.name}. The operator creates both again, and the job "
    "resumes from its last checkpoint."
)
_KEY_UNKNOWN = (
    f"The attempt was made with a key that the operator does not have any more, {_BLIND} Add the "
    "earlier key (id {jobset.key_id}) to the operator's key Secret as `previous` and restart the "
    "operator, or delete JobSet {jobset.name}: the operator creates it again with its present "
    "key, and the job resumes from its last checkpoint."
)


def place_of(incident: Incident) -> str:
    """Where an incident happened, to begin a sentence with."""
    if incident.slice < 0:
        return "The job"
    node = f" on node {incident.node}" if incident.node else ""
    return f"Host {incident.worker} of slice {incident.slice}{node}"


def report_missing_hosts(situation: Situation) -> Outcome:
    """Degraded while the world that trains is smaller than wanted."""
    history = situation.history
    if not history.ledger.generation or history.hosts >= situation.hosts:
        return NOTHING
    hosts, wanted = situation.job.shape.hosts, situation.job.spec.slices
    message = (
        f"Training goes on with {history.hosts // hosts} of {wanted} slices, and takes the others "
        "in at a checkpoint when they are back. See why their pods are missing."
    )
    return Outcome(verdicts={ConditionType.DEGRADED: Verdict(True, reasons.HOSTS_MISSING, message)})


def _ready(situation: Situation, *, is_training: bool) -> Verdict:
    if is_training:
        is_unseen = situation.history.ledger.unseen
        return Verdict(True, reasons.TRAINING, _UNSEEN if is_unseen else "All hosts train.")
    return Verdict(False, reasons.NOT_TRAINING, "No step is being trained right now.")


_UNSEEN = "The programs of all hosts run; without an agent nobody tells their steps."
_PHASES = {
    Phase.STARTING: "The trainers are starting.",
    Phase.INIT: "The trainers are finding each other and their devices.",
    Phase.RESTORE: "The trainers are reading a checkpoint.",
    Phase.COMPILE: "The trainers are compiling the step.",
    Phase.SETUP: "The trainers are about to take the first step.",
    Phase.TRAIN: "The trainers are taking steps.",
    Phase.FINISHING: "The trainers are saving for the last time.",
}


def _progressing(situation: Situation, *, is_training: bool) -> Verdict:
    ledger = situation.history.ledger
    if is_training:
        return Verdict(True, reasons.TRAINING, _UNSEEN if ledger.unseen else _PHASES[Phase.TRAIN])
    if ledger.generation:
        return Verdict(True, reasons.STARTING, _PHASES[ledger.phase])
    if ledger.complete:
        return Verdict(True, reasons.STARTING, "All hosts are in; the world is being formed.")
    if ledger.bound:
        return Verdict(True, reasons.STARTING, "All pods have a node; their containers start.")
    return Verdict(True, reasons.WAITING_FOR_PODS, "Waiting for all pods to have a node.")
