"""Environment variables, see ``tpujob_agent.protocol``, which re-exports them."""


class Env:
    """Names of environment variables that operator, agent and trainer agree on."""

    # set by the operator on worker pods, read by the agent
    JOB = "TPUJOB_NAME"
    NAMESPACE = "TPUJOB_NAMESPACE"
    UID = "TPUJOB_UID"  # of the job: another one of the same name has another
    ATTEMPT = "TPUJOB_ATTEMPT"
    COORDINATOR = "TPUJOB_COORDINATOR"  # host:port of the agents' stream
    TOKEN = "TPUJOB_TOKEN"  # noqa: S105 - a variable's name, not a secret
    SLICE = "TPUJOB_SLICE"  # index of the slice this pod belongs to
    HOST = "TPUJOB_HOST"  # index of this host within its slice
    POD_NAME = "TPUJOB_POD_NAME"
    POD_IP = "TPUJOB_POD_IP"
    NODE_NAME = "TPUJOB_NODE_NAME"
    PRELOAD = "TPUJOB_PRELOAD"  # comma-separated modules the fork server imports
    PROGRESS_PATTERN = "TPUJOB_PROGRESS_PATTERN"  # regular expression with a group ``step``
    RUN_DIR = "TPUJOB_RUN_DIR"  # agent's directory in the pod: trainer.pid, record
    CHECKPOINT_DIR = "TPUJOB_CHECKPOINT_DIR"
    CHECKPOINT_INTERVAL = "TPUJOB_CHECKPOINT_INTERVAL"  # steps:N | seconds:S | auto
    CHECKPOINT_KEEP = "TPUJOB_CHECKPOINT_KEEP"
    TRAINER_CONFIG = "TPUJOB_TRAINER_CONFIG"  # JSON for the bundled trainer
    CACHE_DIR = "TPUJOB_CACHE_DIR"  # outlives the trainer process, not the pod
    PROGRAMS_KEY = "TPUJOB_PROGRAMS_KEY"  # of this job only: proves who wrote a compiled program
    SNAPSHOT_DIR = "TPUJOB_SNAPSHOT_DIR"  # memory that outlives the trainer process, not the pod
    HANG_MIN_S = "TPUJOB_HANG_MIN_S"  # a step may take this long, and ...
    HANG_FACTOR = "TPUJOB_HANG_FACTOR"  # ... this many median steps
    # Set by the user on the container that trains: what JAX's processes may be silent for; 10.
    HEARTBEAT_S = "TPUJOB_HEARTBEAT_S"
    GRACE_S = "TPUJOB_GRACE_S"  # the pod's terminationGracePeriodSeconds; default 30
    # set by the operator on the coordinator pod
    COORDINATOR_CONFIG = "TPUJOB_COORDINATOR_CONFIG"  # JSON of CoordinatorConfig
    # set by the agent for each trainer process
    RECORD = "TPUJOB_RECORD"  # path of the shared heartbeat record
    STACKS = "TPUJOB_STACKS"  # file into which a trainer writes where its threads are
    GENERATION = "TPUJOB_GENERATION"
    SLICE_ID = "TPUJOB_SLICE_ID"  # dense id of this slice within the world
    NUM_SLICES = "TPUJOB_NUM_SLICES"
    STEP_CEILING = "TPUJOB_STEP_CEILING"  # restore no step above this one; empty: no ceiling
    JAX_COORDINATOR_ADDRESS = "JAX_COORDINATOR_ADDRESS"
    JAX_NUM_PROCESSES = "JAX_NUM_PROCESSES"
    JAX_PROCESS_ID = "JAX_PROCESS_ID"
