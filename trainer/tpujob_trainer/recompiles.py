"""Notices programs that are compiled again after the first step: each one stops the devices."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterator

import jax

#: JAX's event at the end of a compilation, and the logger that names shapes at its begin.
_EVENT = "/jax/core/compile/backend_compile_duration"
_LOGGER = "jax._src.interpreters.pxla"

#: Takes the program's name, the shapes and types it was compiled for, and the seconds.
Tell = Callable[[str, str, float], None]


class RecompileWatch(logging.Handler):
    """Tells about each program of the steps that is compiled again once ``arm`` was called.

    A program belongs to the steps if it is compiled in the course of one, by the thread that
    makes it. A name alone says nothing: restores, saves and probes run programs of one name for
    every leaf and every device, and compile them when they are first needed.
    """

    def __init__(self, tell: Tell) -> None:
        super().__init__(logging.DEBUG)
        self._tell, self._is_armed = tell, False
        self._stepping: int | None = None  # the thread that is making a step
        self._shapes: dict[str, str] = {}
        self._compiled: set[str] = set()
        logger = logging.getLogger(_LOGGER)
        logger.setLevel(logging.DEBUG)
        logger.propagate = False  # or every compilation would be printed
        logger.addHandler(self)
        jax.monitoring.register_event_duration_secs_listener(self._on_duration)

    def arm(self) -> None:
        """From here on all programs of the steps should be compiled."""
        self._is_armed = True

    @contextlib.contextmanager
    def stepping(self) -> Iterator[None]:
        """Around whatever compiles nothing once the first step is done."""
        self._stepping = threading.get_ident()
        try:
            yield
        finally:
            self._stepping = None

    def emit(self, record: logging.LogRecord) -> None:
        """Keep the shapes of a compilation that begins; called by ``logging``."""
        if record.msg.startswith("Compiling %s") and isinstance(record.args, tuple):
            name, shapes = record.args[:2]
            self._shapes[str(name)] = str(shapes)
        elif record.levelno >= logging.WARNING:
            logging.getLogger().handle(record)

    def _on_duration(self, event: str, duration_secs: float, **kwargs: str | int) -> None:
        if event != _EVENT or threading.get_ident() != self._stepping:
            return
        name = str(kwargs.get("fun_name", "?"))
        if self._is_armed and name in self._compiled:
            self._tell(name, self._shapes.get(name, "unknown"), duration_secs)
        self._compiled.add(name)
