"""Define the configuration of `whet train`, read from TOML, with values from the command line in its place."""

import difflib
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from whet.errors import OptionError
from whet.techniques.proof.divergence import FAR, PATIENCE
from whet.trainer.fine_tuning import DistillSection, LoraSection
from whet.trainer.prune_section import PruneSection
from whet.trainer.section import Count, Rate, Section, Share
from whet.trainer.toml_file import read_toml


class ModelSection(BaseModel):
    """Say what is trained: a directory of Hugging Face to go on from, or the config.json of a new model.

    Attributes:
        directory: The directory; None for a new model, whose config.json consists of all other keys.
    """

    model_config = ConfigDict(frozen=True, extra="allow")

    directory: Path | None = None

    @property
    def config(self) -> dict[str, Any]:
        """Return the keys of the new model's config.json."""
        return dict(self.model_extra or {})


class DataSection(Section):
    """Say what the model learns from.

    Attributes:
        train: The files: text (.txt), JSON lines (.jsonl), or tokens (.npy, .bin).
        held_out: Files of the same kinds that are scored and not learnt; None takes a part of the training data.
        held_out_share: The part of the training data, from its end, that is held out where there are no such files.
        tokenizer: "characters", "bytes", a tokenizer.json, or a directory that holds one. None takes the model's own.
        sequence_length: The tokens of a row.
        pack: Whether documents share rows, each attending to itself alone. Otherwise the text is one long stream, which
            is cut into rows.
        text_key: The key of the text in JSON lines.
        separator: What divides a text file into documents; None for one document a file.
        dtype: The integers of .bin files.
        end_id: The token that ends a document in files of tokens.
        cache: The directory of what was split into tokens; None for whet's own.
        shuffle: Whether each epoch has an order of its own.
        label_key: The key of the label in JSON lines, for a classification.
        second_text_key: The key of the second text of a pair, for a classification; None where there are no pairs.
        group_by_length: Whether texts of similar length share a batch, for a classification.
        num_workers: The processes that read batches ahead; 0 for none. The batches are the same.
    """

    train: tuple[Path, ...]
    held_out: tuple[Path, ...] | None = None
    held_out_share: Share = 0.1
    tokenizer: str | None = None
    sequence_length: Annotated[int, Field(ge=2)] = 256
    pack: bool = False
    text_key: str = "text"
    separator: str | None = None
    dtype: Literal["uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64"] = "uint16"
    end_id: Annotated[int, Field(ge=0)] | None = None
    cache: Path | None = None
    shuffle: bool = True
    label_key: str = "label"
    second_text_key: str | None = None
    group_by_length: bool = False
    num_workers: Annotated[int, Field(ge=0, le=256)] = 0

    @model_validator(mode="before")
    @classmethod
    def _as_lists(cls, data: Any) -> Any:
        """Take a single file for a list of one."""
        if not isinstance(data, dict):
            return data
        return {k: [v] if k in ("train", "held_out") and isinstance(v, str) else v for k, v in data.items()}


class BatchSection(Section):
    """Say how many rows an optimiser step sees, and how many of them are in memory at once.

    Attributes:
        micro_batch_size: The rows that are computed at once; None for all of them.
    """

    global_batch_size: Count = 32
    micro_batch_size: Count | None = None

    @model_validator(mode="after")
    def _divides(self) -> "BatchSection":
        if self.micro_batch_size is not None and self.global_batch_size % self.micro_batch_size:
            raise ValueError(
                f"global_batch_size {self.global_batch_size} is no multiple of micro_batch_size "
                f"{self.micro_batch_size}; an optimiser step sums whole micro-batches"
            )
        return self

    @property
    def num_parts(self) -> int:
        """Return the micro-batches of an optimiser step."""
        return self.global_batch_size // (self.micro_batch_size or self.global_batch_size)


class OptimizerSection(Section):
    """Say how the parameters are updated.

    Attributes:
        lr: The highest learning rate.
        betas: The decays of Adam's moments.
        eps: What is added to Adam's denominator.
        momentum: The momentum of SGD.
        weight_decay: The decay of matrices. Norms and biases have none.
        max_norm: The norm that gradients are clipped to; 0 leaves them as they are.
        dropout: The share of numbers that become zero behind the embedding and the parts of blocks, while a model of
            whet's own trains.
    """

    name: Literal["adamw", "adam", "sgd"] = "adamw"
    lr: Rate = 3e-4
    betas: tuple[Annotated[float, Field(ge=0, lt=1)], Annotated[float, Field(ge=0, lt=1)]] = (0.9, 0.95)
    eps: Rate = 1e-8
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.9
    weight_decay: Annotated[float, Field(ge=0)] = 0.1
    max_norm: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 1.0
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0


