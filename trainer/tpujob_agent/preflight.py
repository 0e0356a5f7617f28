"""What a preflight tells the operator: JSON in the termination message of its container."""

from __future__ import annotations

import dataclasses
import json

from tpujob_agent.events import ProtocolError
from tpujob_agent.text import Text

#: Where Kubernetes takes the message from; it keeps 4,096 bytes.
TERMINATION_LOG = "/dev/termination-log"
#: Escaped as JSON, text is at most twice as long.
_MOST_BYTES = 2000


def programs_of(checkpoints: str) -> str:
    """Where compiled programs lie for the pods to come: beside the checkpoints."""
    return f"{checkpoints.rstrip('/')}/programs"


class Answer(Text):
    """What was found out."""

    FITS = "Fits"
    DOES_NOT_FIT = "DoesNotFit"
    INVALID = "Invalid"  # the trainer refuses such a configuration
    UNABLE = "Unable"  # nothing: the compiler is missing, or does not know such slices


@dataclasses.dataclass(frozen=True)
class Verdict:
    """An answer, and in words what it rests on and what would be better."""

    answer: Answer
    message: str

    def to_json(self) -> str:
        """The verdict as it travels, short enough to arrive whole."""
        said = " ".join(self.message.split()).encode()[:_MOST_BYTES].decode(errors="ignore")
        told = {"answer": self.answer.value, "message": said}
        return json.dumps(told, ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str) -> Verdict:
        """Inverse of ``to_json``; unknown keys are ignored.

        Raises:
            ProtocolError: not a verdict.
        """
        try:
            raw = json.loads(text)
            return cls(Answer(raw["answer"]), str(raw["message"]))
        except (ValueError, KeyError, TypeError) as error:
            raise ProtocolError(f"not a verdict: {text[:200]!r} ({error})") from error
