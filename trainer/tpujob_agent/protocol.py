"""The contract between agent, coordinator and operator: messages, events, exit codes.

This module is the single definition of everything that crosses a process
border inside a job. It holds data and names only, so that every side can
import it: the agent (any image, standard library only), the coordinator and
the operator.

Agents hold one TCP stream to the coordinator, newline-delimited JSON in both
directions, signed as ``tpujob_agent.handshake`` says. The coordinator's
timeline (``Event``) is read over HTTP, see ``TIMELINE_PATH``.

All times are integer milliseconds since the Unix epoch (``*_at_ms``) or
integer milliseconds (``*_ms``), so that sums are exact.
"""

from __future__ import annotations

import dataclasses
import enum
import json
from typing import ClassVar, TypeVar

from tpujob_agent.causes import BUDGET_OF_CAUSE as BUDGET_OF_CAUSE  # noqa: PLC0414 - the contract
from tpujob_agent.causes import NOT_COUNTED as NOT_COUNTED  # noqa: PLC0414
from tpujob_agent.causes import TAKEN_AWAY as TAKEN_AWAY  # noqa: PLC0414
from tpujob_agent.causes import Budget as Budget  # noqa: PLC0414
from tpujob_agent.causes import Cause as Cause  # noqa: PLC0414
from tpujob_agent.causes import StragglerAction as StragglerAction  # noqa: PLC0414
from tpujob_agent.environment import Env as Env  # noqa: PLC0414
from tpujob_agent.events import Event as Event  # noqa: PLC0414
from tpujob_agent.events import EventKind as EventKind  # noqa: PLC0414
from tpujob_agent.events import Finding as Finding  # noqa: PLC0414
from tpujob_agent.events import ProtocolError as ProtocolError  # noqa: PLC0414
from tpujob_agent.text import Text

#: The newest protocol that this release speaks, and the oldest. What older peers can ignore
#: (another field, another message) is no new protocol; a new one leaves the last as the oldest.
PROTOCOL_VERSION = 1
OLDEST_PROTOCOL = 1

#: Ports of the coordinator pod: agents' stream, and HTTP for operator and Prometheus.
AGENT_PORT = 7077
HTTP_PORT = 7078
#: JAX's own coordination service of generation ``g`` listens on the leader's port
#: ``JAX_PORT_BASE + g % JAX_PORT_SPAN``, so that no generation meets its predecessor's.
JAX_PORT_BASE = 20_000
JAX_PORT_SPAN = 10_000

#: HTTP paths of the coordinator. Requests are signed as ``tpujob_agent.signing`` says.
#: ?epoch=EPOCH&after=SEQ&wait_s=SECONDS&bytes=MOST_BYTES (of the events; at most, and by default,
#: 1 MiB; one event always comes)
#: → {"events": [...], "epoch": str, "last": SEQ, "nowMs": int}
#: nowMs is a watermark: a reader that has read up to ``last`` knows every event before it.
#: An epoch that is not the coordinator's is served from the first event on.
TIMELINE_PATH = "/v1/timeline"
STATE_PATH = "/v1/state"  # → the current world, for people and the CLI
LOSSES_PATH = "/v1/losses"  # ?after=STEP → {"losses": [[step, loss], ...]}
#: PUT {"notices": [...], "budgets": {...}, "takenAway": [...]}: all hosts that are going to
#: leave, see ``notices.Notice``; the limits of the budgets, by name; and of the losses since the
#: newest commit that were hosts taken away, as it has turned out, onsetAtMs.
TELL_PATH = "/v1/tell"
METRICS_PATH = "/metrics"  # not signed: Prometheus text format
HEALTH_PATH = "/healthz"  # not signed

#: A member that has been silent this long is lost (its stream may still be open: power cut),
#: in large worlds later, see ``wire.member_timeout_s``.
MEMBER_TIMEOUT_S = 5.0
#: Where a second world could be formed beside one that nobody hears, agents that have no
#: connection to a coordinator for this long stop their trainers; else training goes on.
FENCE_S = 180
#: A straggler's pod that is to be replaced but is not by then is taken again.
REPLACED_WITHIN_S = 120
#: An agent reports at once on change, and at least this often,
#: in large worlds less often, see ``wire.report_interval_s``.
REPORT_INTERVAL_S = 1.0
#: Steps of which a report tells the times; see ``Report.samples``.
SAMPLES_PER_REPORT = 4

#: Times of one step on one host: step, arrivedAtMs (since the epoch, on the host's clock: its
#: batch was there and its devices were free), and in milliseconds inputWait, wait (from then
#: until the step's result was there), gc (pauses of Python's garbage collector) and saveBlocked.
Sample = list[float]
SAMPLE_VALUES = 6


#: How our own programs end when their configuration, data or directory is at fault: the message
#: alone helps. To the agent it is a program's own code, like any other.
USER_ERROR = 1


