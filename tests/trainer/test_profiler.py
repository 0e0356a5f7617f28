"""Traces hold the steps that were asked for, and no fault of the profiler reaches the training."""

from __future__ import annotations

import socket
import warnings
from collections.abc import Iterator
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

from tests.trainer.worlds import free_port
from tpujob_trainer import profiler
from tpujob_trainer.config import ProfileConfig
from tpujob_trainer.profiler import REQUEST_FILE, Profiler


@pytest.fixture(autouse=True)
def _poll_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profiler, "_POLL_PERIOD_S", 0.0)


@pytest.fixture
def said() -> list[str]:
    """What people were told."""
    return []


def traced_steps(directory: Path) -> dict[str, set[int]]:
    """Numbers of the steps in every trace below a directory, by name of the run."""
    with warnings.catch_warnings():
        # JAX 0.12 makes a type without a module; that warning as an error aborts the process.
        warnings.simplefilter("ignore", DeprecationWarning)
        return {
            file.parent.name: _step_numbers(file)
            for file in directory.glob("plugins/profile/*/*.xplane.pb")
        }


def _step_numbers(file: Path) -> set[int]:
    return {
        int(value)
        for plane in jax.profiler.ProfileData.from_file(str(file)).planes
        for line in plane.lines
        for event in line.events
        for name, value in event.stats
        if name == "step_num"
    }


def _steps(profiler_: Profiler, first: int, last: int) -> Iterator[int]:
    """Run steps like the loop does; yields before each."""
    add = jax.jit(lambda x: x + 1)
    for step in range(first, last + 1):
        yield step
        profiler_.begin(step, lambda: None)
        with profiler_.annotated(step):
            jax.block_until_ready(add(jnp.zeros(4)))
    profiler_.stop()


def test_the_steps_of_the_configuration_are_traced(tmp_path: Path, said: list[str]) -> None:
    """Steps 3 to 5 are in the trace, and no others."""
    made = Profiler(ProfileConfig(steps="3-5", directory=str(tmp_path)), said.append)
    list(_steps(made, 1, 8))
    assert traced_steps(tmp_path) == {"steps-3-5": {3, 4, 5}}
    assert said == [f"trace written to {tmp_path}"]


def test_a_run_that_ends_early_keeps_its_trace(tmp_path: Path, said: list[str]) -> None:
    """The trace that runs at the last step is written."""
    made = Profiler(ProfileConfig(steps="3-50", directory=str(tmp_path)), said.append)
    list(_steps(made, 1, 4))
    assert traced_steps(tmp_path) == {"steps-3-50": {3, 4}}


def test_a_request_traces_the_next_steps(tmp_path: Path, said: list[str]) -> None:
    """Each touch of the file makes one trace; a file from before the start makes none."""
    request = tmp_path / REQUEST_FILE
    request.write_text("3")
    made = Profiler(ProfileConfig(directory=str(tmp_path)), said.append)
    for step in _steps(made, 1, 20):
        if step == 4:
            request.write_text("2")
        if step == 10:
            request.write_text("")
    assert traced_steps(tmp_path) == {"steps-4-5": {4, 5}, "steps-10-14": set(range(10, 15))}


def test_faults_are_told_once_and_the_loop_goes_on(tmp_path: Path, said: list[str]) -> None:
    """A directory that cannot be written, or a senseless request, costs a line and no step."""
    (tmp_path / "file").write_text("")
    made = Profiler(ProfileConfig(steps="2-3", directory=str(tmp_path / "file")), said.append)
    assert list(_steps(made, 1, 6)) == [1, 2, 3, 4, 5, 6]
    asked = Profiler(ProfileConfig(directory=str(tmp_path)), said.append)
    for step in _steps(asked, 1, 6):
        if step == 2:
            (tmp_path / REQUEST_FILE).write_text("many")
    assert [line.partition(":")[0] for line in said] == [
        "the trace failed, training goes on",
        "the requested trace failed, training goes on",
    ]


def test_the_server_listens_or_says_why_not(tmp_path: Path, said: list[str]) -> None:
    """A free port is served; one in use is told, and the training goes on."""
    directory = str(tmp_path)
    with socket.create_server(("", 0)) as other:
        Profiler(ProfileConfig(port=other.getsockname()[1], directory=directory), said.append)
    assert len(said) == 1
    assert "the profiler server failed, training goes on" in said[0]
    port = free_port()
    Profiler(ProfileConfig(port=port, directory=directory), said.append)
    try:
        socket.create_connection(("127.0.0.1", port), timeout=10).close()
    finally:
        jax.profiler.stop_server()
    assert len(said) == 1
