"""One agent, one coordinator: what a program under the agent sees, and how its end is told."""

from __future__ import annotations

import functools
import os
import re
import signal
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.agent.interpreters import INTERPRETERS, TOO_OLD
from tests.agent.rig import Rig, rig
from tests.waiting import wait_until
from tpujob_agent.protocol import Env, EventKind

STEPS = """
import os, sys, time
import tpujob
tpujob.phase("init")
tpujob.restored(0)
print("started as", os.environ["JAX_PROCESS_ID"], "of", os.environ["JAX_NUM_PROCESSES"])
for step in range(1, int(sys.argv[1]) + 1):
    time.sleep(0.005)
    tpujob.step(step, loss=1 / step, tokens=8)
tpujob.committed(step)
"""


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Rig]:
    """A job of one host that gives up on the first user error."""
    with rig(tmp_path, slices=1, hosts=1, budgets={"userError": 0}) as made:
        yield made


def script(job: Rig, text: str, name: str = "program.py") -> str:
    """A program's file."""
    path = job.folder / name
    path.write_text(text)
    return str(path)


def is_gone(path: Path) -> bool:
    """Whether a file does not exist any more."""
    return not path.exists()


def failure(job: Rig) -> str:
    """The loss's message, once the job has given up."""
    job.wait_event(EventKind.GAVE_UP)
    return str(job.events(EventKind.LOSS)[-1]["data"]["message"])


@pytest.mark.parametrize("python", INTERPRETERS)
def test_a_program_runs_to_its_end_under_any_python(job: Rig, python: str) -> None:
    """Agent and program under every Python of this machine: steps are told, all exit 0."""
    job.start([python, script(job, STEPS), "20"], python=python)
    job.wait_event(EventKind.FINISHED)
    last = job.events(EventKind.PROGRESS)[-1]["data"]
    assert (last["lastStep"], last["loss"]) == (20, 0.05)
    assert sum(event["data"]["tokens"] for event in job.events(EventKind.PROGRESS)) == 160
    finished = job.events(EventKind.FINISHED)[0]["seq"]
    job.get(f"/v1/timeline?after={finished}")
    assert job.agents[0, 0].wait() == 0
    assert job.coordinator is not None
    assert job.coordinator.wait() == 0
    assert '"losses": [[1, 1.0], [2, 0.5]' in job.coordinator.text
    assert "started as 0 of 1" in job.agents[0, 0].text


def test_the_agent_and_the_program_may_have_different_pythons(job: Rig) -> None:
    """The agent runs under the image's python3, the program under its own virtual environment."""
    job.start([INTERPRETERS[-1], script(job, STEPS), "5"], python=INTERPRETERS[0])
    job.wait_event(EventKind.FINISHED)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["-m", "package.tool", "a", "-b"], "package.tool|a|-b|__main__"),
        (["-c", "import sys; print('|'.join([*sys.argv, __name__]))", "a"], "-c|a|__main__"),
        (["-u", "{folder}/package/tool.py", "a"], "{folder}/package/tool.py|a|__main__"),
    ],
)
def test_a_program_is_run_as_python_would(job: Rig, arguments: list[str], expected: str) -> None:
    """Module, code or script: sys.argv and __name__ are what they are without an agent."""
    (job.folder / "package").mkdir()
    (job.folder / "package" / "__init__.py").touch()
    code = "import sys\nprint('|'.join([*sys.argv, __name__]))\n"
    script(
        job,
        code.replace("sys.argv", "[__spec__.name if __spec__ else sys.argv[0], *sys.argv[1:]]"),
        "package/tool.py",
    )
    folder = str(job.folder)
    job.start([sys.executable, *(a.replace("{folder}", folder) for a in arguments)])
    job.wait_event(EventKind.FINISHED)
    wait_until(lambda: expected.replace("{folder}", folder) in job.agents[0, 0].text, expected)


def test_modules_are_imported_from_the_programs_folder(job: Rig) -> None:
    """sys.path starts as it would without an agent, for the program and for what is preloaded."""
    script(job, "print('helper imported', flush=True)\n", "helper.py")
    program = script(job, "import helper, sys\nprint('path', sys.path[0])\n")
    job.start([sys.executable, program], env={Env.PRELOAD: "helper"})
    job.wait_event(EventKind.FINISHED)
    wait_until(lambda: f"path {job.folder}" in job.agents[0, 0].text, "the path")
    assert job.agents[0, 0].text.count("helper imported") == 1


