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


def token(operator_key: str, job_uid: str) -> str:
    """A job's token: derived, so that the operator needs no right to read Secrets."""
    return hmac.new(operator_key.encode(), job_uid.encode(), hashlib.sha256).hexdigest()


def build(job: TPUTrainingJob, options: ManifestOptions) -> dict[str, Any]:
    """The Secret of a job."""
    made = token(options.operator_key, job.metadata.uid)
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": names.metadata(job, names.token_secret(job.metadata.name)),
        "type": "Opaque",
        "data": {TOKEN_KEY: base64.b64encode(made.encode()).decode()},
    }


def token_variable(job: TPUTrainingJob, variable: str) -> dict[str, Any]:
    """An environment variable that holds the token."""
    reference = {"name": names.token_secret(job.metadata.name), "key": TOKEN_KEY}
    return {"name": variable, "valueFrom": {"secretKeyRef": reference}}
