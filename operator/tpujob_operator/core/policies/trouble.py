"""Pods that cannot start: the words of kubelet and scheduler reach the job's conditions."""

from tpujob_operator.api import reasons
from tpujob_operator.api.conditions import ConditionType
from tpujob_operator.core.situation import NOTHING, Outcome, Situation, Verdict
from tpujob_operator.core.views import PodView

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
        "CrashLoopBackOff",
        "CreatePodSandboxError",
        "PreCreateHookError",
        "PostStartHookError",
    }
)


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
    pod, words = waiting[0]
    kind = "worker" if pod.is_worker else "coordinator"
    message = (
        f"{len(waiting)} pods find no node; {kind} {_where(pod)}: {words} "
        "The scheduler keeps trying; check that nodes of this accelerator and topology are free."
    )
    return Outcome(
        verdicts={ConditionType.PROGRESSING: Verdict(False, reasons.UNSCHEDULABLE, message)}
    )


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
    return None


def _where(pod: PodView) -> str:
    if not pod.is_worker:
        return "The coordinator"
    slice_index, host = pod.place
    return f"Host {host} of slice {slice_index}"
