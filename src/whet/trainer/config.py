"""Define the configuration of `whet train`, read from TOML, with values from the command line in its place."""

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError, model_validator

from whet.core.toml_file import problems, read_toml
from whet.errors import OptionError
from whet.measure.device_names import check_device_name
from whet.parallel.plan import ParallelPlan
from whet.trainer import sections
from whet.trainer.sections import Count, Rate, Section


class TrainConfig(Section):
    """Hold a whole configuration.

    Attributes:
        task: "language" trains a model to go on with text, "classification" to give a text one of some labels.
        out: The directory of the run.
        steps: The optimiser steps of the run.
        max_minutes: Minutes after which the run ends with the step that it is in; the schedule goes by the steps.
        seed: Decides the weights of a new model, the order of the data and dropout.
        recipe: What whet tune found: recipe.toml, or its directory.
        threads: PyTorch's threads; None for its own choice.
        device: What is trained on: "cpu", "cuda" or "cuda:1". Of several processes, each takes the GPU of its number.
    """

    task: Literal["language", "classification"] = "language"
    out: Path
    steps: Count
    max_minutes: Rate | None = None
    seed: Annotated[int, Field(ge=0, lt=2**31)] = 0
    recipe: Path | None = None
    threads: Count | None = None
    device: str = "cpu"
    model: sections.ModelSection
    data: sections.DataSection
    batch: sections.BatchSection = sections.BatchSection()
    optimizer: sections.OptimizerSection = sections.OptimizerSection()
    schedule: sections.ScheduleSection = sections.ScheduleSection()
    evaluation: sections.EvaluationSection = sections.EvaluationSection()
    checkpoints: sections.CheckpointSection = sections.CheckpointSection()
    divergence: sections.DivergenceSection = sections.DivergenceSection()
    log: sections.LogSection = sections.LogSection()
    parallel: ParallelPlan = ParallelPlan()
    distill: sections.DistillSection | None = None
    lora: sections.LoraSection | None = None
    prune: sections.PruneSection | None = None

    @model_validator(mode="after")
    def _names_device(self) -> "TrainConfig":
        try:
            check_device_name(self.device, "device")
        except OptionError as error:
            raise ValueError(str(error)) from error
        return self

    @model_validator(mode="after")
    def _warms_up(self) -> "TrainConfig":
        if self.schedule.warmup_steps >= self.steps and self.schedule.kind != "constant":
            raise ValueError(f"schedule.warmup_steps is {self.schedule.warmup_steps}, the run only {self.steps} steps")
        return self

    @model_validator(mode="after")
    def _prunes_in_time(self) -> "TrainConfig":
        if self.prune is not None and self.lora is not None:
            raise ValueError("[prune] changes the weights that an adapter of [lora] stands on; leave one of them out")
        if self.prune is None or self.prune.kind != "unstructured":
            return self
        last = self.prune.last_cut(self.steps)
        if not self.prune.begin_step <= last <= self.steps:
            raise ValueError(
                f"prune.begin_step is {self.prune.begin_step} and prune.end_step {last}; they must rise, and lie "
                f"within the {self.steps} steps of the run"
            )
        return self

    @model_validator(mode="after")
    def _fits_task(self) -> "TrainConfig":
        is_other = self.task == "language"
        given = [f"data.{key}" for key in _OF_DATA[not is_other] if key in self.data.model_fields_set]
        if not is_other:
            given += [name for name in ("distill", "lora", "prune") if getattr(self, name) is not None]
            if self.evaluation.prompt is not None:
                given.append("evaluation.prompt")
            if self.model.directory is None:
                raise ValueError(
                    "task is classification, and model.directory is missing: name a directory that transformers' "
                    "save_pretrained wrote; it gets a head for the labels of the data"
                )
        if given:
            needed = "classification" if is_other else "language"
            raise ValueError(f"{given[0]} is for task = {needed}, and task is {self.task}; leave it out")
        return self


# The keys of [data] that are for a classification, and for a language model.
_OF_DATA = (
    ("label_key", "second_text_key", "group_by_length"),
    ("pack", "separator", "dtype", "end_id", "num_workers"),
)
_PATHS = (("out",), ("recipe",), ("data", "cache"), ("model", "directory"), ("distill", "teacher"))
_LISTS = (("data", "train"), ("data", "held_out"))


def read_config(path: Path, changes: Sequence[str] = ()) -> TrainConfig:
    """Read a TOML configuration. Relative paths in the file count from the file, those of changes from here.

    Args:
        changes: Values in the place of the file's, as "optimizer.lr=1e-3".

    Raises:
        TargetError: The file cannot be read, or is no TOML.
        OptionError: A key is unknown, or a value is out of its range.
    """
    raw = read_toml(path)
    _from_file(raw, path.absolute().parent)
    for change in changes:
        _change(raw, change)
    return checked_config(raw, str(path))


def checked_config(raw: Mapping[str, Any], source: str) -> TrainConfig:
    """Return a configuration from its tables, as TOML gives them.

    Args:
        source: Where they come from, for messages.

    Raises:
        OptionError: A key is unknown, or a value is out of its range.
    """
    try:
        return TrainConfig.model_validate(raw)
    except ValidationError as error:
        raise OptionError(f"{source}: {problems(error, TrainConfig)}") from error


def _from_file(raw: dict[str, Any], directory: Path) -> None:
    """Have relative paths count from the directory of the file."""
    for *tables, key in (*_PATHS, *_LISTS):
        table = raw
        for name in tables:
            table = table.get(name, {}) if isinstance(table, dict) else {}
        value = table.get(key) if isinstance(table, dict) else None
        if isinstance(value, str):
            table[key] = str(directory / value)
        elif isinstance(value, list):
            table[key] = [str(directory / one) if isinstance(one, str) else one for one in value]
    data = raw.get("data")
    tokenizer = data.get("tokenizer") if isinstance(data, dict) else None
    if isinstance(tokenizer, str) and tokenizer not in ("characters", "bytes"):
        raw["data"]["tokenizer"] = str(directory / tokenizer)


def _change(raw: dict[str, Any], change: str) -> None:
    """Put a value of the command line into the tables."""
    key, equals, text = change.partition("=")
    names = key.strip().split(".")
    if not equals or not all(names):
        raise OptionError(f"{change!r} changes nothing: write KEY=VALUE, such as optimizer.lr=1e-3")
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text  # a string without quotes, as a shell gives it
    table = raw
    for name in names[:-1]:
        table = table.setdefault(name, {})
        if not isinstance(table, dict):
            raise OptionError(f"{change!r}: {name} is no table")
    table[names[-1]] = value
