"""Reads one step from storage: tries again what may be there later, and proves what is damaged."""

from __future__ import annotations

import itertools
import os
import re
import socket
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from etils import epath
from jax.sharding import NamedSharding, PartitionSpec

from tpujob_checkpoint import contents
from tpujob_checkpoint import digest as digests
from tpujob_checkpoint.contents import Contents, ContentsDamagedError
from tpujob_checkpoint.distributed import World, agree, say
from tpujob_checkpoint.errors import CheckpointUnavailableError
from tpujob_checkpoint.faults import (
    GOOD,
    Finding,
    Kind,
    Verdict,
    brief,
    finding_of_load,
    judged,
)
from tpujob_checkpoint.origin import Origin
from tpujob_checkpoint.programs import mesh_of
from tpujob_checkpoint.storage import orbax
from tpujob_checkpoint.trees import DIGEST, STATE, fingerprint, leaf_names

#: Pauses between tries to read what is out of reach, half a minute in all. Whoever starts the
#: process again has longer ones.
PAUSES_S: Sequence[float] = (1.0, 2.0, 4.0, 8.0, 16.0)
#: Of a file that another user wrote: somebody has to change its owner or mode.
_NO_RIGHT = re.compile(r"\b(?:EACCES|EPERM): ")


class Read(NamedTuple):
    """A step that was read, or the proof that it is damaged."""

    state: Any = None
    origin: dict[str, Any] = {}  # noqa: RUF012 - of a tuple, and never changed
    damage: str = ""


