"""Completion of commands, options and jobs: by a real bash, and as kubectl asks for it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from localcluster.cluster import Cluster
from tests.cli.conftest import Run
from tpujob_operator.cli.__main__ import main

EXAMPLES = Path(__file__).parents[2] / "examples"
_BIN = Path(sys.executable).parent
#: What bash does when the key is pressed at the end of each line.
_PRESS = """
source <(kubectl-tpujob completion bash)
function=$(complete -p kubectl-tpujob | sed 's/.*-F \\([^ ]*\\).*/\\1/')
for line in "$@"; do
  COMP_LINE=$line COMP_POINT=${#line} COMP_TYPE=9
  read -ra COMP_WORDS <<< "$line"
  COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
  $function kubectl-tpujob
  echo ${COMPREPLY[@]}
done
"""


def _output(*command: str, **env: str) -> list[str]:
    path = f"{_BIN}:{os.environ['PATH']}"
    done = subprocess.run(
        command,
        env={**os.environ, "PATH": path, **env},
        capture_output=True,
        text=True,
        check=True,
    )
    return [line.strip() for line in done.stdout.splitlines()]


def test_bash_completes() -> None:
    """Commands, options and what an option takes."""
    lines = ("kubectl-tpujob su", "kubectl-tpujob logs --pre", "kubectl-tpujob wait j --for S")
    offered = _output("bash", "--norc", "-c", _PRESS, "bash", *lines)
    assert [{*words.split()} for words in offered] == [
        {"submit", "suspend"},
        {"--previous"},
        {"Stalled", "Suspended", "Succeeded"},
    ]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_has_a_script(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    """It completes the plugin by its own name."""
    assert main(["completion", shell]) == 0
    assert "kubectl-tpujob" in capsys.readouterr().out


def test_kubectl_is_answered() -> None:
    """One candidate a line, and then that files are no candidates."""
    assert _output("kubectl_complete-tpujob", "su") == ["submit", "suspend", ":4"]


@pytest.mark.parametrize("words", [("su",), ("doctor", "--outp"), ("submit", "--outp")])
def test_no_client_is_loaded_for_what_needs_no_cluster(words: tuple[str, ...]) -> None:
    """Kubernetes' own takes a second of CPU, for which nobody waits with a finger on the key."""
    script = (
        "import sys; from tpujob_operator.cli.__main__ import complete; complete();"
        "print('kubernetes' in sys.modules)"
    )
    *candidates, end, is_loaded = _output(sys.executable, "-c", script, *words)
    assert candidates
    assert (end, is_loaded) == (":4", "False")


@pytest.mark.control_plane
def test_jobs_are_completed(run: Run, control_plane: Cluster, namespace: str) -> None:
    """Their names come from the cluster; one that cannot be asked offers none."""
    run("submit", str(EXAMPLES / "demo.yaml"))
    access = ["-n", namespace, "--kubeconfig", str(control_plane.kubeconfig)]
    assert _output("kubectl_complete-tpujob", "status", *access, "d") == ["demo", ":4"]
    access[-1] = os.devnull
    assert _output("kubectl_complete-tpujob", "status", *access, "d") == [":4"]
