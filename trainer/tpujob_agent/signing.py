"""Requests to a coordinator's HTTP side are signed with the job's token, which never travels.

The header holds time, nonce, digest of the body, and the HMAC-SHA256 of these, the method, the
path and the query. A coordinator takes a signature once, and only for some minutes.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import urllib.parse
from collections.abc import Mapping
from typing import Any

#: ``Authorization`` would not pass the API server's proxy.
SIGNATURE_HEADER = "Tpujob-Signature"
#: The clocks of the two sides may be apart, and a request under way, so long.
WINDOW_MS = 300_000
_KEPT_NONCES = 10_000
_PARTS = 4


def sign(
    token: str,
    method: str,
    path: str,
    now_ms: int,
    *,
    query: Mapping[str, str] | None = None,
    body: Any = None,
) -> str:
    """The value of ``SIGNATURE_HEADER``.

    Args:
        token: of the job.
        method: GET or PUT.
        path: without the query.
        now_ms: milliseconds since the epoch.
        query: names and values before they are quoted.
        body: what is sent as JSON; None: nothing.
    """
    signed = f"{now_ms}.{os.urandom(16).hex()}.{_digest(body)}"
    return f"{signed}.{_code(token, signed, method, path, query or {})}"


def _digest(body: Any) -> str:
    """Of the JSON whatever its spaces and order: libraries between us write it in their way."""
    return "" if body is None else hashlib.sha256(_canonical(body)).hexdigest()


def _canonical(body: Any) -> bytes:
    return json.dumps(body, sort_keys=True, separators=(",", ":")).encode()


def _code(token: str, signed: str, method: str, path: str, query: Mapping[str, str]) -> str:
    asked = urllib.parse.urlencode(sorted(query.items()))
    text = f"tpujob request\n{method}\n{path}\n{asked}\n{signed}"
    return hmac.digest(token.encode(), text.encode(), "sha256").hex()


def is_of_body(signature: str, body: Any) -> bool:
    """Whether this is the body that was signed, of a signature that was found good."""
    return hmac.compare_digest(signature.split(".")[2], _digest(body))


class Verifier:
    """Checks the signatures of requests, each of which is good once."""

    def __init__(self, token: str) -> None:
        self._token = token
        self._seen: dict[str, int] = {}  # nonces with their times, oldest first

    def problem(
        self, signature: str, method: str, path: str, query: Mapping[str, str], now_ms: int
    ) -> str:
        """Why a request is refused; empty when it is not. The body is still to be compared."""
        signed, _, code = signature.rpartition(".")
        parts = signed.split(".")
        expected = _code(self._token, signed, method, path, query)
        if len(parts) != _PARTS - 1 or not hmac.compare_digest(code.encode(), expected.encode()):
            return f"the header {SIGNATURE_HEADER} is missing, or made with another token"
        age_ms = now_ms - int(parts[0])
        if abs(age_ms) > WINDOW_MS:
            return (
                f"signed {abs(age_ms) // 1000} s {'before' if age_ms > 0 else 'after'} this "
                f"coordinator's clock, allowed are {WINDOW_MS // 1000} s: set the nodes' clocks"
            )
        return self._use(parts[1], now_ms)

    def _use(self, nonce: str, now_ms: int) -> str:
        if nonce in self._seen:
            return "this signature has been used before"
        self._seen[nonce] = now_ms
        while len(self._seen) > _KEPT_NONCES:
            del self._seen[next(iter(self._seen))]
        return ""
