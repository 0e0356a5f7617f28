"""The token that agents and coordinator of an attempt share, and the Secret that holds it."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable

from tests.manifests.parts import environment_of, pods_of
from tpujob_agent.protocol import Env
from tpujob_operator.api.models import TPUTrainingJob
from tpujob_operator.core.manifests import build
from tpujob_operator.core.manifests.options import ManifestOptions
from tpujob_operator.core.manifests.secret import find_key

MakeJob = Callable[..., TPUTrainingJob]


def test_token_is_derived_and_shared(example: MakeJob, options: ManifestOptions) -> None:
    """Agents and coordinator read the same Secret; it differs by job and never shows the key."""
    secret, _, jobset = build(example("demo"), attempt=1, options=options)
    again = build(example("demo"), attempt=2, options=options)[0]
    assert again["data"] == secret["data"]
    assert options.operator_key not in json.dumps(secret) + repr(options)
    references = [
        environment_of(pod["spec"]["containers"][0])[Env.TOKEN] for pod in pods_of(jobset).values()
    ]
    reference = {"secretKeyRef": {"name": secret["metadata"]["name"], "key": "token"}}
    assert references == [reference, reference]


def test_another_key_makes_another_secret(example: MakeJob, options: ManifestOptions) -> None:
    """The Secret of an attempt that was made with another key is never written again."""
    newer = dataclasses.replace(options, operator_key="another-key-of-the-operator")
    made = [build(example("demo"), attempt=1, options=given) for given in (options, newer)]
    assert made[0][0]["metadata"]["name"] != made[1][0]["metadata"]["name"]
    assert "0a1b2c3d" in made[0][0]["metadata"]["name"]
    ids = [jobset["metadata"]["annotations"]["tpujob.dev/key-id"] for _, _, jobset in made]
    assert ids[0] != ids[1]
    assert find_key(newer, ids[0]) is None
    rotated = dataclasses.replace(newer, previous_keys=(options.operator_key,))
    assert find_key(rotated, ids[0]) == options.operator_key
