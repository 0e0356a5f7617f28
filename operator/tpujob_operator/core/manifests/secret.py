"""The Secret that agents and coordinator share."""

from __future__ import annotations

import base64
import hashlib
import hmac
from typing import Any

from tpujob_operator.api.models import TPUTrainingJob
from tpujob_operator.core.manifests import names
from tpujob_operator.core.manifests.options import ManifestOptions

TOKEN_KEY = "token"  # noqa: S105 - a key's name, not a secret
_KEY_ID_CHARACTERS = 8


def token(operator_key: str, job_uid: str) -> str:
    """A job's token: derived, so that the operator needs no right to read Secrets."""
    return _digest(operator_key, job_uid)


def key_id(operator_key: str) -> str:
    """What tells one key of the operator from another; it says nothing about the key."""
    return _digest(operator_key, "id of the operator's key")[:_KEY_ID_CHARACTERS]


def find_key(options: ManifestOptions, wanted_id: str) -> str | None:
    """The operator's key with this id; nothing: it is not among those that the operator knows."""
    keys = (options.operator_key, *options.previous_keys)
    return next((key for key in keys if key_id(key) == wanted_id), None)


def token_of_attempt(options: ManifestOptions, key_id: str, job_uid: str) -> str | None:
    """The token of an attempt that was made with the key of this id; nothing: it is unknown."""
    key = find_key(options, key_id)
    return None if key is None else token(key, job_uid)


def build(job: TPUTrainingJob, options: ManifestOptions) -> dict[str, Any]:
    """The Secret of a job."""
    made = token(options.operator_key, job.metadata.uid)
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": names.metadata(job, _name(job, options)),
        "type": "Opaque",
        "data": {TOKEN_KEY: base64.b64encode(made.encode()).decode()},
    }


def token_variable(job: TPUTrainingJob, options: ManifestOptions, variable: str) -> dict[str, Any]:
    """An environment variable that holds the token."""
    reference = {"name": _name(job, options), "key": TOKEN_KEY}
    return {"name": variable, "valueFrom": {"secretKeyRef": reference}}


def _name(job: TPUTrainingJob, options: ManifestOptions) -> str:
    return names.token_secret(job.metadata.name, job.metadata.uid, key_id(options.operator_key))


def _digest(operator_key: str, of: str) -> str:
    return hmac.new(operator_key.encode(), of.encode(), hashlib.sha256).hexdigest()