@pytest.mark.parametrize(
    ("code", "exit_code", "words"),
    [
        ("raise SystemExit(3)", 3, "exited with code 3"),
        ("raise SystemExit('no such data set')", 1, "no such data set"),
        ("import atexit; atexit.register(print, 'ho' + 'ok'); 1 / 0", 1, "ZeroDivisionError"),
        ("import os; print('last words'); os._exit(9)", 9, "last words"),
        # Of several processes it would mean a lost peer; this one has none.
        ("raise ValueError('UNKNOWN: Gloo failed: Connection closed by peer')", 1, "Gloo failed"),
    ],
)
def test_a_user_error_is_told_with_the_end_of_its_output(
    job: Rig, code: str, exit_code: int, words: str
) -> None:
    """A program that fails at once ends the job with its own words, and nothing loops."""
    job.start([sys.executable, script(job, f"print('hello')\n{code}\n")])
    assert words in failure(job)
    assert job.events(EventKind.LOSS)[-1]["data"]["exitCode"] == exit_code
    assert job.events(EventKind.LOSS)[-1]["data"]["cause"] == "userError"
    assert len(job.events(EventKind.GENERATION_STARTED)) == 1
    assert "hook" not in job.agents[0, 0].text  # exit hooks of a failed program may wait for peers
    assert job.agents[0, 0].popen.poll() is None  # idle, until the operator takes it away


def test_a_missing_program_is_a_user_error(job: Rig) -> None:
    """A program that is not in the image ends the job in words, instead of a crash loop."""
    job.start(["trian.py", "--steps=1"])
    assert "cannot run 'trian.py': it does not exist in this image" in failure(job)
    assert job.events(EventKind.LOSS)[-1]["data"]["exitCode"] == 127


def test_a_traceback_shows_the_program_only(job: Rig) -> None:
    """The frames of agent and runpy are none of the user's business."""
    job.start([sys.executable, script(job, "def f():\n    1 / 0\nf()\n")])
    message = failure(job)
    assert message.count("File ") == 2
    assert "tpujob_agent" not in message
    assert "runpy" not in message


def test_a_command_that_is_no_python_works_the_same(job: Rig) -> None:
    """A shell script is exec'd; Python in it reports, its exit code counts."""
    program = script(job, STEPS)
    job.start(["sh", "-c", f"echo from a shell; {sys.executable} {program} 10; exit $?"])
    job.wait_event(EventKind.FINISHED)
    assert job.events(EventKind.PROGRESS)[-1]["data"]["lastStep"] == 10
    assert "from a shell" in job.agents[0, 0].text


@pytest.mark.parametrize("python", TOO_OLD[-1:])
def test_a_program_under_an_old_python_is_executed(job: Rig, python: str) -> None:
    """Where the fork server cannot run, the program starts as it would without an agent."""
    job.start([python, "-c", "import sys; print('version', sys.version_info[:2])"])
    job.wait_event(EventKind.FINISHED)
    assert "version (3, " in job.agents[0, 0].text
    assert "exec instead of fork" in job.agents[0, 0].text


def test_progress_can_be_read_from_the_output(job: Rig) -> None:
    """A program that does not report is followed by a pattern in its log."""
    shell = "for i in 1 2 3; do echo info step=$i loss=1; sleep 0.1; done; sleep 0.1"
    pattern = "step=(?P<step>[0-9]+)"
    job.start(["sh", "-c", shell], env={Env.PROGRESS_PATTERN: pattern})
    job.wait_event(EventKind.FINISHED)
    assert job.events(EventKind.PROGRESS)[-1]["data"]["lastStep"] == 3
    assert "train" in [event["data"]["phase"] for event in job.events(EventKind.PHASE)]


def test_missing_modules_are_told_and_left_out(job: Rig) -> None:
    """A misspelt preload costs one line of log and nothing else."""
    job.start([sys.executable, script(job, STEPS), "3"], env={Env.PRELOAD: "json,no_such_module"})
    job.wait_event(EventKind.FINISHED)
    text = job.agents[0, 0].text
    assert text.count("cannot preload no_such_module (ModuleNotFoundError") == 1


WORKERS = """
import multiprocessing, subprocess, time
from multiprocessing import shared_memory
def double(x):
    return 2 * x
def sleep():
    time.sleep(1000)
if __name__ == "__main__":
    context = multiprocessing.get_context("spawn")
    with context.Pool(1) as pool:
        print("doubled", pool.map(double, [21]))
    memory = shared_memory.SharedMemory(create=True, size=100)
    worker = context.Process(target=sleep)
    worker.start()
    stray = subprocess.Popen(["sleep", "1000"], start_new_session=True)
    print("left", memory.name, worker.pid, stray.pid)
    time.sleep(1000)
"""


