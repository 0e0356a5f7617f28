"""The operator's settings: one frozen model, read from environment variables once at start."""

import json
import math
from collections.abc import Mapping
from typing import Annotated, Literal

import pydantic

from tpujob_operator.core.election import LeaseTiming
from tpujob_tpu.catalogue import BY_NAME
from tpujob_tpu.provisioning import Provisioning

Price = Annotated[float, pydantic.Field(ge=0)]
Port = Annotated[int, pydantic.Field(ge=0, le=65535)]


class SettingsError(ValueError):
    """The environment does not describe an operator that can run; the message says what to set."""


class Settings(pydantic.BaseModel):
    """Everything that can be set from outside; field ``x`` is read from ``TPUJOB_X``."""

    model_config = pydantic.ConfigDict(frozen=True, extra="forbid")

    operator_key: str = pydantic.Field(
        default="",
        min_length=16,
        repr=False,
        description="Secret from which every job's token is derived; must outlive the operator. "
        "Empty: it is in the Secret that TPUJOB_KEY_SECRET names.",
    )
    key_secret: str = pydantic.Field(
        default="tpujob-operator-key",
        min_length=1,
        description="Secret in the operator's namespace with its `key`, and in `previous` earlier "
        "ones, one a line; the operator creates it if there is none.",
    )
    operator_image: str = pydantic.Field(
        min_length=1, description="Image of coordinator and agent: the operator's own."
    )
    trainer_image: str = pydantic.Field(
        default="", description="Image of the bundled trainer where a job names none."
    )
    image_pull_policy: Literal["Always", "IfNotPresent", "Never"] = pydantic.Field(
        default="IfNotPresent", description="Pull policy of the images the operator adds to pods."
    )
    namespace: str = pydantic.Field(
        default="tpujob-system", description="Namespace the operator itself runs in."
    )
    lease_name: str = pydantic.Field(
        default="",
        description="Name of the Lease, in the operator's namespace, that elects the replica that "
        "writes; empty: no election, for a single replica only.",
    )
    lease_duration_s: float = pydantic.Field(
        default=10.0,
        ge=1,
        description="Seconds without a renewal after which another replica takes the Lease.",
    )
    lease_renew_deadline_s: float = pydantic.Field(
        default=7.0,
        gt=0,
        description="Seconds without a renewal after which the leader writes nothing; less than "
        "TPUJOB_LEASE_DURATION_S.",
    )
    lease_retry_s: float = pydantic.Field(
        default=2.0,
        gt=0,
        description="Seconds between two renewals; less than half of "
        "TPUJOB_LEASE_RENEW_DEADLINE_S.",
    )
    api_requests_per_s: float = pydantic.Field(
        default=200.0,
        gt=0,
        description="Requests a second to the API server in the long run.",
    )
    api_burst: int = pydantic.Field(
        default=400, ge=1, description="Requests that may be sent at once after a quiet time."
    )
    watch_namespaces: tuple[str, ...] = pydantic.Field(
        default=(), description="Namespaces to serve, separated by commas; empty: all of them."
    )
    metrics_port: Port = pydantic.Field(
        default=9090, description="Port of /metrics; 0 picks a free one."
    )
    probe_port: Port = pydantic.Field(
        default=8080, description="Port of /healthz and /readyz; 0 picks a free one."
    )
    log_format: Literal["json", "text"] = pydantic.Field(
        default="text", description="One JSON object per line, or lines for people."
    )
    workers: int = pydantic.Field(
        default=16, ge=1, le=256, description="Jobs reconciled at the same time."
    )
    coordinator_access: str = pydantic.Field(
        default="auto",
        pattern=r"^(auto|direct|proxy|https?://.+)$",
        description="How coordinators are read: direct (through their Service), proxy (through the "
        "API server, which takes the rights get and update of services/proxy), auto (direct where "
        "the operator runs in the cluster), or an address that may contain {service} and "
        "{namespace}.",
    )
    prices: dict[str, dict[Provisioning, Price]] = pydantic.Field(
        default={},
        description="JSON: USD per chip-hour by generation and provisioning (OnDemand, Spot, "
        'Reserved, FlexStart) instead of the list prices, such as {"v5e": {"OnDemand": 1.1}}.',
    )
    audit_interval_s: float = pydantic.Field(
        default=300.0,
        gt=0,
        description="Seconds after which everything is listed again: an event of a watch that was "
        "lost costs no more than that.",
    )

    node_loss_s: float = pydantic.Field(
        default=60.0,
        gt=0,
        description="Seconds for which a node must be not Ready and leave its lease alone, while "
        "the operator looks, before pods that wait for its kubelet are deleted by force.",
    )

    taint_suspects: bool = pydantic.Field(
        default=False,
        description="Whether nodes that jobs suspect are tainted for all, one TPU node in ten at "
        "most.",
    )

    @pydantic.field_validator("watch_namespaces", mode="before")
    @classmethod
    def _split_commas(cls, value: object) -> object:
        if isinstance(value, str):
            return tuple(part.strip() for part in value.split(",") if part.strip())
        return value

    @pydantic.field_validator("prices", mode="before")
    @classmethod
    def _read_json(cls, value: object) -> object:
        return json.loads(value) if isinstance(value, str) else value

    @pydantic.field_validator("prices")
    @classmethod
    def _know_generations(
        cls, value: dict[str, dict[Provisioning, Price]]
    ) -> dict[str, dict[Provisioning, Price]]:
        if unknown := sorted(value.keys() - BY_NAME.keys()):
            raise ValueError(f"there is no TPU generation {unknown[0]}: use {', '.join(BY_NAME)}")
        return value

    @pydantic.field_validator("lease_renew_deadline_s")
    @classmethod
    def _end_before_the_lease(cls, value: float, info: pydantic.ValidationInfo) -> float:
        if value >= info.data.get("lease_duration_s", math.inf):
            raise ValueError("must be less than the duration of the Lease")
        return value

    @pydantic.field_validator("lease_retry_s")
    @classmethod
    def _renew_twice_in_time(cls, value: float, info: pydantic.ValidationInfo) -> float:
        if 2 * value >= info.data.get("lease_renew_deadline_s", math.inf):
            raise ValueError("must be less than half of the renew deadline")
        return value

    @property
    def lease_timing(self) -> LeaseTiming:
        """How the Lease is held."""
        return LeaseTiming(self.lease_duration_s, self.lease_renew_deadline_s, self.lease_retry_s)

    @classmethod
    def from_env(cls, environ: Mapping[str, str]) -> "Settings":
        """Read the settings from variables named ``TPUJOB_<FIELD>``; empty ones count as unset.

        Raises:
            SettingsError: names every variable that is missing or wrong, and why.
        """
        given = {name: environ.get(variable_of(name), "") for name in cls.model_fields}
        try:
            return cls.model_validate({name: value for name, value in given.items() if value})
        except pydantic.ValidationError as error:
            raise SettingsError(_explain(error)) from None


def variable_of(field: str) -> str:
    """Name of the environment variable of a settings field."""
    return f"TPUJOB_{field.upper()}"


def _explain(error: pydantic.ValidationError) -> str:
    lines = [
        _explain_one(str(item["loc"][0]), item["type"], item["msg"]) for item in error.errors()
    ]
    return "The operator cannot start with this environment:\n" + "\n".join(lines)


def _explain_one(field: str, kind: str, message: str) -> str:
    what = Settings.model_fields[field].description or ""
    problem = "is not set" if kind == "missing" else f"is wrong: {message}"
    return f"  {variable_of(field)} {problem}. {what}"
