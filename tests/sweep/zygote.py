"""Makes operator processes by fork: all libraries are read once, which takes seconds.

Reads one JSON object per line: ``{"env": {...}, "log": "path"}``; answers with
``{"pid": n}``, and says ``{"exited": n}`` when a process has ended.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
from typing import Any, NoReturn

from kubernetes.aio.config import kube_config as aio_kube_config
from kubernetes.config import kube_config

import tpujob_operator.shell.operator  # noqa: F401 - the point of this process
from tpujob_agent.processes import die_with_parent
from tpujob_operator.__main__ import main as run_operator


def main() -> None:
    """Serve until standard input ends; the operators end with this process."""
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr] # it is a text file
    # The loop must not survive a fork, so orders are read without one.
    signal.signal(signal.SIGCHLD, lambda *_: _reap())
    say({"ready": True})
    for line in sys.stdin:
        order = json.loads(line)
        say({"pid": _spawn(order["env"], order["log"])})


def _spawn(env: dict[str, str], log: str) -> int:
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        _become_operator(parent, env, log)
    return pid


def _become_operator(parent: int, env: dict[str, str], log: str) -> NoReturn:
    code = 1
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        die_with_parent(parent)
        with open(log, "ab") as sink, open(os.devnull) as nothing:  # noqa: PTH123 - descriptors
            os.dup2(sink.fileno(), 1)
            os.dup2(sink.fileno(), 2)
            os.dup2(nothing.fileno(), 0)
        os.environ.clear()
        os.environ.update(env)
        for module in (kube_config, aio_kube_config):  # read the variable when they are imported
            vars(module)["KUBE_CONFIG_DEFAULT_LOCATION"] = env["KUBECONFIG"]
        code = run_operator()
    finally:
        sys.stderr.flush()
        os._exit(code)


def _reap() -> None:
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, _ = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            say({"exited": pid})


def say(message: dict[str, Any]) -> None:
    """One line to whoever gave the order; a signal's line never lands inside another."""
    os.write(1, json.dumps(message).encode() + b"\n")


if __name__ == "__main__":
    main()
