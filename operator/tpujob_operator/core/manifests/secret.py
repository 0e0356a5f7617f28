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
PROGRAMS_KEY = "programs"
_KEY_ID_CHARACTERS = 8


def token(operator_key: str, job_uid: str) -> str:
    """A job's token: derived, so that the operator needs no right to read Secrets."""
    return _digest(operator_key, job_uid)


def programs_key(operator_key: str, job_uid: str) -> str:
    """What a job's compiled programs are signed with; the user's program has it, not the token."""
    return _digest(operator_key, f"programs {job_uid}")


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
    key, uid = options.operator_key, job.metadata.uid
    made = {TOKEN_KEY: token(key, uid), PROGRAMS_KEY: programs_key(key, uid)}
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": names.metadata(job, _name(job, options)),
        "type": "Opaque",
        "data": {name: base64.b64encode(each.encode()).decode() for name, each in made.items()},
    }


def token_variable(job: TPUTrainingJob, options: ManifestOptions, variable: str) -> dict[str, Any]:
    """An environment variable that holds the token."""
    reference = {"name": _name(job, options), "key": TOKEN_KEY}
    return {"name": variable, "valueFrom": {"secretKeyRef": reference}}


def programs_variable(
    job: TPUTrainingJob, options: ManifestOptions, variable: str, *, is_needed: bool
) -> dict[str, Any]:
    """An environment variable that holds the key of the job's compiled programs.

    ``is_needed``: no container starts without it. A Secret of an older operator lacks it.
    """
    reference: dict[str, Any] = {"name": _name(job, options), "key": PROGRAMS_KEY}
    if not is_needed:
        reference["optional"] = True
    return {"name": variable, "valueFrom": {"secretKeyRef": reference}}


def _name(job: TPUTrainingJob, options: ManifestOptions) -> str:
    return names.token_secret(job.metadata.name, job.metadata.uid, key_id(options.operator_key))


def _digest(operator_key: str, of: str) -> str:
    return hmac.new(operator_key.encode(), of.encode(), hashlib.sha256).hexdigest()
