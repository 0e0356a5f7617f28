"""The trainer's configuration: one frozen tree, read from JSON, checked before JAX starts."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

from tpujob_agent.preflight import programs_of
from tpujob_checkpoint.settings import Settings, is_interval
from tpujob_trainer.fields import ConfigError, Problems, build, setting, to_json
from tpujob_trainer.presets import PRESET_NAMES, PRESETS, ModelConfig

REST = -1  # a mesh axis that takes the devices the others leave


@dataclasses.dataclass(frozen=True, slots=True)
class MeshConfig:
    """Devices along each mesh axis; ``-1`` takes the rest, ``slice: 0`` what the agent says."""

    slice: int = setting(0, at_least=REST)
    fsdp: int = setting(REST, at_least=REST)
    context: int = setting(1, at_least=REST)
    tensor: int = setting(1, at_least=REST)


@dataclasses.dataclass(frozen=True, slots=True)
class DataConfig:
    """Where the text comes from, and where its packed form lives."""

    source: str = setting("stdlib")  # this Python's library, a directory of text, or packs
    directory: str = setting("data")
    max_bytes: int = setting(4_000_000, at_least=1, key="maxBytes")
    buckets: str = setting("")  # lengths of rows, such as 128,256,512; the longest: sequenceLength
    mask_documents: bool = setting(default=False, key="maskDocuments")


@dataclasses.dataclass(frozen=True, slots=True)
class OptimizerConfig:
    """AdamW: linear warm-up, then a schedule down to ``finalShare`` of the peak."""

    learning_rate: float = setting(3e-3, above=0.0, key="learningRate")
    warmup_steps: int = setting(20, at_least=0, key="warmupSteps")
    schedule: str = setting("cosine", choices=("cosine", "wsd", "constant"))
    decay_steps: int = setting(0, at_least=0, key="decaySteps")  # wsd; 0: the last fifth
    final_share: float = setting(0.1, at_least=0, key="finalShare")
    weight_decay: float = setting(0.1, at_least=0, key="weightDecay")
    clip_norm: float = setting(1.0, above=0.0, key="clipNorm")


@dataclasses.dataclass(frozen=True, slots=True)
class CheckpointConfig(Settings):
    """Where checkpoints go, how often, and how many stay."""

    directory: str = setting("")
    interval: str = setting("auto")  # steps:N | seconds:S | auto
    keep: int = setting(3, at_least=2)
    snapshot_s: float = setting(2.0, at_least=0.0, key="snapshotSeconds")  # in memory; 0: none
    keep_programs: bool = setting(default=False, key="keepPrograms")  # compiled, beside them

    @property
    def programs(self) -> str:
        """Where compiled programs are kept for pods to come; empty: nowhere.

        Only if asked for: they are code, and shared storage proves nothing about who wrote it.
        """
        if not self.keep_programs or not self.directory:
            return ""
        return programs_of(self.directory)


@dataclasses.dataclass(frozen=True, slots=True)
class ProfileConfig:
    """What JAX's profiler does."""

    port: int = setting(0, at_least=0)  # of its server; 0: none
    steps: str = setting("")  # to trace, such as 100-105
    directory: str = setting("profile")

    @property
    def first_and_last(self) -> tuple[int, int] | None:
        """The steps to trace, or None."""
        first, _, last = self.steps.partition("-")
        return (int(first), int(last or first)) if self.steps else None


@dataclasses.dataclass(frozen=True, slots=True)
class TrainerConfig:
    """Everything a training run depends on, besides the devices it finds."""

    model: ModelConfig = setting(ModelConfig())
    mesh: MeshConfig = setting(MeshConfig())
    data: DataConfig = setting(DataConfig())
    optimizer: OptimizerConfig = setting(OptimizerConfig())
    checkpoint: CheckpointConfig = setting(CheckpointConfig())
    profile: ProfileConfig = setting(ProfileConfig())
    global_batch: int = setting(16, at_least=1, key="globalBatch")
    accumulation: int = setting(1, at_least=1)  # micro batches of a step
    sequence_length: int = setting(128, at_least=2, key="sequenceLength")
    steps: int = setting(200, at_least=1)
    seed: int = setting(0, at_least=0)
    log_every_steps: int = setting(1, at_least=1, key="logEverySteps")
    max_skipped_steps: int = setting(10, at_least=0, key="maxSkippedSteps")  # in a row

    @property
    def lengths(self) -> tuple[int, ...]:
        """Lengths of rows, shortest first: those of the buckets, or the only one."""
        if not self.data.buckets:
            return (self.sequence_length,)
        return tuple(sorted({int(length) for length in self.data.buckets.split(",")}))

    @property
    def has_segments(self) -> bool:
        """Whether a step is told which document a token belongs to; rows of buckets are padded."""
        return self.data.mask_documents or bool(self.data.buckets)

    def at_length(self, length: int) -> TrainerConfig:
        """The configuration of steps on rows of a bucket: as many tokens in shorter rows."""
        rows = self.global_batch * self.sequence_length // length
        return dataclasses.replace(self, sequence_length=length, global_batch=rows)


def load(raw: Any, *, overrides: dict[str, dict[str, Any]] | None = None) -> TrainerConfig:
    """Build and check a configuration.

    Args:
        raw: decoded JSON, camelCase keys.
        overrides: values by section and key that win over ``raw`` (the environment's).

    Raises:
        ConfigError: with every problem found, each with its path and the nearest valid value.
    """
    problems = Problems()
    merged = _with_preset(_merged(raw, overrides or {}))
    config: TrainerConfig = build(TrainerConfig, merged, "", problems)
    _check_model(config.model, problems)
    _check_batch(config, problems)
    _check_buckets(config, problems)
    _check_schedule(config, problems)
    _check_mesh(config.mesh, problems)
    _check_interval(config.checkpoint.interval, problems)
    _check_directories(config, problems)
    _check_profile(config.profile, problems)
    if problems.found:
        raise ConfigError(problems.found)
    return config


