"""The TPUTrainingJob: single source of CRD, field reference and JSON schema."""

from __future__ import annotations

import functools
import re
import warnings
from collections.abc import Mapping
from typing import Any, Literal, Self

from pydantic import ConfigDict, Field, ValidationError, model_validator

from tpujob_operator.api import provisioning, recovery
from tpujob_operator.api.base import API_VERSION, KIND, Model, OpenModel, Timestamp, rule, rules
from tpujob_operator.api.checkpoints import (
    DIRECTORY_PATTERN,
    CheckpointInterval,
    IntervalPolicy,
)
from tpujob_operator.api.podmetadata import metadata_problems
from tpujob_operator.api.podtemplate import (
    AGENT_CONTAINER,
    OWN_VOLUMES,
    RESERVED_ENV_PREFIX,
    find_trainer,
)
from tpujob_operator.api.sizes import depth_problems, size_problems
from tpujob_operator.api.spec import (
    MAX_SLICES,
    NO_PREFLIGHT,
    NODE_LABEL_PATTERN,
    QUEUE_PATTERN,
    STRAGGLER_RATIOS,
    JobSpec,
    Preflight,
)
from tpujob_operator.api.status import JobStatus
from tpujob_operator.api.structural import structural_schema, unknown_fields, wrong_types
from tpujob_tpu.catalogue import (
    RESOURCE,
    SliceShape,
    UnknownSliceError,
    slice_shape,
)

#: A worker pod is called ``<job>-<attempt>-slice-<slice>-<host>-<5 random>`` and must fit into the
#: 63 characters of a DNS label: 27 are for ``-9999-slice-9999-9999-abcde``
#: (and ``-9999-coordinator-0-0-abcde``).
MAX_NAME = 63 - len("-9999-slice-9999-9999-abcde")
#: JobSet asks for DNS-1035 labels: no dots, a letter first.
NAME_PATTERN = "^[a-z]([-a-z0-9]*[a-z0-9])?$"
_NAME_TOO_LONG = f"the name may have at most {MAX_NAME} characters, because pods are named after it"
_NAME_FORM = (
    "the name must consist of lower case letters, digits and '-', begin with a letter "
    "and not end with '-', because Jobs and Services are named after it"
)


class InvalidJobError(ValueError):
    """A job that cannot be run; the message lists every field that is wrong."""


class Metadata(OpenModel):
    """The parts of an object's metadata that the operator uses."""

    name: str
    namespace: str = "default"
    uid: str = ""
    generation: int = 0
    creation_timestamp: Timestamp | None = None
    deletion_timestamp: Timestamp | None = None
    labels: dict[str, str] = Field(default_factory=dict)
    annotations: dict[str, str] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _name_fits(self) -> Self:
        if len(self.name) > MAX_NAME:
            raise ValueError(f"{_NAME_TOO_LONG}; {self.name} has {len(self.name)}")
        if not re.match(NAME_PATTERN, self.name):
            raise ValueError(f"{_NAME_FORM}; got {self.name}")
        return self


