"""JAX on eight CPU devices for the tests that run in this process."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path

import jax
import pytest

from tests.trainer.worlds import Launcher

# By configuration and not by variable: other tests' children must not inherit it.
jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 8)


@pytest.fixture(scope="session")
def session_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Packed text and compiled programs, shared by all tests of a session."""
    return tmp_path_factory.mktemp("trainer")


@pytest.fixture
def launcher(session_dir: Path, tmp_path: Path) -> Iterator[Launcher]:
    """Starts trainer processes, and leaves none behind."""
    started = Launcher(tmp_path, session_dir)
    yield started
    started.kill_all()


@pytest.fixture
def no_garbage(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """What the test leaves to the collector warns of nothing; a warning fails this test."""
    yield
    gc.collect()
    records = caplog.get_records("call") + caplog.get_records("teardown")
    assert not [record.getMessage() for record in records if record.name == "asyncio"]
