"""Traces of chosen steps, and JAX's profiler server; their faults never stop the training."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import jax

from tpujob_trainer.config import ProfileConfig

#: Touch it in the profile directory to have the next steps traced; it may hold their number.
REQUEST_FILE = "request"
_STEPS_OF_A_REQUEST = 5
_POLL_PERIOD_S = 1.0


class Profiler:
    """Traces steps by configuration or on request.

    Every process writes its file into ``DIRECTORY/plugins/profile/steps-N-M``, named after
    its host.
    """

    def __init__(self, config: ProfileConfig, say: Callable[[str], None]) -> None:
        self._say = say
        self._directory = Path(config.directory)
        self._wanted = config.first_and_last
        self._until: int | None = None  # last step of the trace that runs
        self._polled_at = time.monotonic()
        self._request_seen = self._request_time()
        if config.port:
            with self._faults_told("the profiler server"):
                _serve(config.port)

    def begin(self, step: int, settle: Callable[[], None]) -> None:
        """Start or stop a trace if it is time for it.

        Args:
            step: the step that is dispatched next.
            settle: returns once all steps before it are complete.
        """
        if self._until is not None and step > self._until:
            settle()
            self.stop()
        self._look_for_request(step)
        if self._until is None and self._wanted and self._wanted[0] <= step <= self._wanted[1]:
            settle()
            self._start(step, self._wanted[1])

    def annotated(self, step: int) -> contextlib.AbstractContextManager[object]:
        """A context in which ``step`` is dispatched, so that the trace knows its number."""
        if self._until is None:
            return contextlib.nullcontext()
        return jax.profiler.StepTraceAnnotation("train", step_num=step)

    def stop(self) -> None:
        """Write the trace that runs, if any."""
        if self._until is None:
            return
        self._until = self._wanted = None
        with self._faults_told("the trace"):
            jax.profiler.stop_trace()
            self._say(f"trace written to {self._directory}")

    def _start(self, first: int, last: int) -> None:
        self._wanted = None  # a start that fails is not repeated at each step
        with self._faults_told("the trace"):
            options = jax.profiler.ProfileOptions()
            options.session_id = f"steps-{first}-{last}"  # the name of the run's folder
            self._directory.mkdir(parents=True, exist_ok=True)
            jax.profiler.start_trace(self._directory, profiler_options=options)
            self._until = last

    def _look_for_request(self, step: int) -> None:
        now = time.monotonic()
        if now - self._polled_at < _POLL_PERIOD_S:
            return
        self._polled_at = now
        requested = self._request_time()
        if requested in (self._request_seen, 0) or self._until is not None:
            return
        self._request_seen = requested
        with self._faults_told("the requested trace"):
            text = (self._directory / REQUEST_FILE).read_text("utf-8").strip()
            self._wanted = (step, step + max(1, int(text or _STEPS_OF_A_REQUEST)) - 1)

    def _request_time(self) -> int:
        try:
            return (self._directory / REQUEST_FILE).stat().st_mtime_ns
        except OSError:
            return 0

    @contextlib.contextmanager
    def _faults_told(self, what: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # noqa: BLE001 - a profile is worth less than the training
            self._say(f"{what} failed, training goes on: {error}")


def _serve(port: int) -> None:
    # JAX only logs that a port is taken.
    with socket.create_server(("", port)):
        pass
    jax.profiler.start_server(port)
