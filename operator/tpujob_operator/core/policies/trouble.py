"""Pods that cannot start: the words of kubelet and scheduler reach the job's conditions."""

from tpujob_operator.api import reasons
from tpujob_operator.api.base import parse_rfc3339
from tpujob_operator.api.conditions import ConditionType
from tpujob_operator.core.cost import provisioning_of
from tpujob_operator.core.situation import NOTHING, Outcome, Situation, Verdict
from tpujob_operator.core.views import PodView
from tpujob_tpu.provisioning import Provisioning

#: Pods of a slice that is made anew wait so long for the chips of those before them: no news.
_HANDOVER_MS = 5_000
#: Nodes that an autoscaler is to make are waited for so long.
_AUTOSCALER_MS = 600_000
_MOST_SHAPES = 10
_IMAGE = frozenset(
    {
        "ErrImagePull",
        "ImagePullBackOff",
        "ErrImageNeverPull",
        "InvalidImageName",
        "ImageInspectError",
        "RegistryUnavailable",
        "SignatureValidationFailed",
    }
)
_CONTAINER = frozenset(
    {
        "CreateContainerConfigError",
        "CreateContainerError",
        "RunContainerError",
        "CreatePodSandboxError",
        "PreCreateHookError",
        "PostStartHookError",
    }
)
_CRASH_LOOP = "CrashLoopBackOff"


def report_pods_that_cannot_start(situation: Situation) -> Outcome:
    """The job is stalled while a container cannot be made; the kubelet keeps trying."""
    for pod in situation.snapshot.current_pods:
        verdict = None if pod.is_deleting else _trouble(pod)
        if verdict is not None:
            return Outcome(verdicts={ConditionType.STALLED: verdict})
    return NOTHING


def report_unschedulable(situation: Situation) -> Outcome:
    """The job does not progress while no node fits a pod that its world needs."""
    waiting = [
        (pod, words)
        for pod in situation.snapshot.current_pods
        if (words := pod.unschedulable) and not pod.is_deleting
    ]
    if not waiting or situation.history.ledger.generation:  # a world goes on without them
        return NOTHING
    since_ms = min(parse_rfc3339(pod.created) for pod, _ in waiting)
    if (early_ms := since_ms + _HANDOVER_MS - situation.now_ms) > 0:
        return Outcome(requeue_after_s=early_ms / 1000)
    workers = [item for item in waiting if item[0].is_worker]
    missing = _missing_nodes(situation) if workers else ""
    pod, words = workers[0] if missing else waiting[0]
    pods = "1 pod finds" if len(waiting) == 1 else f"{len(waiting)} pods find"
    advice = missing or "check that nodes of this accelerator and topology are free."
    message = f"{pods} no node. {_where(pod)}: {words} The scheduler keeps trying; {advice}"
    verdict = Verdict(False, reasons.UNSCHEDULABLE, message)
    if not missing:
        return Outcome(verdicts={ConditionType.PROGRESSING: verdict})
    return _stalled(situation, pod, missing, verdict)


def _missing_nodes(situation: Situation) -> str:
    """What to do if no node is of the job's kind, be it free or not; empty: some are."""
    shape, known = situation.job.shape, situation.snapshot.cluster.shapes
    if known is None or (shape.gke_accelerator, shape.topology) in known:
        return ""
    others = ", ".join(" ".join(item).strip() for item in sorted(known)[:_MOST_SHAPES])
    return (
        f"no node of the cluster belongs to a slice {shape.gke_accelerator} {shape.topology}, "
        f"whose labels pods select; it has {others or 'no TPU nodes'}. Make such a node pool, "
        "correct spec.accelerator and spec.topology, or see what the autoscaler says."
    )


def _stalled(situation: Situation, pod: PodView, missing: str, progressing: Verdict) -> Outcome:
    """An autoscaler makes nodes within minutes, or says why not; flex-start queues for hours."""
    verdicts = {ConditionType.PROGRESSING: progressing}
    wait_ms = parse_rfc3339(pod.created) + _AUTOSCALER_MS - situation.now_ms
    is_queueing = provisioning_of(situation.job) is Provisioning.FLEX_START
    if is_queueing or ConditionType.STALLED in situation.verdicts:
        return Outcome(verdicts=verdicts)
    if wait_ms > 0:
        return Outcome(verdicts=verdicts, requeue_after_s=wait_ms / 1000)
    message = missing[0].upper() + missing[1:]
    stalled = Verdict(True, reasons.NO_SUCH_NODES, message)
    return Outcome(verdicts={**verdicts, ConditionType.STALLED: stalled})


def _trouble(pod: PodView) -> Verdict | None:
    waiting = pod.waiting
    if waiting is None:
        return None
    reason, message = waiting
    words = f"{reason}: {message}" if message else reason
    if reason in _IMAGE:
        advice = (
            "Check the image's name, and imagePullSecrets if its registry asks for "
            "credentials; the kubelet keeps trying."
        )
        return Verdict(
            True, reasons.IMAGE_UNAVAILABLE, f"{_where(pod)} has no image: {words}. {advice}"
        )
    if reason in _CONTAINER:
        advice = "Correct the cause; the kubelet keeps trying."
        return Verdict(
            True, reasons.CONTAINER_CONFIG, f"{_where(pod)} cannot start: {words}. {advice}"
        )
    if reason == _CRASH_LOOP:
        advice = f"Its last words: kubectl logs --previous {pod.name}. The kubelet starts it again."
        return Verdict(
            True, reasons.CRASH_LOOP, f"{_where(pod)} ends again and again: {words}. {advice}"
        )
    return None


def _where(pod: PodView) -> str:
    if not pod.is_worker:
        return "The coordinator"
    slice_index, host = pod.place
    return f"Host {host} of slice {slice_index}"
