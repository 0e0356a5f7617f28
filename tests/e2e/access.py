"""The API of whatever cluster the tests run on, by the client of its kubeconfig."""

from __future__ import annotations

from kubernetes import client

from localcluster.kubeapi import Api, Object

_TIMEOUT_S = 30.0


class Access(Api):
    """Requests with the credentials of a kubeconfig, which kind or a cloud may have made."""

    def __init__(self, api_client: client.ApiClient) -> None:
        self._client = api_client

    def _exchange(
        self, method: str, path: str, body: Object | None, content_type: str
    ) -> tuple[int, bytes]:
        path, _, query = path.partition("?")
        prepared = self._client.param_serialize(
            method,
            path,
            query_params=[tuple(part.split("=", 1)) for part in query.split("&") if part],
            header_params={"Accept": "*/*", "Content-Type": content_type},
            body=body,
            auth_settings=["BearerToken"],
        )
        answer = self._client.call_api(*prepared, _request_timeout=_TIMEOUT_S)
        return answer.status, answer.read() or b""  # type: ignore[no-untyped-call] # the client has no types
