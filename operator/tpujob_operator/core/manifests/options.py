"""What the builders need to know of the operator."""

from __future__ import annotations

import dataclasses

from tpujob_tpu.prices import Prices


@dataclasses.dataclass(frozen=True, slots=True)
class ManifestOptions:
    """Settings of the operator that show in the objects it makes.

    Attributes:
        operator_key: Secret from which the token of every new attempt is derived.
        operator_image: Image of the coordinator and of the container that brings the agent.
        trainer_image: Image of the bundled trainer where a job names none.
        image_pull_policy: Pull policy of these images.
        previous_keys: Earlier keys, for attempts that were made with them.
        prices: USD per chip-hour that replace the defaults, by generation and provisioning.
    """

    operator_key: str = dataclasses.field(repr=False)
    operator_image: str
    trainer_image: str
    image_pull_policy: str = "IfNotPresent"
    previous_keys: tuple[str, ...] = dataclasses.field(default=(), repr=False)
    prices: Prices = dataclasses.field(default_factory=dict)
