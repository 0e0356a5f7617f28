"""The parts of a user's pods that the operator looks at; the rest passes through."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, StrictInt, StrictStr, WithJsonSchema

from tpujob_operator.api.base import (
    MAX_CONTAINERS,
    MAX_ENV,
    MAX_VOLUMES,
    OpenModel,
    rule,
    rules,
)

TRAINER_CONTAINER = "trainer"
AGENT_CONTAINER = "tpujob-agent"
#: Name of the volume that agent and trainer share, mounted at ``AGENT_DIR``.
AGENT_VOLUME = "tpujob"
AGENT_DIR = "/tpujob"
#: Name of the volume in memory that outlives a trainer's process, mounted at ``SNAPSHOT_DIR``.
SNAPSHOT_VOLUME = "tpujob-snapshots"
SNAPSHOT_DIR = "/tpujob-snapshots"
OWN_VOLUMES = (AGENT_VOLUME, SNAPSHOT_VOLUME)
RESERVED_ENV_PREFIX = "TPUJOB_"

_Int64 = Annotated[StrictInt, Field(ge=-(2**63), lt=2**63)]
#: A quantity is a number or a text; other unions have no place in a structural schema.
Quantity = Annotated[_Int64 | StrictStr, WithJsonSchema({"x-kubernetes-int-or-string": True})]
_BY_NAME: dict[str, Any] = {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]}


class EnvVar(OpenModel):
    """An environment variable, as in a container of a pod."""

    name: str = Field(
        max_length=256,
        description=f"Name; the prefix {RESERVED_ENV_PREFIX} is the operator's.",
        json_schema_extra=rules(
            rule(
                f"!self.startsWith('{RESERVED_ENV_PREFIX}')",
                f"environment variables {RESERVED_ENV_PREFIX}* are set by the operator: "
                "choose another prefix",
            )
        ),
    )


class Volume(OpenModel):
    """A volume, as in a pod."""

    name: str = Field(
        max_length=63,
        description=f"Name; {' and '.join(OWN_VOLUMES)} are the operator's.",
        json_schema_extra=rules(
            *(
                rule(
                    f"self != '{name}'",
                    f"the volume name {name} is the operator's: choose another name",
                )
                for name in OWN_VOLUMES
            )
        ),
    )


class VolumeMount(OpenModel):
    """Where a volume is mounted, as in a container of a pod."""

    name: str = Field(max_length=63, description="Name of the volume.")
    mount_path: str = Field(max_length=1024, description="Absolute path in the container.")


class Resources(OpenModel):
    """Resource requests and limits, as in a container of a pod."""

    requests: dict[str, Quantity] | None = Field(default=None, description="Requests.")
    limits: dict[str, Quantity] | None = Field(default=None, description="Limits.")


class Toleration(OpenModel):
    """A toleration, as in a pod."""

    key: str | None = Field(default=None, description="Key of the taint.")


EnvVars = Annotated[list[EnvVar], Field(max_length=MAX_ENV, json_schema_extra=_BY_NAME)]
VolumeMounts = Annotated[list[VolumeMount], Field(max_length=MAX_VOLUMES)]
Volumes = Annotated[list[Volume], Field(max_length=MAX_VOLUMES, json_schema_extra=_BY_NAME)]


class Container(OpenModel):
    """A container, as in a pod."""

    name: str = Field(
        max_length=63,
        description="Name; the container that trains is called trainer, unless it is the only one.",
        json_schema_extra=rules(
            rule(
                f"self != '{AGENT_CONTAINER}'",
                f"the container name {AGENT_CONTAINER} is the operator's: choose another name",
            )
        ),
    )
    command: list[str] | None = Field(
        default=None,
        description="Command. The trainer's container must have one, because the agent runs it "
        "and cannot see the entrypoint of an image; with recovery.pods Recreate it need not.",
    )
    args: list[str] | None = Field(default=None, description="Arguments of the command.")
    env: EnvVars | None = Field(default=None, description="Environment variables.")
    resources: Resources | None = Field(
        default=None,
        description="Requests and limits. The chips of a host are added for the one that trains.",
    )
    volume_mounts: VolumeMounts | None = Field(
        default=None, description="Where volumes are mounted."
    )


class PodSpec(OpenModel):
    """What runs on each host of a slice, as in a pod."""

    containers: list[Container] = Field(
        min_length=1,
        max_length=MAX_CONTAINERS,
        description="The container that trains, named trainer or the only one, and side cars.",
        json_schema_extra=_BY_NAME,
    )
    init_containers: list[Container] | None = Field(
        default=None,
        max_length=MAX_CONTAINERS,
        description="Containers that run first, after the one that brings the agent.",
        json_schema_extra=_BY_NAME,
    )
    volumes: Volumes | None = Field(default=None, description="Volumes of the pod.")
    node_selector: dict[str, str] | None = Field(
        default=None, description="Labels of nodes; those of the slice's nodes are added."
    )
    tolerations: list[Toleration] | None = Field(
        default=None, description="Tolerations; those of TPU nodes are added."
    )


class TemplateMetadata(OpenModel):
    """Labels and annotations of the pods."""

    labels: dict[str, str] | None = Field(default=None, description="Labels of the worker pods.")
    annotations: dict[str, str] | None = Field(
        default=None, description="Annotations of the worker pods."
    )


class PodTemplate(OpenModel):
    """A PodTemplateSpec; fields that are not listed here are kept as they are."""

    metadata: TemplateMetadata | None = Field(
        default=None, description="Labels and annotations of the worker pods."
    )
    spec: PodSpec = Field(description="The worker pods.")


def find_trainer(containers: list[dict[str, Any]]) -> dict[str, Any]:
    """The container that trains: the one named ``trainer``, or the only one.

    Raises:
        ValueError: no container, or several and none is named ``trainer``.
    """
    named = [c for c in containers if c.get("name") == TRAINER_CONTAINER]
    if named:
        return named[0]
    if len(containers) == 1:
        return containers[0]
    names = ", ".join(str(c.get("name")) for c in containers) or "none"
    raise ValueError(
        f"which container trains? There are: {names}. Name one of them {TRAINER_CONTAINER}"
    )


TEMPLATE_RULES = rules(
    rule(
        f"size(self.spec.containers) <= 1"
        f" || self.spec.containers.exists(c, c.name == '{TRAINER_CONTAINER}')",
        f"which container trains? There are several: name one of them {TRAINER_CONTAINER}",
    ),
)
