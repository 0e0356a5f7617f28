"""What a decision says: data only, carried out by the executor."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal

from tpujob_operator.core.history import History
from tpujob_operator.core.kinds import Ref
from tpujob_operator.core.memory import Memory
from tpujob_operator.core.snapshot import Told


@dataclasses.dataclass(frozen=True, slots=True)
class Note:
    """An Event object to be written: a reason of few values, and what happens next."""

    reason: str
    message: str
    type: Literal["Normal", "Warning"] = "Normal"


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Create:
    """Creation of an object; one of this name that belongs to the job stays as it is."""

    manifest: Mapping[str, Any]
    requires: tuple[Create, ...] = ()  # of the same plan; without them this one is not made
    is_optional: bool = False  # the job does as well without: tried once, and not reported
    needs_status: bool = True
    on_success: tuple[Note, ...] = ()

    @property
    def what(self) -> str:
        """Kind and name, for people."""
        return f"{self.manifest['kind']} {self.manifest['metadata']['name']}"


@dataclasses.dataclass(frozen=True, slots=True)
class Patch:
    """Merge patch of one incarnation of an object."""

    ref: Ref
    body: Mapping[str, Any]
    needs_status: bool = True
    on_success: tuple[Note, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class Delete:
    """Deletion of one incarnation of an object; its children follow in the background."""

    ref: Ref
    why: str
    by_force: bool = False  # a pod whose kubelet is gone: nobody is waited for
    needs_status: bool = True
    on_success: tuple[Note, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class Tell:
    """Let the coordinator of a job know what has changed since its attempt was made."""

    ref: Ref
    told: Told
    key_id: str = ""  # of the attempt: which of the operator's keys its token is derived from
    needs_status: bool = False
    on_success: tuple[Note, ...] = ()


Action = Create | Patch | Delete | Tell


@dataclasses.dataclass(frozen=True, slots=True)
class Plan:
    """The outcome of a decision.

    ``status`` is the whole new status, or nothing if it need not be written.
    It is written before any action is taken. An action that needs the status
    is taken only after that, so that its intent outlives a crash between the
    two. If the API server refuses the status, the other actions are taken all
    the same: what they do follows from the cluster alone. A crash then forgets
    what memory holds of them, such as how often a slice was replaced.

    Actions do not depend on each other, unless one requires another. The
    notes are about the status: they are sent only if it is not refused. What
    is to be sent about an action goes with the action.
    """

    history: History
    memory: Memory
    actions: tuple[Action, ...] = ()
    status: Mapping[str, Any] | None = None
    notes: tuple[Note, ...] = ()
    requeue_after_s: float | None = None

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to do: the cluster is as it should be."""
        return not self.actions and self.status is None
