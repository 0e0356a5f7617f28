"""Notices programs that are compiled again after the first step: each one stops the devices."""

from __future__ import annotations

import logging
from collections.abc import Callable

import jax

#: JAX's event at the end of a compilation, and the logger that names shapes at its begin.
_EVENT = "/jax/core/compile/backend_compile_duration"
_LOGGER = "jax._src.interpreters.pxla"

#: Takes the program's name, the shapes and types it was compiled for, and the seconds.
Tell = Callable[[str, str, float], None]


class RecompileWatch(logging.Handler):
    """Tells about each program that is compiled for other shapes once ``arm`` was called."""

    def __init__(self, tell: Tell) -> None:
        super().__init__(logging.DEBUG)
        self._tell, self._is_armed = tell, False
        self._shapes: dict[str, str] = {}
        self._compiled: set[str] = set()
        logger = logging.getLogger(_LOGGER)
        logger.setLevel(logging.DEBUG)
        logger.propagate = False  # or every compilation would be printed
        logger.addHandler(self)
        jax.monitoring.register_event_duration_secs_listener(self._on_duration)

    def arm(self) -> None:
        """From here on all programs should be compiled."""
        self._is_armed = True

    def emit(self, record: logging.LogRecord) -> None:
        """Keep the shapes of a compilation that begins; called by ``logging``."""
        if record.msg.startswith("Compiling %s") and isinstance(record.args, tuple):
            name, shapes = record.args[:2]
            self._shapes[str(name)] = str(shapes)
        elif record.levelno >= logging.WARNING:
            logging.getLogger().handle(record)

    def _on_duration(self, event: str, duration_secs: float, **kwargs: str | int) -> None:
        if event != _EVENT:
            return
        name = str(kwargs.get("fun_name", "?"))
        if self._is_armed and name in self._compiled:
            self._tell(name, self._shapes.get(name, "unknown"), duration_secs)
        self._compiled.add(name)
