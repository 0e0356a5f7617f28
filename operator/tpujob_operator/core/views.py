"""What is kept of JobSets, Jobs and pods: the parts that decisions need, and nothing else.

A worker pod is 75 KB as nested dictionaries and about 2 KB as a view. ``projection`` makes the
views from what the API server returns.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import ClassVar, NamedTuple

from tpujob_operator.api.base import parse_rfc3339
from tpujob_operator.core.kinds import JOB, JOB_SET, POD, Kind, Ref
from tpujob_operator.core.manifests.names import ROLE_PREFLIGHT, ROLE_PROGRAMS, ROLE_WORKER

#: What the Job controller takes at most to make one pod of many, and to write that it has; times
#: are whole seconds.
_POD_MS, _WRITING_MS = 50, 2_000


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """Base of all views."""

    kind: ClassVar[Kind]

    namespace: str
    name: str
    uid: str
    version: int = 0  # its resourceVersion
    owner_uid: str = ""  # of its controller; empty: it has none
    attempt: int = 0  # that it belongs to; 0: not labelled
    role: str = ""  # what it is for, if it is no JobSet or Job of one
    deletion_ends_ms: int = 0  # when its grace period is over; 0: nobody has deleted it
    is_doomed: bool = False  # we have asked for its deletion

    @property
    def ref(self) -> Ref:
        """Reference to this incarnation."""
        return Ref(self.kind, self.namespace, self.name, self.uid)

    @property
    def is_deleting(self) -> bool:
        """Whether the object is being deleted, or we have asked for it."""
        return self.is_doomed or bool(self.deletion_ends_ms)

    @property
    def is_of_attempts(self) -> bool:
        """Whether the object belongs to an attempt, and not to what is done before one."""
        return self.role not in (ROLE_PREFLIGHT, ROLE_PROGRAMS)


class Exit(NamedTuple):
    """The end of a container that did not end well."""

    at_ms: int  # to the second
    code: int
    message: str  # its last words
    is_out_of_memory: bool  # and killed for it as a whole


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class JobSetView(View):
    """A JobSet: one attempt."""

    kind: ClassVar[Kind] = JOB_SET

    has_agents: bool = False  # agents run its programs, and a coordinator watches over them
    key_id: str = ""  # which of the operator's keys its token is derived from; empty: no agents
    avoided: tuple[str, ...] = ()  # nodes that its worker pods keep away from
    is_suspended: bool = False  # it is asked to keep its Jobs suspended
    is_completed: bool = False  # the coordinator ended well
    shape: str = ""  # what the attempt was made from, see ``manifests.shape``
    #: The limits that the attempt's coordinator begins with; empty: not known.
    budgets: Mapping[str, int] = dataclasses.field(default_factory=dict)
    failure: str | None = None  # JobSet's words about its failure, or nothing


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class JobView(View):
    """A Job of a JobSet: the coordinator's, or one slice. Or a preflight's."""

    kind: ClassVar[Kind] = JOB

    checked: str = ""  # digest of what a preflight checks
    is_coordinator: bool = False
    slice_index: int = 0  # meaningless for the coordinator's Job
    is_suspended: bool = False  # it is to have no pods, or has not been resumed yet
    is_resumed: bool = False  # it was suspended before it was started
    hosts: int = 1  # pods it is to have
    failed: int = 0  # pods the Job controller counts as failed since it was started or resumed
    started: str = ""  # when it was started or resumed, as Kubernetes writes it; empty: not yet
    is_succeeded: bool = False  # all its pods have ended well; it may still wait for older ones
    is_over: bool = False  # it is complete or failed, or about to be
    failure: str = ""  # why it has failed, in the Job controller's words; empty: it has not

    def is_since_start(self, created: str, deletion_asked_ms: int) -> bool:
        """Whether a pod with these times is of the Job since it was started or resumed.

        The controller writes the time of a resumption when it has made the pods. A pod that is as
        young as those, but was deleted before, is one that the suspension has ended.
        """
        if not self.started:
            return False
        started_ms = parse_rfc3339(self.started)
        if self.is_resumed and 0 < deletion_asked_ms <= started_ms:
            return False
        return parse_rfc3339(created) >= started_ms - _WRITING_MS - _POD_MS * self.hosts


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PodView(View):
    """A pod of a worker or of the coordinator."""

    kind: ClassVar[Kind] = POD

    place: tuple[int, int] = (0, 0)  # slice and host index
    created: str = ""  # as Kubernetes writes it
    node: str = ""  # that it is bound to; empty: none yet
    deletion_asked_ms: int = 0  # when somebody deleted it, to the second; 0: nobody has
    #: When the operator first saw that, by its own clock: that of the API server may differ.
    deletion_seen_ms: int = 0
    is_gone: bool = False  # this is how it was last seen
    disruption: str = ""  # why Kubernetes itself ends it, as one word; empty: it does not
    phase: str = ""
    words: str = ""  # those of Kubernetes about its end, if there are any
    is_ready: bool = False  # all its containers are
    unschedulable: str | None = None  # the scheduler's words when no node fits
    #: When a container of it last ended because the kernel had killed it for memory, to the
    #: second; 0: none.
    out_of_memory_ms: int = 0
    bad_exit: Exit | None = None  # the first of its containers that did not end well
    last_words: tuple[str, str] = ("", "")  # reason and message of the container that has ended
    #: Reason and message of the first container that waits for something.
    waiting: tuple[str, str] | None = None

    @property
    def is_worker(self) -> bool:
        """Whether the pod is a host of a slice."""
        return self.role == ROLE_WORKER

    @property
    def grace_ends_ms(self) -> int:
        """When its kubelet should have ended it, counted from when its deletion was seen."""
        grace_ms = self.deletion_ends_ms - self.deletion_asked_ms
        return self.deletion_seen_ms + grace_ms

    @property
    def is_alive(self) -> bool:
        """Whether its containers run, or may yet."""
        return self.phase in ("Pending", "Running")

    @property
    def is_lost(self) -> bool:
        """Whether the pod will not come back: deleted, evicted, or failed as a whole."""
        return self.is_deleting or self.phase == "Failed"

    @property
    def is_taken(self) -> bool:
        """Whether somebody has taken the pod away; a pod that has ended stays until then."""
        is_missed = self.is_gone and self.phase not in ("Failed", "Succeeded")
        return is_missed or self.is_deleting or bool(self.disruption)

    @property
    def failure(self) -> str:
        """Why the pod was lost, in the words of Kubernetes."""
        return self.words or ("deleted" if self.is_taken else self.phase)