class Reader:
    """Reads steps of one directory. All processes make every call, in the same order."""

    def __init__(
        self,
        directory: epath.Path,
        world: World,
        *,
        abstract: Any,
        digest: Callable[[Any], jax.Array],
        origin: Origin,
        pauses_s: Sequence[float],
    ) -> None:
        """Begin; see ``Checkpoints``. ``pauses_s``: before each try again."""
        self._directory, self._world, self._pauses_s = directory, world, pauses_s
        self._abstract, self._digest, self._origin = abstract, digest, origin
        self._names = leaf_names(abstract)
        self._where = f"on host {socket.gethostname()}, process {world.process_id}"

    def read(self, step: int) -> Read:
        """The state at ``step``, or the proof that it is damaged: found twice alike.

        Raises:
            CheckpointUnusableError: the configuration cannot continue it.
            CheckpointUnavailableError: it could not be read this time; names host and error.
        """
        before, pauses = GOOD, iter(self._pauses_s)
        for attempt in itertools.count():
            found, verdict = self._try(f"checkpoint/{step}/{attempt}", step)
            if verdict.kind is Kind.GOOD:
                return found
            if verdict.kind is Kind.DAMAGED:
                if verdict.proof == before.proof:
                    return Read(damage=str(verdict))
                if before is GOOD:
                    before = verdict
                    continue
            before = GOOD
            pause_s = next(pauses, None)
            if pause_s is None:
                raise self._unavailable(step, verdict)
            say(self._world, f"step {step} cannot be read now, next try in {pause_s} s: {verdict}")
            time.sleep(pause_s)
        raise AssertionError

    def _unavailable(self, step: int, verdict: Verdict) -> CheckpointUnavailableError:
        advice = "see that every host reaches the storage and has memory for the state"
        if _NO_RIGHT.search(str(verdict)):
            advice = f"let user id {os.geteuid()} read all of its files (securityContext.fsGroup)"
        return CheckpointUnavailableError(
            f"checkpoint of step {step} cannot be read from {self._directory}: {verdict}. It stays "
            f"where it is, and the next start reads it again: {advice}"
        )

    def _try(self, key: str, step: int) -> tuple[Read, Verdict]:
        known, mine = self.inspect(step)
        verdict = self._verdict(f"{key}/contents", mine, all_see_it=True)
        if known is None or verdict.kind is not Kind.GOOD:
            return Read(), verdict
        # Orbax numbers its operations, and all processes must count alike for the next save:
        # a checkpoint is loaded by all of them or by none.
        loaded, mine = self._load(step, known.rows)
        verdict = self._verdict(f"{key}/load", mine, all_see_it=False)
        if loaded is None or verdict.kind is not Kind.GOOD:
            # Do all see the same files? What only one host sees as short is not short.
            audit = self._verdict(f"{key}/audit", self._audit(step, known), all_see_it=True)
            if audit.kind is Kind.GOOD:
                return Read(), verdict
            return Read(), Verdict(audit.kind, (*verdict.reasons, *audit.reasons), audit.proof)
        mine = self._check_digest(loaded)
        verdict = self._verdict(f"{key}/digest", mine, all_see_it=True)
        return Read(loaded[STATE], known.origin), verdict

    def _verdict(self, key: str, mine: Finding, *, all_see_it: bool) -> Verdict:
        found = [
            Finding(Kind(kind), text, proof) for kind, text, proof in agree(self._world, key, mine)
        ]
        return judged(found, all_see_it=all_see_it)

    def inspect(self, step: int) -> tuple[Contents | None, Finding]:
        """What is known of a step without its arrays, and what this process finds wrong."""
        try:
            known = contents.read(self._path(step))
        except ContentsDamagedError as error:
            return None, Finding(Kind.DAMAGED, str(error))
        except (OSError, ValueError) as error:  # ValueError: TensorStore's, about a bucket
            return None, Finding(Kind.UNREAD, f"{brief(error)} {self._where}")
        if known.tree != fingerprint(self._abstract):
            return known, Finding(
                Kind.FOREIGN,
                f"checkpoint {self._path(step)} holds a model of other sizes (or another "
                "optimizer) than the configuration: use the former sizes, or another checkpoint "
                "directory",
            )
        if why_not := self._origin.why_not(known.origin, step):
            return known, Finding(Kind.FOREIGN, f"checkpoint {self._path(step)} {why_not}")
        return known, Finding()

    def _load(self, step: int, rows: int) -> tuple[Any | None, Finding]:
        wanted = {STATE: self._abstract, DIGEST: self._abstract_digest(rows)}
        files = orbax()
        try:
            return files.load(self._path(step), wanted, self._world.process_id), Finding()
        except Exception as error:  # noqa: BLE001 - whatever makes Orbax raise
            return None, finding_of_load(error, self._where)

    def _audit(self, step: int, known: Contents) -> Finding:
        try:
            wrong = contents.damage(self._path(step), known)
        except ContentsDamagedError as error:
            return Finding(Kind.DAMAGED, f"{error} {self._where}", str(error))
        except (OSError, ValueError) as error:
            return Finding(Kind.UNREAD, f"{brief(error)} {self._where}")
        shown = ", ".join(wrong[:3]) + (" …" if len(wrong) > 3 else "")
        return Finding(Kind.DAMAGED, f"{shown} {self._where}", shown) if wrong else Finding()

    def _abstract_digest(self, rows: int) -> jax.ShapeDtypeStruct:
        replicated = NamedSharding(mesh_of(self._abstract), PartitionSpec())
        return jax.ShapeDtypeStruct((rows, len(self._names)), "uint32", sharding=replicated)

    def _check_digest(self, loaded: dict[str, Any]) -> Finding:
        try:
            found = _on_host(self._digest(loaded[STATE]))
        except (MemoryError, jax.errors.JaxRuntimeError) as error:
            return Finding(Kind.UNREAD, f"{brief(error)} {self._where}")
        expected = np.sum(_on_host(loaded[DIGEST]), axis=0, dtype=np.uint32)
        names = digests.changed(self._names, expected.tolist(), found.tolist())
        if not names:
            return Finding()
        shown = ", ".join(names[:3]) + (" …" if len(names) > 3 else "")
        text = f"digest differs in {len(names)} arrays: {shown}"
        # A chip that computes wrongly finds something else the second time.
        return Finding(Kind.DAMAGED, text, f"{found.tolist()}")

    def _path(self, step: int) -> epath.Path:
        return self._directory / str(step)


def _on_host(array: jax.Array) -> Any:
    return array.addressable_data(0).__array__()
