"""The API of whatever cluster the tests run on, with the calls of ``localcluster.kubeapi.Api``."""

from __future__ import annotations

import http
import json
from typing import Any

from kubernetes import client

from localcluster.kubeapi import ApiError, Object

_TIMEOUT_S = 30.0


class Access:
    """Requests with the credentials of a kubeconfig, which kind or a cloud may have made."""

    def __init__(self, api_client: client.ApiClient) -> None:
        self._client = api_client

    def request(
        self,
        method: str,
        path: str,
        body: Object | None = None,
        content_type: str = "application/json",
    ) -> Any:
        """The decoded answer, or its text where it is no JSON.

        Raises:
            ApiError: The answer is an error.
        """
        path, _, query = path.partition("?")
        prepared = self._client.param_serialize(
            method,
            path,
            query_params=[tuple(part.split("=", 1)) for part in query.split("&") if part],
            header_params={"Accept": "*/*", "Content-Type": content_type},
            body=body,
            auth_settings=["BearerToken"],
        )
        answer: Any = self._client.call_api(*prepared, _request_timeout=_TIMEOUT_S)
        content = answer.read() or b""
        try:
            decoded = json.loads(content)
        except ValueError:
            decoded = content.decode(errors="replace")
        if answer.status >= http.HTTPStatus.BAD_REQUEST:
            message = decoded.get("message", "") if isinstance(decoded, dict) else str(decoded)
            raise ApiError(answer.status, f"{method} {path}: {message}")
        return decoded

    def get(self, path: str) -> Any:
        """The object at ``path``."""
        return self.request("GET", path)

    def merge(self, path: str, patch: Object) -> Object:
        """Merge ``patch`` into the object at ``path``."""
        merged: Object = self.request("PATCH", path, patch, "application/merge-patch+json")
        return merged
