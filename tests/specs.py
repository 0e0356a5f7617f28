"""Parts of jobs that several tests use."""

from __future__ import annotations

from typing import Any

TWO_SLICES: dict[str, Any] = {
    "accelerator": "v5e",
    "topology": "2x2",
    "slices": 2,
    "trainer": {"config": {"steps": 100}},
    "checkpoint": {"directory": "/checkpoints"},
}

#: Instead of the bundled trainer.
OWN_PROGRAM: dict[str, Any] = {
    "trainer": None,
    "template": {"spec": {"containers": [{"name": "main", "image": "mine", "command": ["train"]}]}},
}

#: Of a status: a trainer that was killed.
INCIDENT: dict[str, Any] = {
    "at": "2026-01-01T00:00:10.500Z",
    "cause": "process",
    "rung": "R0",
    "slice": 1,
    "worker": 1,
    "node": "node3",
    "step": 25,
    "detectedAfterSeconds": 0.01,
    "recoveredAfterSeconds": 2.25,
    "lostSteps": 5,
}
