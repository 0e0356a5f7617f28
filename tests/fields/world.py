"""What there is in one namespace, listed again and again for all who wait for something."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from typing import TypeVar

from localcluster.kubeapi import ApiError, Object
from tests.namespaced import Namespaced
from tpujob_operator.core.kinds import CHILDREN, SECRET, SERVICE, TPU_TRAINING_JOB, Kind
from tpujob_operator.core.manifests.names import JOB_LABEL

#: The pause between two listings: it bounds what the waiting costs the API server.
_PAUSE_S = 0.2
#: The jobs come first, so that no child is older than what its job says.
_KINDS = (TPU_TRAINING_JOB, *CHILDREN, SERVICE, SECRET)
_T = TypeVar("_T")

#: Objects of one job by kind, those that are being deleted included.
Family = Mapping[Kind, list[Object]]


class World:
    """One thread lists; any number of threads wait for what it finds."""

    def __init__(self, place: Namespaced) -> None:
        self.place = place
        self._news = threading.Condition()
        self._families: Mapping[str, Family] = {}
        self._as_of = 0.0  # when the newest listing began
        self._ends = threading.Event()

    def wait(self, job: str, find: Callable[[Family], _T | None], what: str, limit_s: float) -> _T:
        """What ``find`` makes of a job's objects, as soon as it is something true.

        Only listings that have begun after the call count.

        Raises:
            AssertionError: not within ``limit_s``.
        """
        begun = time.monotonic()
        family: Family = {}
        with self._news:
            while time.monotonic() < begun + limit_s:
                self._news.wait(1)
                if self._as_of <= begun:
                    continue
                family = self._families.get(job, {})
                if found := find(family):
                    return found
        status = [item.get("status") for item in family.get(TPU_TRAINING_JOB, ())]
        raise AssertionError(f"not within {limit_s:.0f} s: {what}: {status}")

    @contextlib.contextmanager
    def watched(self) -> Iterator[World]:
        """List until it is left."""
        thread = threading.Thread(target=self._list, daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self._ends.set()
            thread.join()

    def _list(self) -> None:
        while not self._ends.wait(_PAUSE_S):
            begun = time.monotonic()
            with contextlib.suppress(ApiError, OSError):  # those who wait will say so
                families = self._listed()
                with self._news:
                    self._families, self._as_of = families, begun
                    self._news.notify_all()

    def _listed(self) -> Mapping[str, Family]:
        families: dict[str, dict[Kind, list[Object]]] = defaultdict(lambda: defaultdict(list))
        for kind in _KINDS:
            for item in self.place.all(kind):
                meta = item["metadata"]
                is_job = kind is TPU_TRAINING_JOB
                name = meta["name"] if is_job else meta.get("labels", {}).get(JOB_LABEL)
                if name:
                    families[name][kind].append(item)
        return families