class ScheduleSection(Section):
    """Say how the learning rate goes.

    Attributes:
        kind: "constant", "linear" or "cosine" from the highest rate to the lowest, or "wsd": constant, then linear over
            the last steps (warm-up, stable, decay).
        warmup_steps: The steps in which it rises from 0.
        min_lr_ratio: The lowest rate over the highest.
        decay_share: The part of all steps in which "wsd" falls.
    """

    kind: Literal["constant", "linear", "cosine", "wsd"] = "cosine"
    warmup_steps: Annotated[int, Field(ge=0)] = 100
    min_lr_ratio: Annotated[float, Field(ge=0, le=1)] = 0.1
    decay_share: Share = 0.2


class EvaluationSection(Section):
    """Say when held-out data is scored.

    Attributes:
        eval_interval: The steps between two scores.
        num_rows: The most rows that are scored.
        prompt: A text that the model goes on with after each score; None for no samples.
        num_sampled: The tokens of a sample.
    """

    eval_interval: Count = 200
    num_rows: Count = 256
    prompt: str | None = None
    num_sampled: Count = 100
    temperature: Annotated[float, Field(ge=0)] = 0.8


class CheckpointSection(Section):
    """Say when checkpoints are written, and how many are kept.

    Attributes:
        save_interval: The steps between two of them.
        keep: How many of the newest are kept.
        keep_every: Checkpoints of so many steps are kept for good; None for none.
    """

    save_interval: Count = 200
    keep: Count = 3
    keep_every: Count | None = None


class DivergenceSection(Section):
    """Say when losses end the run. One that is NaN or infinite always does.

    Attributes:
        factor: Losses this many times as large as the largest of the first 20 steps are far; 0 turns this off.
        patience: The far losses in a row that end the run.
    """

    factor: Annotated[float, Field(ge=0, allow_inf_nan=False)] = FAR
    patience: Count = PATIENCE

    @model_validator(mode="after")
    def _is_above_the_first(self) -> "DivergenceSection":
        if 0 < self.factor <= 1:
            raise ValueError(f"factor is {self.factor:g}, and ordinary losses reach 1; give more, or 0 to turn it off")
        return self


class LogSection(Section):
    """Say where the figures go.

    Attributes:
        log_interval: The steps between two lines.
        port: The port of the live page and of /metrics; 0 for any free one, None for no page.
    """

    log_interval: Count = 10
    tensorboard: bool = False
    port: Annotated[int, Field(ge=0, le=65535)] | None = None


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
    """

    task: Literal["language", "classification"] = "language"
    out: Path
    steps: Count
    max_minutes: Rate | None = None
    seed: Annotated[int, Field(ge=0, lt=2**31)] = 0
    recipe: Path | None = None
    threads: Count | None = None
    model: ModelSection
    data: DataSection
    batch: BatchSection = BatchSection()
    optimizer: OptimizerSection = OptimizerSection()
    schedule: ScheduleSection = ScheduleSection()
    evaluation: EvaluationSection = EvaluationSection()
    checkpoints: CheckpointSection = CheckpointSection()
    divergence: DivergenceSection = DivergenceSection()
    log: LogSection = LogSection()
    distill: DistillSection | None = None
    lora: LoraSection | None = None
    prune: PruneSection | None = None

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
    """Read a configuration. Relative paths in the file count from the file, those of changes from here.

    Args:
        path: A TOML file.
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
    """Return a configuration from its tables.

    Args:
        raw: The tables, as TOML gives them.
        source: Where they come from, for messages.

    Raises:
        OptionError: A key is unknown, or a value is out of its range.
    """
    try:
        return TrainConfig.model_validate(raw)
    except ValidationError as error:
        raise OptionError(f"{source}: {'; '.join(_said(one) for one in error.errors()[:5])}") from error


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


def _said(error: Any) -> str:
    """Return what is wrong with one value, in a sentence, with the key that was probably meant."""
    names = [str(name) for name in error["loc"]]
    key = ".".join(names)
    if error["type"] == "extra_forbidden":
        near = difflib.get_close_matches(names[-1], _keys_of(names[:-1]), n=1, cutoff=0.5)
        return f"there is no key {key}{f'; did you mean {near[0]}?' if near else ''}"
    if error["type"] == "missing":
        return f"the key {key} is missing"
    said = error["msg"].removeprefix("Value error, ")
    return f"{key}: {said}" if key else said


def _keys_of(names: Sequence[str]) -> list[str]:
    """Return the keys of a table."""
    kind: Any = TrainConfig
    for name in names:
        field = kind.model_fields.get(name)
        kinds = [] if field is None else [field.annotation, *get_args(field.annotation)]
        kind = next((one for one in kinds if isinstance(one, type) and issubclass(one, BaseModel)), None)
        if kind is None:
            return []
    return list(kind.model_fields)
