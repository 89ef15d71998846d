"""Define the tables of the configuration of `whet train`."""

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from whet.techniques.proof.divergence import FAR, PATIENCE

Count = Annotated[int, Field(ge=1)]
Whole = Annotated[int, Field(ge=0)]
Share = Annotated[float, Field(gt=0, lt=1)]
BelowOne = Annotated[float, Field(ge=0, lt=1)]
Rate = Annotated[float, Field(gt=0, allow_inf_nan=False)]
OneOrMore = BeforeValidator(lambda value: [value] if isinstance(value, str) else value)
"""Takes a single text for a list of one."""


class Section(BaseModel):
    """Hold one table of the configuration. Keys that it does not know are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")


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

    train: Annotated[tuple[Path, ...], OneOrMore]
    held_out: Annotated[tuple[Path, ...] | None, OneOrMore] = None
    held_out_share: Share = 0.1
    tokenizer: str | None = None
    sequence_length: Annotated[int, Field(ge=2)] = 256
    pack: bool = False
    text_key: str = "text"
    separator: str | None = None
    dtype: Literal["uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64"] = "uint16"
    end_id: Whole | None = None
    cache: Path | None = None
    shuffle: bool = True
    label_key: str = "label"
    second_text_key: str | None = None
    group_by_length: bool = False
    num_workers: Annotated[int, Field(ge=0, le=256)] = 0


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
        eps: What is added to Adam's denominator.
        weight_decay: The decay of matrices. Norms and biases have none.
        max_norm: The norm that gradients are clipped to; 0 leaves them as they are.
        dropout: The share of numbers that become zero behind the embedding and the parts of blocks, while a model of
            whet's own trains.
    """

    name: Literal["adamw", "adam", "sgd"] = "adamw"
    lr: Rate = 3e-4
    betas: tuple[BelowOne, BelowOne] = (0.9, 0.95)
    eps: Rate = 1e-8
    momentum: BelowOne = 0.9
    weight_decay: Annotated[float, Field(ge=0)] = 0.1
    max_norm: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 1.0
    dropout: BelowOne = 0.0


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
    warmup_steps: Whole = 100
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


class DistillSection(Section):
    """Say from which teacher the model learns, beside the data.

    Attributes:
        teacher: The Hugging Face directory of a causal language model with the same vocabulary.
        temperature: What both models' logits are divided by for the teacher's term.
        alpha: The weight of the teacher's term; the data has the rest.
        hidden_weight: The weight of the term that holds hidden states against the teacher's; 0 for none.
        layers: The teacher's layer for layers of the model, counted from 0; None spaces them evenly.
    """

    teacher: Path
    temperature: Rate = 2.0
    alpha: Annotated[float, Field(ge=0, le=1)] = 0.5
    hidden_weight: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    layers: dict[Whole, Whole] | None = None

    @model_validator(mode="after")
    def _uses_layers(self) -> "DistillSection":
        if self.layers is not None and not (self.layers and self.hidden_weight):
            raise ValueError("layers names pairs of layers whose hidden states are compared; set hidden_weight too")
        return self


class LoraSection(Section):
    """Say that small matrices beside the model's own are trained in their place (LoRA).

    Attributes:
        alpha: Their product is multiplied by alpha / r.
        target_modules: The names of linear layers that get them; None for all linear layers of the blocks.
        merge: Whether the model that is written holds the sum. Otherwise an adapter is written, in peft's format.
    """

    r: Count = 8
    alpha: Rate = 16.0
    dropout: BelowOne = 0.0
    target_modules: Annotated[tuple[str, ...] | None, OneOrMore] = None
    merge: bool = True

    @model_validator(mode="after")
    def _has_targets(self) -> "LoraSection":
        if self.target_modules is not None and not self.target_modules:
            raise ValueError("target_modules names no layer; leave it out for all linear layers of the blocks")
        return self


class PruneSection(Section):
    """Say what is pruned.

    Attributes:
        kind: "unstructured" sets the smallest weights to zero while the model trains. "structured" cuts whole parts out
            of a trained model before the first step, so that it becomes smaller and faster.
        amount: The share that goes: of the weights, or of each part that `what` names.
        scope: For unstructured pruning: "global" for one threshold over the model, "layer" for one in each weight.
        begin_step: For unstructured pruning: the step after which weights begin to become zero.
        end_step: The step after which so many are zero; None for half of the run.
        interval: The steps between two cuts.
        what: For structured pruning, the parts: "mlp" (channels), "heads" (key-value heads with their query heads),
            "layers", "width" (the numbers that a token is in the model).
        importance: What tells which parts matter: "taylor" (gradients on the first batches) or "magnitude".
        num_batches: The batches that it is found on; None for 8.
    """

    kind: Literal["unstructured", "structured"] = "unstructured"
    amount: Share
    scope: Literal["global", "layer"] = "global"
    begin_step: Whole = 0
    end_step: Whole | None = None
    interval: Count = 10
    what: Annotated[tuple[Literal["mlp", "heads", "layers", "width"], ...], OneOrMore] = ("mlp", "heads")
    importance: Literal["taylor", "magnitude"] = "taylor"
    num_batches: Count | None = None

    @model_validator(mode="after")
    def _fits_its_kind(self) -> "PruneSection":
        others = _OF_STRUCTURED if self.kind == "unstructured" else _OF_UNSTRUCTURED
        if given := sorted(others & self.model_fields_set):
            why = (
                "cuts weights, not parts"
                if self.kind == "unstructured"
                else "cuts parts of the whole model once, before the first step"
            )
            raise ValueError(f"{given[0]} changes nothing, since {self.kind} pruning {why}; leave it out")
        if not self.what or len(set(self.what)) != len(self.what):
            raise ValueError("what must name each part once, and at least one")
        return self

    def last_cut(self, steps: int) -> int:
        """Return the step after which the last weights become zero, in a run of so many steps."""
        return max(self.begin_step, steps // 2) if self.end_step is None else self.end_step


_OF_STRUCTURED = frozenset({"what", "importance", "num_batches"})
_OF_UNSTRUCTURED = frozenset({"scope", "begin_step", "end_step", "interval"})
