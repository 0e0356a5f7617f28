"""The operator's keys: read at start from a Secret, which the operator creates if there is none.

The Secret belongs to nobody's release: an upgrade, a rendering without a cluster or a new
installation leaves it as it is, and running jobs keep tokens that the operator can derive.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import dataclasses
import logging
import secrets
from collections.abc import Mapping
from typing import Any

from tpujob_operator.core.kinds import SECRET
from tpujob_operator.core.manifests.names import FIELD_MANAGER, MANAGED_BY_LABEL
from tpujob_operator.settings import SettingsError
from tpujob_operator.shell.client import ApiError
from tpujob_operator.shell.statuswriter import Api

_log = logging.getLogger(__name__)
_KEY, _PREVIOUS = "key", "previous"
_SHORTEST = 16
_BYTES = 36
_FIRST_RETRY_S, _LONGEST_RETRY_S = 0.5, 10.0


class BadKeyError(SettingsError):
    """There is no usable key; the message says what to do."""


@dataclasses.dataclass(frozen=True, slots=True)
class Keys:
    """The key for new attempts, and earlier ones for attempts that were made with them."""

    current: str = dataclasses.field(repr=False)
    previous: tuple[str, ...] = dataclasses.field(default=(), repr=False)


async def load_keys(api: Api, namespace: str, name: str) -> Keys:
    """Read the keys, and create the Secret first if it does not exist; wait for the API server.

    Raises:
        BadKeyError: the Secret may not be read or created, or holds no usable key.
    """
    retry_s = _FIRST_RETRY_S
    while True:
        try:
            return _parsed(await _read_or_create(api, namespace, name), f"{namespace}/{name}")
        except ApiError as error:
            if error.is_refused or error.is_not_found:
                raise BadKeyError(
                    f"the operator can neither read nor create its key, Secret {namespace}/{name}: "
                    f"{error.message}. Give its service account the right to get and create it, "
                    f"or create it with a random `{_KEY}` of {_SHORTEST} characters or more"
                ) from error
            _log.warning("the operator's key cannot be read yet: %s", error.message)
        await asyncio.sleep(retry_s)
        retry_s = min(_LONGEST_RETRY_S, retry_s * 2)


async def _read_or_create(api: Api, namespace: str, name: str) -> Mapping[str, Any]:
    found = await api.get(SECRET, namespace, name)
    if found is not None:
        return found
    try:
        made = await api.create(_manifest(namespace, name))
    except ApiError as error:
        if not error.is_namesake:
            raise
        # Another replica was faster: its key counts.
        return await _read_or_create(api, namespace, name)
    _log.info("created the operator's key, Secret %s/%s", namespace, name)
    return made


def _manifest(namespace: str, name: str) -> dict[str, Any]:
    return {
        "apiVersion": SECRET.api_version,
        "kind": SECRET.kind,
        "metadata": {
            "name": name,
            "namespace": namespace,
            "labels": {MANAGED_BY_LABEL: FIELD_MANAGER},
        },
        "type": "Opaque",
        "stringData": {_KEY: secrets.token_urlsafe(_BYTES)},
    }


def _parsed(secret: Mapping[str, Any], where: str) -> Keys:
    current, *more = [*_lines(secret, _KEY, where), ""]
    previous = _lines(secret, _PREVIOUS, where)
    if len(more) != 1 or any(len(key) < _SHORTEST for key in (current, *previous)):
        raise BadKeyError(
            f"Secret {where} holds no usable key: `{_KEY}` must be one line of {_SHORTEST} "
            f"characters or more, and `{_PREVIOUS}`, if it is there, lines of that kind. Correct "
            "it, or delete it if no job runs: the operator creates it again"
        )
    return Keys(current, tuple(previous))


def _lines(secret: Mapping[str, Any], name: str, where: str) -> list[str]:
    try:
        text = base64.b64decode((secret.get("data") or {}).get(name, "")).decode()
    except (binascii.Error, UnicodeDecodeError) as error:
        raise BadKeyError(f"Secret {where}: `{name}` is no text: {error}") from error
    return [line.strip() for line in text.splitlines() if line.strip()]
