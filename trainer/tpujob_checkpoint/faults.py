"""Whether a step that cannot be restored is damaged, or only out of reach: pure.

A step is put aside on proof only. Proof is what lies in the storage for everybody to see: a file
that is missing, short or changed; bytes that TensorStore cannot decode; arrays that fail
ours. Whatever else happens to a reader (a stale mount, a permission, no memory left) says nothing
about the step.
"""

from __future__ import annotations

import enum
import errno
import re
from collections.abc import Sequence
from typing import NamedTuple

from tpujob_checkpoint.errors import CheckpointUnusableError

#: What TensorStore says of bytes that it has read and that are not what was written. Some of these
#: errors have no status.
_WRONG_BYTES = re.compile(r"^DATA_LOSS: |: Error decoding ")
#: Reasons in a message; each of thousands of hosts may have one.
_SHOWN = 5


class Kind(enum.StrEnum):
    """What a process has found out about a step."""

    GOOD = "good"
    FOREIGN = "foreign"  # a state that this configuration cannot continue
    DAMAGED = "damaged"
    UNREAD = "unread"  # could not find out


class Finding(NamedTuple):
    """What one process has found out.

    Attributes:
        kind: see ``Kind``.
        text: for people; empty if good.
        proof: equal if the same damage is found twice.
    """

    kind: Kind = Kind.GOOD
    text: str = ""
    proof: str = ""


class Verdict(NamedTuple):
    """What all processes together say about one try to read a step."""

    kind: Kind
    reasons: tuple[str, ...] = ()
    proof: tuple[str, ...] = ()

    def __str__(self) -> str:
        more = len(self.reasons) - _SHOWN
        shown = "; ".join(self.reasons[:_SHOWN])
        return f"{shown}; and {more} more" if more > 0 else shown


GOOD = Verdict(Kind.GOOD)


def judged(findings: Sequence[Finding], *, all_see_it: bool) -> Verdict:
    """The verdict on a step: equal on every process.

    Args:
        findings: one of each process, in order of process id.
        all_see_it: whether every process has looked at the same thing. If so, damage that only
            some of them see is a fault of their hosts.

    Raises:
        CheckpointUnusableError: some process finds a state that the configuration cannot
            continue. It has read so much that the step is not damaged.
    """
    if foreign := _texts(findings, Kind.FOREIGN):
        raise CheckpointUnusableError("; ".join(foreign))
    damage = _texts(findings, Kind.DAMAGED)
    count = sum(finding.kind is Kind.DAMAGED for finding in findings)
    if unread := _texts(findings, Kind.UNREAD):
        return Verdict(Kind.UNREAD, unread)
    if all_see_it and 0 < count < len(findings):
        where = [n for n, finding in enumerate(findings) if finding.kind is Kind.DAMAGED]
        others = f"seen by processes {where} of {len(findings)} only"
        return Verdict(Kind.UNREAD, (*damage, others))
    if damage:
        proof = sorted({f.proof or f.text for f in findings if f.kind is Kind.DAMAGED})
        return Verdict(Kind.DAMAGED, damage, tuple(proof))
    return GOOD


def _texts(findings: Sequence[Finding], kind: Kind) -> tuple[str, ...]:
    return tuple(sorted({finding.text for finding in findings if finding.kind is kind}))


def finding_of_load(error: Exception, where: str) -> Finding:
    """What an error says that was raised while arrays were read.

    Args:
        error: whatever the libraries raise.
        where: this host and process, for people.
    """
    if isinstance(error, ValueError) and (found := _WRONG_BYTES.search(str(error))):
        why = str(error)[found.start() :].partition(" [")[0]
        text = f"an array's bytes are wrong ({why[:100]} … {why[-200:]})"
        return Finding(Kind.DAMAGED, text, "wrong bytes")
    return Finding(Kind.UNREAD, f"{brief(error)} {where}")


def is_exhausted(error: BaseException) -> bool:
    """Whether the runtime has no memory left, on a device or on the host."""
    return isinstance(error, MemoryError) or str(error).startswith("RESOURCE_EXHAUSTED")


def brief(error: BaseException) -> str:
    """One line of an error: its kind or errno's name, and what the library says."""
    first = str(error).strip().partition("\n")[0]
    # TensorStore names the file in the middle, perhaps more than once, and the reason at the end.
    told = first if len(first) <= 300 else f"{first[:100]} … {first[-200:]}"
    name = type(error).__name__
    if isinstance(error, OSError):
        name = errno.errorcode.get(error.errno or 0, name)
    return f"{name}: {told}"
