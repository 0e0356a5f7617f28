"""A job and its changes, by watching it: nothing is polled, and no outage of minutes is the end."""

from __future__ import annotations

import contextlib
import functools
import math
import time
from collections.abc import Iterator
from typing import Any

from kubernetes import watch
from kubernetes.client.exceptions import ApiException

from tpujob_client.errors import JobNotFoundError, UnreachableError, explained, missing
from tpujob_client.job import Job
from tpujob_operator.api.base import GROUP, KIND, PLURAL, VERSION

REQUEST_TIMEOUT_S = 30
#: The API server ends a watch after this long; one that is silent for longer still is frozen.
_WATCH_S = 60
_FROZEN_S = 75.0
_PAUSE_S = 1.0
#: So long an API server may be away while a job is watched.
_PATIENCE_S = 600.0
_GONE = 410


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
    last = ""
    lost_at = math.inf  # no answer since then
    while True:
        try:
            for job in _once(objects, namespace, name, deadline):
                lost_at = math.inf
                version = job.raw["metadata"]["resourceVersion"]
                if version != last:
                    last = version
                    yield job
        except UnreachableError:
            lost_at = min(lost_at, time.monotonic())
            # What has never been reached may be a wrong address.
            if not last or time.monotonic() - lost_at > _PATIENCE_S:
                raise
        if _left_s(deadline) <= 0:
            return
        time.sleep(min(_PAUSE_S, _left_s(deadline)))


def _once(objects: Any, namespace: str, name: str, deadline: float | None) -> Iterator[Job]:
    """A job as it is, and its changes until its watch ends, as all do after a while."""
    wanted = {"field_selector": f"metadata.name={name}"}
    list_jobs = functools.partial(
        objects.list_namespaced_custom_object, GROUP, VERSION, namespace, PLURAL, **wanted
    )
    with explained(objects.api_client, namespace, name):
        found = list_jobs(_request_timeout=REQUEST_TIMEOUT_S)
        if not found["items"]:
            raise missing(namespace, name)
        yield Job(found["items"][0])
        if _left_s(deadline) <= 0:
            return
        watcher: Any = watch
        events = watcher.Watch(object).stream(
            list_jobs,
            resource_version=found["metadata"]["resourceVersion"],
            timeout_seconds=_WATCH_S,
            _request_timeout=(REQUEST_TIMEOUT_S, min(_FROZEN_S, _left_s(deadline))),
        )
        with contextlib.closing(events), _until_expired():
            for event in events:
                if event["type"] == "DELETED":
                    raise JobNotFoundError(
                        f"the {KIND} {name} in namespace {namespace} was deleted meanwhile"
                    )
                yield Job(event["raw_object"])
                if _left_s(deadline) <= 0:
                    return


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