def _merged(raw: Any, overrides: dict[str, dict[str, Any]]) -> Any:
    if not isinstance(raw, dict):
        return raw
    merged = dict(raw)
    for section, values in overrides.items():
        mine = merged.get(section, {})
        merged[section] = {**mine, **values} if isinstance(mine, dict) else mine
    return merged


def _with_preset(raw: Any) -> Any:
    """The configuration with its preset's values where the model does not give its own."""
    given = raw.get("model", {}) if isinstance(raw, dict) else None
    if not isinstance(given, dict):
        return raw
    name = given.get("preset", PRESET_NAMES[0])
    if not isinstance(name, str) or name not in PRESETS:
        return raw
    return {**raw, "model": {**to_json(PRESETS[name]), **given}}


def _divisors(number: int) -> list[int]:
    return [d for d in range(1, number + 1) if number % d == 0]


def _nearest_divisor(number: int, wanted: int) -> int:
    return min(_divisors(number), key=lambda d: abs(d - wanted))


def _check_model(model: ModelConfig, problems: Problems) -> None:
    if model.d_model % model.heads:
        near = _nearest_divisor(model.d_model, model.heads)
        problems.add("model.heads", f"{model.heads} does not divide dModel {model.d_model}", near)
    elif model.d_head % 2:
        near = model.d_model // (model.d_head + 1) or 1
        problems.add(
            "model.heads",
            f"dModel/heads is {model.d_head}, but rotary embedding needs an even head",
            near if model.d_model % near == 0 and model.d_model // near % 2 == 0 else None,
        )
    if model.heads % model.kv_heads:
        near = _nearest_divisor(model.heads, model.kv_heads)
        problems.add("model.kvHeads", f"{model.kv_heads} does not divide heads {model.heads}", near)


def _check_batch(config: TrainerConfig, problems: Problems) -> None:
    if config.global_batch % config.accumulation:
        near = _nearest_divisor(config.global_batch, config.accumulation)
        fault = f"{config.accumulation} does not divide globalBatch {config.global_batch}"
        problems.add("accumulation", fault, near)
    chunk = config.model.loss_chunk
    if chunk and config.sequence_length % chunk:
        near = _nearest_divisor(config.sequence_length, chunk)
        fault = f"{chunk} does not divide sequenceLength {config.sequence_length}"
        problems.add("model.lossChunk", fault, near)


def _check_buckets(config: TrainerConfig, problems: Problems) -> None:
    text, longest = config.data.buckets, config.sequence_length
    if not text:
        return
    if not all(part.isdecimal() and int(part) >= 2 for part in text.split(",")):
        problems.add("data.buckets", f"{text!r} is no list of lengths from 2 on", longest)
        return
    if max(config.lengths) != longest:
        fault = f"the longest of {text} is not sequenceLength {longest}"
        problems.add("data.buckets", fault, f"{text},{longest}")
    for length in config.lengths:
        if length < longest and longest % length:
            near = _nearest_divisor(longest, length)
            fault = f"{length} does not divide sequenceLength {longest}"
            problems.add("data.buckets", fault, near)


def _check_schedule(config: TrainerConfig, problems: Problems) -> None:
    optimizer = config.optimizer
    if optimizer.final_share > 1:
        problems.add("optimizer.finalShare", f"{optimizer.final_share} is above 1", 1)
    if optimizer.schedule == "wsd" and optimizer.decay_steps > config.steps:
        fault = f"{optimizer.decay_steps} is more than all {config.steps} steps"
        problems.add("optimizer.decaySteps", fault, config.steps)


def _check_mesh(mesh: MeshConfig, problems: Problems) -> None:
    sizes = to_json(mesh)
    for name, size in sizes.items():
        if size == 0 and name != "slice":
            problems.add(f"mesh.{name}", "0 is no number of devices", 1)
    rest = [name for name, size in sizes.items() if size == REST]
    for name in rest[1:]:
        problems.add(f"mesh.{name}", f"only one axis can take the rest, and {rest[0]} does", 1)


def _check_interval(interval: str, problems: Problems) -> None:
    if is_interval(interval):
        return
    kind = interval.partition(":")[0]
    nearest = {"steps": "steps:50", "step": "steps:50"}.get(kind, "seconds:60")
    problems.add(
        "checkpoint.interval", f"{interval!r} is none of steps:N, seconds:S and auto", nearest
    )


def _check_directories(config: TrainerConfig, problems: Problems) -> None:
    if not config.checkpoint.directory:
        problems.add("checkpoint.directory", "is missing: say where checkpoints go", None)
    elif not re.match(r"(gs|s3)://[^/]|(?!.*://)", config.checkpoint.directory):
        problems.add(
            "checkpoint.directory", "is no path, gs://bucket/path or s3://bucket/path", None
        )
    if not config.data.directory:
        problems.add("data.directory", "is missing: say where packed text lives", None)


def _check_profile(profile: ProfileConfig, problems: Problems) -> None:
    if profile.port > 65_535:
        problems.add("profile.port", f"{profile.port} is no TCP port", 65_535)
    first, _, last = profile.steps.partition("-")
    is_range = first.isdecimal() and (last or first).isdecimal()
    if profile.steps and not (is_range and 1 <= int(first) <= int(last or first)):
        problems.add("profile.steps", f"{profile.steps!r} is no range of steps", "100-105")
    if not profile.directory:
        problems.add("profile.directory", "is missing: say where traces go", "profile")
