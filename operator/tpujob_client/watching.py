"""Objects and their changes, by watching them: no polling, and no outage of minutes is the end."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from kubernetes import watch
from kubernetes.client.exceptions import ApiException

from tpujob_client.answers import explained, missing
from tpujob_client.errors import JobNotFoundError, UnreachableError
from tpujob_client.job import Job
from tpujob_operator.api.base import GROUP, KIND, PLURAL, VERSION

REQUEST_TIMEOUT_S = 30
#: The API server ends a watch after this long; one that is silent for longer still is frozen.
_WATCH_S = 60
_FROZEN_S = 75.0
_PAUSE_S = 1.0
#: So long an API server may be away while something is watched.
_PATIENCE_S = 600.0
_GONE = 410


@dataclasses.dataclass(frozen=True, slots=True)
class Change:
    """What a watch tells."""

    items: Sequence[Mapping[str, Any]]  # those that changed
    is_all: bool = False  # all that there are
    is_gone: bool = False  # they were deleted


@dataclasses.dataclass(frozen=True, slots=True)
class Watched:
    """A collection that can be listed and watched.

    Attributes:
        api_client: whose requests they are.
        list_it: a list method of the package ``kubernetes``, with all but its options.
        namespace: for messages, as the next one.
        name: of the job that it is about.
    """

    api_client: Any
    list_it: Callable[..., Any]
    namespace: str
    name: str

    def changes(self, deadline: float | None) -> Iterator[Change]:
        """All objects, then changes until the deadline by the monotonic clock; then all anew.

        Raises:
            ClusterError: the API server refuses, or is away for too long.
        """
        lost_at = 0.0  # no answer since then
        was_there = False
        while True:
            try:
                for change in self._once(deadline):
                    was_there, lost_at = True, 0.0
                    yield change
            except UnreachableError:
                now = time.monotonic()
                lost_at = lost_at or now
                # What has never been reached may be a wrong address.
                if not was_there or now - lost_at > _PATIENCE_S:
                    raise
            if _left_s(deadline) <= 0:
                return
            time.sleep(min(_PAUSE_S, _left_s(deadline)))

    def _once(self, deadline: float | None) -> Iterator[Change]:
        """Until the watch ends, as all do after a while."""
        with explained(self.api_client, self.namespace, self.name):
            found = self.list_it(_request_timeout=REQUEST_TIMEOUT_S)
            found = self.api_client.sanitize_for_serialization(found)
            yield Change(found["items"], is_all=True)
            if _left_s(deadline) <= 0:
                return
            watcher: Any = watch
            events = watcher.Watch(object).stream(
                self.list_it,
                resource_version=found["metadata"]["resourceVersion"],
                timeout_seconds=_WATCH_S,
                _request_timeout=(REQUEST_TIMEOUT_S, min(_FROZEN_S, _left_s(deadline))),
            )
            with contextlib.closing(events), _until_expired():
                for event in events:
                    yield Change([event["raw_object"]], is_gone=event["type"] == "DELETED")
                    if _left_s(deadline) <= 0:
                        return


def versions(objects: Any, namespace: str, name: str, deadline: float | None) -> Iterator[Job]:
    """A job as it is, and each time it has changed, until the deadline by the monotonic clock.

    Args:
        objects: the ``CustomObjectsApi``.
        namespace: where it is.
        name: which it is.
        deadline: None: there is none.

    Raises:
        ClusterError: it is not there or has gone, or the API server is away for too long.
    """
    list_it = functools.partial(
        objects.list_namespaced_custom_object,
        *(GROUP, VERSION, namespace, PLURAL),
        field_selector=f"metadata.name={name}",
    )
    last = ""
    for change in Watched(objects.api_client, list_it, namespace, name).changes(deadline):
        if last and (change.is_gone or not change.items):
            words = f"the {KIND} {name} in namespace {namespace} was deleted meanwhile"
            raise JobNotFoundError(words)
        if not change.items:
            raise missing(namespace, name)
        job = Job(change.items[0])
        if job.raw["metadata"]["resourceVersion"] != last:
            last = job.raw["metadata"]["resourceVersion"]
            yield job


@contextlib.contextmanager
def _until_expired() -> Iterator[None]:
    """The end of a watch whose version the API server no longer knows is like any other."""
    try:
        yield
    except ApiException as error:
        if error.status != _GONE:
            raise


def _left_s(deadline: float | None) -> float:
    return math.inf if deadline is None else deadline - time.monotonic()
