"""Answers of preflights."""

from collections.abc import Iterable
from typing import Any

from tpujob_agent.preflight import Answer, Verdict

FITS = Verdict(Answer.FITS, "fits: 9.50 of 15.75 GiB per chip")
DOES_NOT_FIT = Verdict(
    Answer.DOES_NOT_FIT,
    "does not fit: 18.00 of 15.75 GiB per chip; the nearest that fits: topology 2x4",
)
INVALID = Verdict(Answer.INVALID, "the trainer's configuration has 1 problem: mesh.tensr")
UNABLE = Verdict(Answer.UNABLE, "the TPU compiler is missing")


def end(pod: dict[str, Any], message: str, reason: str = "Error") -> None:
    """The container of a preflight's pod ends; the Job controller has not seen it yet."""
    ended = {"terminated": {"reason": reason, "message": message}}
    pod["status"] = {"phase": "Failed", "containerStatuses": [{"state": ended}]}


def end_preflights(pods: Iterable[dict[str, Any]], verdict: Verdict) -> None:
    """Those of these pods that check something end with this answer."""
    for pod in pods:
        if pod["metadata"]["labels"]["tpujob.dev/role"] == "preflight":
            end(pod, verdict.to_json())