class TPUTrainingJob(Model):
    """A training job on TPU slices: runs, recovers in place, and accounts for every second."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            rule(
                f"size(self.metadata.name) <= {MAX_NAME}",
                _NAME_TOO_LONG,
            ),
            rule(f"self.metadata.name.matches('{NAME_PATTERN}')", _NAME_FORM),
        )
    )
    api_version: Literal["tpujob.dev/v1alpha1"] = API_VERSION
    kind: Literal["TPUTrainingJob"] = KIND
    metadata: Metadata
    spec: JobSpec = Field(description="What the user asks for.")
    status: JobStatus = Field(
        default_factory=JobStatus, description="What the operator has to say."
    )

    @property
    def shape(self) -> SliceShape:
        """Chips, hosts and node labels of one slice."""
        return slice_shape(self.spec.accelerator, self.spec.topology)


def parse_job(raw: Mapping[str, Any], *, strict: bool = False) -> TPUTrainingJob:
    """The job in an object of the API.

    Everything that CEL refuses is refused here too, so that files can be
    checked without a cluster. The status is left empty: whatever an older
    operator wrote there must not make a job invalid, see ``parse_status``.

    Args:
        raw: The object.
        strict: Refuse unknown fields and types to be converted, as in a file a person has written.

    Raises:
        InvalidJobError: the message has one line per wrong field, with its path.
    """
    if not isinstance(raw, Mapping):
        raise InvalidJobError("object: a job is a mapping with apiVersion, kind, metadata and spec")
    if too_deep := depth_problems(raw.get("spec")):
        raise InvalidJobError("\n".join(too_deep))
    try:
        job = TPUTrainingJob.model_validate({**raw, "status": {}})
        problems = _problems(job)
        if strict:
            problems += wrong_types(raw["spec"], _spec_schema(), "spec")
    except ValidationError as error:
        problems = [_line(item) for item in error.errors()]
    if strict:
        unknown = unknown_fields(raw.get("spec"), _spec_schema(), "spec")
        problems += [f"{path}: there is no such field" for path in unknown]
    if problems:
        raise InvalidJobError("\n".join(problems))
    return job


def parse_status(raw: Mapping[str, Any]) -> JobStatus:
    """The status in an object of the API; what cannot be read counts as absent."""
    given: dict[str, Any] = dict(raw.get("status") or {})
    while True:
        try:
            return JobStatus.model_validate(given)
        except ValidationError as error:
            for problem in error.errors():
                given.pop(str(problem["loc"][0]), None)


@functools.cache
def _spec_schema() -> dict[str, Any]:
    return structural_schema(JobSpec)


def _line(error: Any) -> str:
    path = ".".join(str(part) for part in error["loc"]) or "object"
    return f"{path}: {str(error['msg']).removeprefix('Value error, ')}"


def _problems(job: TPUTrainingJob) -> list[str]:
    """What the types cannot express."""
    spec = job.spec
    found = []
    try:
        shape = slice_shape(spec.accelerator, spec.topology)
        found += _placement_problems(spec, shape) + size_problems(spec, shape)
    except UnknownSliceError as error:
        found.append(f"spec.topology: {error}")
    if (spec.template is None) == (spec.trainer is None):
        found.append("spec: give exactly one of template and trainer")
    if spec.trainer and not spec.checkpoint:
        found.append("spec.checkpoint: trainer needs checkpoint.directory")
    if spec.preflight is Preflight.COMPILE and not spec.trainer:
        found.append(f"spec.preflight: {NO_PREFLIGHT}")
    found += _elastic_problems(spec) + _queue_problems(spec) + recovery.problems(spec)
    found += _template_problems(spec) + _checkpoint_problems(spec) + _health_problems(spec)
    return found


def _elastic_problems(spec: JobSpec) -> list[str]:
    found = []
    if spec.slices + spec.spares > MAX_SLICES:
        found.append(f"spec.spares: slices and spares together must not be above {MAX_SLICES}")
    if spec.elastic and spec.elastic.min_slices > spec.slices:
        found.append(
            f"spec.elastic.minSlices: {spec.elastic.min_slices} is above slices: "
            f"give 1 to {spec.slices}"
        )
    return found


def _queue_problems(spec: JobSpec) -> list[str]:
    found = []
    label = spec.queue_topology_label
    if spec.queue is not None and not re.match(QUEUE_PATTERN, spec.queue):
        found.append("spec.queue: a LocalQueue's name has lower-case letters, digits and dashes")
    if label is not None and not re.match(NODE_LABEL_PATTERN, label):
        found.append(
            "spec.queueTopologyLabel: must be a label such as cloud.google.com/gke-nodepool"
        )
    if label is not None and spec.queue is None:
        found.append("spec.queueTopologyLabel: belongs to a job in a queue: give queue, too")
    return found


def _placement_problems(spec: JobSpec, shape: SliceShape) -> list[str]:
    """Requests that contradict the slice: the operator sets these itself."""
    pod = spec.template.spec.to_json() if spec.template else {}
    containers = [spec.trainer.to_json()] if spec.trainer else pod.get("containers", [])
    wanted = {RESOURCE: str(shape.chips_per_host)}
    asked = [
        (f"{kind} of {RESOURCE}", str(amount), wanted[RESOURCE])
        for container in containers
        for kind in ("requests", "limits")  # others are Kubernetes' to judge
        for name, amount in ((container.get("resources") or {}).get(kind) or {}).items()
        if name == RESOURCE
    ]
    selector = pod.get("nodeSelector") or {}
    asked += [(f"nodeSelector {k}", selector.get(k, v), v) for k, v in shape.node_selector.items()]
    return _capacity_problems(spec, selector) + [
        f"spec: {what} is {given}, but a host of {shape.generation.name} {shape.topology} "
        f"has {right}: leave it out, the operator sets it"
        for what, given, right in asked
        if given != right
    ]


def _capacity_problems(spec: JobSpec, selector: Mapping[str, str]) -> list[str]:
    """A template that asks for other nodes than those that are bought would wait for ever."""
    if spec.provisioning is None:
        return []
    given = spec.provisioning
    ours = given.node_selector
    odd = [k for k, v in ours.items() if selector.get(k, v) != v]
    odd += [label for label in given.unwanted_labels if label in selector]
    return provisioning.problems(given, spec.accelerator) + [
        f"spec: nodeSelector {label} is {selector[label]}, but provisioning.model is "
        f"{given.model}: leave it out, the operator selects the nodes"
        for label in odd
    ]


def _template_problems(spec: JobSpec) -> list[str]:
    if not spec.template:
        return _reserved("spec.trainer", spec.trainer.to_json()) if spec.trainer else []
    pod = spec.template.spec.to_json()
    path = "spec.template.spec"
    try:
        trainer = find_trainer(pod["containers"])
    except ValueError as error:
        return [f"{path}.containers: {error}"]
    found = _reserved(path, pod)
    found += metadata_problems("spec.template", spec.template.to_json())
    if not (trainer.get("command") or spec.recovery.recreates_pods):
        found.append(
            f"{path}.containers: container {trainer['name']} trains and needs a command: the agent "
            "runs it and cannot see the entrypoint of an image"
        )
    for container in [*pod["containers"], *(pod.get("initContainers") or [])]:
        found += _reserved(f"{path}.containers.{container['name']}", container)
        if container["name"] == AGENT_CONTAINER:
            found.append(f"{path}: the container name {AGENT_CONTAINER} is the operator's")
    return found


def _reserved(path: str, given: Mapping[str, Any]) -> list[str]:
    found = [
        f"{path}.env: {variable['name']}: the prefix {RESERVED_ENV_PREFIX} is the operator's"
        for variable in given.get("env") or []
        if variable["name"].startswith(RESERVED_ENV_PREFIX)
    ]
    names = [volume["name"] for volume in given.get("volumes") or []]
    return found + [
        f"{path}.volumes: the name {name} is the operator's"
        for name in names
        if name in OWN_VOLUMES
    ]


def _checkpoint_problems(spec: JobSpec) -> list[str]:
    if not spec.checkpoint:
        return []
    found = _interval_problems(spec.checkpoint.interval)
    if not re.match(DIRECTORY_PATTERN, spec.checkpoint.directory):
        found.append("spec.checkpoint.directory: must be an absolute path or like gs://bucket/path")
    return found


def _interval_problems(interval: CheckpointInterval) -> list[str]:
    given = {IntervalPolicy.STEPS: interval.steps, IntervalPolicy.SECONDS: interval.seconds}
    return [
        f"spec.checkpoint.interval: {policy.value.lower()} belongs to policy {policy}"
        for policy, value in given.items()
        if (value is None) == (interval.policy is policy)
    ]


def _health_problems(spec: JobSpec) -> list[str]:
    low, high = STRAGGLER_RATIOS
    if not low <= spec.health.straggler.ratio <= high:
        return [f"spec.health.straggler.ratio: must be between {low} and {high}"]
    pattern = spec.health.progress_pattern
    if pattern is None:
        return []
    path = "spec.health.progressPattern"
    try:
        with warnings.catch_warnings():  # of patterns that a later Python may read otherwise
            warnings.simplefilter("ignore")
            groups = re.compile(pattern).groupindex
    # Too many repetitions or brackets are other errors than a mistake in the grammar.
    except (re.error, OverflowError, RecursionError) as error:
        return [f"{path}: not a regular expression: {error}"]
    return [] if "step" in groups else [f"{path}: needs a group named step: (?P<step>[0-9]+)"]
