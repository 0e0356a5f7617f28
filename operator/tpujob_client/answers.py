"""Errors of the API server in words that say what to do."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from typing import Any

import urllib3
from kubernetes.client.exceptions import ApiException

from tpujob_client.errors import (
    ClusterError,
    ForbiddenError,
    JobExistsError,
    JobNotFoundError,
    NotInstalledError,
    RefusedError,
    UnreachableError,
)
from tpujob_operator.api.base import KIND


@contextlib.contextmanager
def explained(
    api_client: Any, namespace: str, name: str = "", verb: str = "read"
) -> Iterator[None]:
    """Errors of the API server in words that say what to do.

    Args:
        api_client: whose errors they are.
        namespace: where.
        name: of the job; empty: it is about none.
        verb: what was to be done, as in "you may not read".

    Raises:
        ClusterError: the one that fits.
    """
    try:
        yield
    except ApiException as error:
        raise _of(error, namespace, name, verb) from error
    except urllib3.exceptions.HTTPError as error:
        host = api_client.configuration.host
        raise UnreachableError(f"{host} does not answer: is the cluster up? ({error})") from error


def missing(namespace: str, name: str) -> JobNotFoundError:
    """There is no such job."""
    return JobNotFoundError(
        f"there is no {KIND} {name} in namespace {namespace}: "
        "kubectl tpujob list -A lists all; name another namespace with -n"
    )


def _of(error: ApiException, namespace: str, name: str, verb: str) -> ClusterError:
    status, body = error.status, _body(error)
    if status == 404 and name and body.get("reason") == "NotFound":
        return missing(namespace, name)
    if status == 404:  # a path that the API server does not serve
        return NotInstalledError(f"the cluster knows no {KIND}: install the operator's chart")
    if status in (401, 403):
        role = "view" if verb.startswith("read") else "edit"
        return ForbiddenError(
            f"you may not {verb} {KIND}s in namespace {namespace} ({error.reason}): "
            f"ask for the role {role} there"
        )
    if status == 409:
        return JobExistsError(
            f"there is a {KIND} {name} in namespace {namespace} already: "
            "choose another name, or delete it first"
        )
    words = f"the API server answers {status} {error.reason}: {body.get('message', error.body)}"
    if status == 422:
        return RefusedError(words)
    is_passing = status == 429 or status >= 500
    return UnreachableError(words) if is_passing else ClusterError(words)


def _body(error: ApiException) -> dict[str, Any]:
    """The Status object of an answer; empty: it has none."""
    body: Any = error.body
    with contextlib.suppress(ValueError, TypeError):
        decoded = json.loads(body)
        return decoded if isinstance(decoded, dict) else {}
    return {}