def test_what_a_program_started_works_and_ends_with_it(job: Rig) -> None:
    """Multiprocessing finds the main module; workers, daemons and shared memory are cleaned up."""
    job.start([sys.executable, script(job, WORKERS)])
    agent = job.agents[0, 0]
    whole_line = re.compile(r"doubled \[42\].*left (\S+) (\d+) (\d+)\n", re.DOTALL)
    name, worker, stray = wait_until(
        lambda: whole_line.search(agent.text), "its processes"
    ).groups()
    assert Path("/dev/shm", name).exists()
    os.kill(job.trainer_pid(0, 0), signal.SIGKILL)
    job.wait_event(EventKind.GENERATION_STARTED, generation=2)
    for pid in (worker, stray):
        wait_until(functools.partial(is_gone, Path("/proc", pid, "cmdline")), f"{pid} is gone")
    wait_until(functools.partial(is_gone, Path("/dev/shm", name)), "the shared memory is gone")


def test_a_taken_port_is_told_and_the_next_generation_takes_another(job: Rig) -> None:
    """The leader does not start a program that could not listen."""
    with socket.socket() as taken:
        taken.bind(("", job.config.jax_port_base + 1))
        taken.listen()
        job.start([sys.executable, script(job, STEPS), "3"])
        job.wait_event(EventKind.FINISHED)
    (loss,) = job.events(EventKind.LOSS)
    assert "in use" in loss["data"]["message"]
    assert loss["data"]["cause"] == "process"


def test_a_dead_fork_server_is_replaced(job: Rig) -> None:
    """Its trainer dies with it and is started again by a new one."""
    job.start([sys.executable, script(job, STEPS), "100000"])
    pid = job.trainer_pid(0, 0)
    stat = Path(f"/proc/{pid}/stat").read_text()
    os.kill(int(stat.rpartition(")")[2].split()[1]), signal.SIGKILL)
    job.wait_event(EventKind.PROGRESS, generation=2)
    assert not Path(f"/proc/{pid}/cmdline").exists() or job.trainer_pid(0, 0) != pid
    assert "fork server has died" in job.agents[0, 0].text


_OUTLIVES_ITS_FORK_SERVER = """
import ctypes, itertools, os, sys, time
import tpujob
ctypes.CDLL(None).prctl(1, 0)  # PR_SET_PDEATHSIG: as if the kernel took long to end this process
diary, may_end = sys.argv[1:]
def note(what):
    with open(diary, "a") as file:
        print(what, file=file)
note("begins")
tpujob.restored(0)
for step in itertools.count(1):
    tpujob.step(step)
    if os.path.exists(may_end):
        break
    time.sleep(0.01)
note("ends")
"""


def test_a_trainer_that_outlives_its_fork_server_is_waited_for(job: Rig) -> None:
    """It may still hold devices: no end is told, and no next one begins, before it is gone."""
    diary, may_end = job.folder / "diary", job.folder / "may-end"
    job.start([sys.executable, script(job, _OUTLIVES_ITS_FORK_SERVER), str(diary), str(may_end)])
    job.wait_event(EventKind.PROGRESS)
    agent = job.agents[0, 0]
    os.kill(int(Path(f"/proc/{job.trainer_pid(0, 0)}/stat").read_text().split()[3]), signal.SIGKILL)
    wait_until(lambda: agent.text.count("ready to fork trainers") == 2, "another fork server")
    told = len(job.events(EventKind.PROGRESS))
    wait_until(
        lambda: len(job.events(EventKind.PROGRESS)) > told + 1 or job.events(EventKind.LOSS),
        "more reports of its agent",
    )
    assert not job.events(EventKind.LOSS)
    assert len(job.events(EventKind.GENERATION_STARTED)) == 1
    may_end.touch()
    job.wait_event(EventKind.FINISHED)
    assert diary.read_text().split() == ["begins", "ends", "begins", "ends"]
    assert len(job.events(EventKind.LOSS)) == 1


def test_an_agent_without_the_token_is_refused(job: Rig) -> None:
    """It says why, once, and goes on asking."""
    job.start(["sleep", "1000"], env={Env.TOKEN: "wrong"})
    wait_until(lambda: "refuses this agent: wrong token" in job.agents[0, 0].text, "the refusal")
    assert not job.events(EventKind.MEMBER_JOINED)


def test_the_program_does_not_see_the_token(job: Rig) -> None:
    """The secret between agent and coordinator is not the program's."""
    job.start([sys.executable, "-c", f"import os; assert {Env.TOKEN!r} not in os.environ"])
    job.wait_event(EventKind.FINISHED)
