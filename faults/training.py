"""A program that trains nothing and does what a fault orders. Runs as ``python -c`` in any image.

It saves every tenth step and when it is asked to, and resumes from there. Its losses are a
chain: one step too many, too few or from another state, and all that follow are different.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import tpujob

#: This file, to be given to ``python -c`` in an image that has no such module.
TRAINING = Path(__file__).read_text() if "__file__" in globals() else ""
STEP_S = 0.05
SAVE_EVERY = 10
#: A line with an order for the process of this container; it is taken once.
ORDER = "/tmp/order"  # noqa: S108 - a container has one of its own
LEAVE = 42
_WORD = 2**64
_MOUTHFUL = 8 << 20
_PADDING = 64 << 10  # a save is no single page, which a full disk might still have


def advance(state: int, step: int) -> int:
    """The state after one more step."""
    return (state * 6364136223846793005 + step) % _WORD


def loss_of(state: int) -> float:
    """A loss that tells one state from any other."""
    return state / _WORD


def course(steps: int) -> dict[int, float]:
    """Losses of a run that nothing hits."""
    state, losses = 0, {}
    for step in range(1, steps + 1):
        state = advance(state, step)
        losses[step] = loss_of(state)
    return losses


def obey(order: str) -> None:
    """``exit CODE``, ``block`` the main thread, or take all memory as a ``hog`` or a ``swarm``."""
    word, _, argument = order.partition(" ")
    if word == "exit":
        sys.exit(int(argument))
    while word == "block":
        time.sleep(1)
    pile = []
    while word == "hog":
        pile.append(b"x" * _MOUTHFUL)
    while word == "swarm":
        if os.fork() == 0:
            pile.append(b"x" * _MOUTHFUL)
            time.sleep(3600)


class Folder:
    """What all hosts share: the newest save, and a diary of starts and saves by world."""

    def __init__(self, path: Path) -> None:
        path.mkdir(parents=True, exist_ok=True)
        self._path = path
        self._spool = Path(os.environ.get("SPOOL") or path)  # of this host, where saves begin

    def restore(self) -> tuple[int, int]:
        """Step and state of the newest save; zeros without one."""
        saved = self._path / "saved"
        step, state = json.loads(saved.read_text()) if saved.exists() else (0, 0)
        self._note(f"began {step}")
        return step, state

    def save(self, step: int, state: int) -> None:
        """Save, durably before it is told."""
        content = json.dumps([step, state])
        for folder in (self._spool, self._path):  # the last one stays until the new one is whole
            new = folder / "new"
            new.write_text(content + " " * _PADDING)
            draft = new.replace(folder / "draft")
        self._note(f"saving {step}")
        draft.replace(self._path / "saved")
        self._note(f"saved {step}")
        tpujob.committed(step, blocked_s=0.001, lag_s=0.01)

    def _note(self, what: str) -> None:
        with (self._path / "diary").open("a") as diary:
            diary.write(
                f"{os.environ['TPUJOB_ATTEMPT']} {os.environ['TPUJOB_GENERATION']} {what}\n"
            )


def main() -> None:
    """Train."""
    folder, order = Folder(Path(os.environ["FOLDER"])), Path(ORDER)
    tpujob.model_flops(1e12)
    tpujob.phase("restore")
    start, state = folder.restore()
    tpujob.restored(start)
    for step in range(start + 1, int(os.environ["STEPS"]) + 1):
        time.sleep(STEP_S)
        if order.exists():
            words = order.read_text().strip()
            order.unlink()
            obey(words)
        state = advance(state, step)
        tpujob.step(step, loss=loss_of(state), tokens=8)
        wish = tpujob.save_request()
        is_asked = step == wish.step
        if (step % SAVE_EVERY == 0 or is_asked) and os.environ["JAX_PROCESS_ID"] == "0":
            folder.save(step, state)
        if is_asked and wish.then_leave:
            sys.exit(LEAVE)


if __name__ == "__main__":
    main()