class ExitCode(enum.IntEnum):
    """Exit codes of a trainer that the agent gives a meaning; others are the program's own."""

    DONE = 0
    PEER_LOST = 17
    PREEMPTED = 42
    CHECKPOINT_BAD = 65
    STALLED = 70
    STORAGE_UNAVAILABLE = 74  # checkpoints could not be read or written now
    SUPERSEDED = 75  # a newer world has begun on the same checkpoints


class Phase(Text):
    """What a trainer process does, in the order in which a start passes through them."""

    STARTING = "starting"  # process exists, program not reported yet (imports)
    INIT = "init"  # distributed runtime and devices
    RESTORE = "restore"
    COMPILE = "compile"
    SETUP = "setup"  # the rest before the first step
    TRAIN = "train"
    FINISHING = "finishing"  # last save, clean exit

    @property
    def order(self) -> int:
        """Position in a start; a world is as far as its least advanced process."""
        return list(Phase).index(self)


class ProcessState(Text):
    """State of an agent's trainer process."""

    IDLE = "idle"  # no process; ready for a generation
    RUNNING = "running"
    EXITED = "exited"  # ended by itself, see exit_code and signal
    STOPPED = "stopped"  # ended because the coordinator said so


@dataclasses.dataclass(frozen=True, slots=True)
class CoordinatorConfig:
    """What the operator tells a coordinator, as JSON in ``Env.COORDINATOR_CONFIG``."""

    namespace: str
    job: str
    attempt: int
    slices: int
    spares: int
    hosts_per_slice: int
    budgets: dict[str, int]  # Budget → restarts allowed; -1: no limit
    budgets_used: dict[str, int] = dataclasses.field(default_factory=dict)
    agent_port: int = AGENT_PORT
    http_port: int = HTTP_PORT
    smaller_worlds: list[int] = dataclasses.field(default_factory=list)  # slices they may have
    replacement_timeout_ms: int = 0  # after a loss, before a smaller world is formed
    fence_s: int = FENCE_S
    jax_port_base: int = JAX_PORT_BASE  # several jobs on one host need ranges of their own
    #: Of a world of the wanted size; the failure rate that is assumed at first follows from it.
    chips: int = 0
    plans_interval: bool = False  # whether checkpoint intervals are left to the coordinator
    straggler_ratio: float = 1.1  # a host that makes steps take longer than so is one
    straggler_action: str = StragglerAction.REPORT.value

    def to_json(self) -> str:
        """One line of JSON with sorted keys, so that equal configs are equal strings."""
        return json.dumps(dataclasses.asdict(self), sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> CoordinatorConfig:
        """Inverse of ``to_json``; keys of other versions are ignored."""
        names = {field.name for field in dataclasses.fields(cls)}
        return cls(**{name: value for name, value in json.loads(text).items() if name in names})


class Message:
    """Base of all messages; ``type`` on the wire is the class's ``TYPE``."""

    __slots__ = ()
    TYPE: ClassVar[str]


#: By ``type``; see ``tpujob_agent.wire`` for how they travel.
MESSAGES: dict[str, type[Message]] = {}
_M = TypeVar("_M", bound=type[Message])


def _message(cls: _M) -> _M:
    MESSAGES[cls.TYPE] = cls
    return cls


# ---- agent → coordinator


@_message
@dataclasses.dataclass(frozen=True, slots=True)
class Hello(Message):
    """The agent's first line: who it is. Its code proves that it has the token."""

    TYPE: ClassVar[str] = "hello"
    slice: int
    host: int
    pod: str
    node: str
    ip: str
    incarnation: str  # new for every agent process: a changed one means the container restarted
    sent_at_ms: int
    attempt: int = 0  # agents of another attempt are refused
    protocol: int = PROTOCOL_VERSION  # what both speak from now on
    nonce: str = ""


@_message
@dataclasses.dataclass(frozen=True, slots=True)
class Report(Message):
    """State of the trainer process: at once on change, else every ``wire.report_interval_s``.

    Counters (``input_wait_ms`` …) are totals of this generation.
    """

    TYPE: ClassVar[str] = "report"
    sent_at_ms: int
    state: ProcessState
    generation: int  # 0: none yet
    num_processes: int = 0  # of its world; 0: none yet
    phase: Phase = Phase.STARTING
    phase_at_ms: int = 0
    step: int = 0  # last finished step of this generation; 0: none
    step_at_ms: int = 0
    first_step: int = 0  # first finished step of this generation; 0: none
    first_step_at_ms: int = 0
    restored_step: int = -1  # -1: not restored yet; 0: fresh start
    committed_step: int = 0
    committed_at_ms: int = 0
    commit_blocked_ms: int = -1  # this save held training up for so long; -1: not told
    commit_lag_ms: int = -1  # from its beginning until it was durable; -1: not told
    tokens: int = 0
    flops_per_token: int = 0  # of the model, forward and backward; 0: not told
    input_wait_ms: int = 0
    save_blocked_ms: int = 0
    losses: list[list[float]] = dataclasses.field(
        default_factory=list
    )  # [step, loss] since the last report
    exit_code: int | None = None
    signal: int | None = None
    exited_at_ms: int = 0
    tail: str = ""  # end of the trainer's output, only with EXITED
    killed_by_agent: str = ""  # reason when the agent's own watchdog killed it
    process_state: str = ""  # as in /proc: T is stopped by a signal
    stalled: str = ""  # why the agent takes it for hung; it runs still
    obeys_saves: bool = False  # its program looks at the coordinator's wishes
    out_of_memory: str = ""  # the kernel has killed some process of it for that; what limit
    stacks: str = ""  # where its threads are: after ``stalled``, or when asked
    #: Times of steps since the last report, for programs that tell them. All hosts of a world
    #: tell those of the same steps: if there are too many, of the multiples of a power of two.
    samples: list[Sample] = dataclasses.field(default_factory=list)
    probes: int = 0  # probes of its devices so far
    probe_us: int = 0  # the newest one took this long
    recompiles: int = 0  # of programs that were compiled before
    waits_for_save: bool = False  # its program says that it stands still for a save


@_message
@dataclasses.dataclass(frozen=True, slots=True)
class Leaving(Message):
    """SIGTERM reached the pod: it will be gone within the grace period."""

    TYPE: ClassVar[str] = "leaving"
    sent_at_ms: int
    grace_ms: int


@_message
@dataclasses.dataclass(frozen=True, slots=True)
class Pong(Message):
    """The answer to a Ping, at once."""

    TYPE: ClassVar[str] = "pong"
    ping_at_ms: int  # as in the Ping
    sent_at_ms: int  # on the agent's clock


# ---- coordinator → agent


@_message
@dataclasses.dataclass(frozen=True, slots=True)
class Challenge(Message):
    """The first line of a stream: what the agent's hello has to answer."""

    TYPE: ClassVar[str] = "challenge"
    nonce: str
    protocol: int = PROTOCOL_VERSION  # the newest that the coordinator speaks
    oldest_protocol: int = OLDEST_PROTOCOL


@_message
@dataclasses.dataclass(frozen=True, slots=True)
class Welcome(Message):
    """The agent is taken in. Its code proves that the coordinator has the token."""

    TYPE: ClassVar[str] = "welcome"


@_message
@dataclasses.dataclass(frozen=True, slots=True)
class Run(Message):
    """Start the trainer of a generation. Agents refuse a generation below their newest."""

    TYPE: ClassVar[str] = "run"
    generation: int
    process_id: int
    num_processes: int
    slice_id: int
    num_slices: int
    leader: str  # ip:port for JAX's coordination service
    step_ceiling: int | None = None
    fence_s: int = 0  # alone for longer, the agent stops the trainer; 0: it trains on
    save_every_ms: int = 0  # as ``SaveEvery`` tells later; 0: as the program likes


@_message
@dataclasses.dataclass(frozen=True, slots=True)
class Stop(Message):
    """Kill the trainer hard (SIGKILL to its process group) and report STOPPED."""

    TYPE: ClassVar[str] = "stop"
    generation: int
    reason: str


@_message
@dataclasses.dataclass(frozen=True, slots=True)
class Save(Message):
    """Have the trainer save at ``step`` (the same for all ranks), and perhaps exit after it."""

    TYPE: ClassVar[str] = "save"
    generation: int
    step: int
    then_leave: bool = False  # with ExitCode.PREEMPTED, when the save is durable


@_message
@dataclasses.dataclass(frozen=True, slots=True)
class SaveEvery(Message):
    """From now on the trainer is to save this often, if its interval is left to us."""

    TYPE: ClassVar[str] = "saveEvery"
    generation: int
    interval_ms: int  # from the beginning of a save to that of the next


@_message
@dataclasses.dataclass(frozen=True, slots=True)
class Stacks(Message):
    """Tell where the trainer's threads are: somebody else's trainer hangs."""

    TYPE: ClassVar[str] = "stacks"
    generation: int


@_message
@dataclasses.dataclass(frozen=True, slots=True)
class Excuse(Message):
    """The trainer does not hang: it waits for another one, which waits for its save."""

    TYPE: ClassVar[str] = "excuse"
    generation: int


@_message
@dataclasses.dataclass(frozen=True, slots=True)
class Ping(Message):
    """Answer with a Pong: for the round trip, and for how far the clocks are apart."""

    TYPE: ClassVar[str] = "ping"
    sent_at_ms: int


@_message
@dataclasses.dataclass(frozen=True, slots=True)
class Finish(Message):
    """The job is over: exit with this code."""

    TYPE: ClassVar[str] = "finish"
    exit_code: int
    reason: str


@_message
@dataclasses.dataclass(frozen=True, slots=True)
class Refused(Message):
    """The coordinator does not accept this agent (bad token, unknown slice, old protocol)."""

    TYPE: ClassVar[str] = "refused"
    reason: str
