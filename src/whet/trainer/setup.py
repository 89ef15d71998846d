"""Set up a run: its model, its data, its recipe, and where it goes on."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property

import torch

from whet.core.recipe import Recipe, Step
from whet.core.workload import TrainingWorkload
from whet.errors import OptionError, RecipeError, TargetError
from whet.measure.machine import describe
from whet.parallel.share import WHOLE, Share
from whet.techniques.training.accumulation import ACCUMULATION, num_parts_of
from whet.trainer.classification import ClassificationData, open_classification
from whet.trainer.config import TrainConfig
from whet.trainer.data import RunData, open_data
from whet.trainer.lora import with_lora
from whet.trainer.model import Batch, TrainedModel, add_dropout, new_model, open_model
from whet.trainer.placing import on_device
from whet.trainer.pruning import check_structured, cut_to_size
from whet.trainer.teacher import Teacher, open_teacher
from whet.trainer.tokens.file_digests import tokens_cache, weights_digest
from whet.trainer.workload import workload_of

_CPU = torch.device("cpu")
# What must not change between two starts of a run: it would be another training.
_FIXED = ("seed", "model", "batch", "optimizer")  # besides the recipe and the data
_FIXED_IF_THERE = ("distill", "lora", "prune")


@dataclass(frozen=True)
class SetUp:
    """Hold everything that a run needs before its first step.

    Attributes:
        steps: The techniques that are applied.
        notes: What people should know before it begins.
        files: Digests of other models that the run depends on, by their names in messages.
        share: Which rows of a batch this process sees.
        device: What is trained on.
    """

    config: TrainConfig
    model: TrainedModel
    data: RunData | ClassificationData
    steps: tuple[Step, ...]
    notes: tuple[str, ...] = ()
    teacher: Teacher | None = None
    files: dict[str, str] = field(default_factory=dict)
    share: Share = WHOLE
    device: torch.device = _CPU

    def workload(self, begin: int = 0) -> TrainingWorkload:
        """Return the training run whose first step is the one after `begin` steps."""
        found = workload_of(
            self.config,
            self.model,
            on_device(self.data.batches(begin, self.share), self.device),
            self.held_out,
            self.config.out.name or "training",
        )
        return found if self.teacher is None else self.teacher.distilled(found)

    @cached_property
    def held_out(self) -> list[Batch]:
        """Return the batches that are scored, the same ones each time."""
        return list(on_device(self.data.held_out(self.config.evaluation.num_rows), self.device))

    @property
    def rows_at_once(self) -> int:
        """Return the most rows that a process computes at once."""
        size = self.config.batch.global_batch_size
        return min(-(-size // int(num_parts_of(self.steps))), self.share.most(size))

    def divided(self, share: Share, device: torch.device) -> "SetUp":
        """Return the set-up of one of several processes, whose model lies on its device.

        Raises:
            OptionError: There are fewer rows in a batch than processes that share it.
        """
        share.check(self.config.batch.global_batch_size)
        if self.model.fill is None:
            self.model.module.to(device)
        if self.teacher is not None:
            self.teacher.model.module.to(device)
        return replace(self, share=share, device=device)

    @property
    def identity(self) -> dict[str, str]:
        """Return a digest of each part of the configuration that must stay as it is while a run goes on."""
        found = {name: _digest(getattr(self.config, name)) for name in _FIXED}
        lora = self.config.lora  # how it is written may change
        merged = lora and lora.model_copy(update={"merge": True})
        sections = {"distill": self.config.distill, "lora": merged, "prune": self.config.prune}
        found |= {name: _digest(section) for name, section in sections.items() if section is not None}
        recipe = _digest([step.model_dump(mode="json") for step in self.steps])
        return {**found, **self.files, "recipe": recipe, "data": self.data.digest}


def set_up(config: TrainConfig, say: Callable[[str], None], *, in_parts: bool = False) -> SetUp:
    """Open the model and the data of a configuration, and check that they fit each other.

    Args:
        in_parts: Whether what divides the model can call its `fill`, so that no process needs all weights at once.

    Raises:
        WhetError: Something does not fit, or cannot be read.
    """
    if config.threads is not None:
        torch.set_num_threads(config.threads)
    directory = config.model.directory
    if directory is not None and config.model.config:
        key = sorted(config.model.config)[0]
        raise OptionError(f"model.directory names a model, so that model.{key} changes nothing; leave one of them out")
    is_of_texts = config.task == "classification"
    model, data = open_classification(config) if is_of_texts else _language(config, say, in_parts=in_parts)
    _check(config, model, data)
    steps, notes = _techniques(config)
    if isinstance(data, RunData):
        model, pruned = cut_to_size(config, model, data)
        notes = (*notes, *pruned)
    add_dropout(model, config.optimizer.dropout)
    files: dict[str, str] = {}
    if config.lora is not None:
        if directory is None:
            raise OptionError("[lora] goes on from a trained model; name its directory as model.directory")
        model = with_lora(model, config.lora, directory, config.seed)
        files["the base model"] = weights_digest(directory, tokens_cache(config.data.cache))
    teacher = None
    if config.distill is not None:
        assert isinstance(data, RunData)
        teacher = open_teacher(config, model, data, steps)
        files["the teacher"] = teacher.digest
    return SetUp(config, model, data, steps, (*notes, *data.notes), teacher, files)


def _language(config: TrainConfig, say: Callable[[str], None], *, in_parts: bool) -> tuple[TrainedModel, RunData]:
    directory = config.model.directory
    in_parts = in_parts and config.lora is None and config.prune is None and config.distill is None
    opened = None if directory is None else open_model(directory, config.seed, in_parts=in_parts)
    check_structured(config, opened)
    data = open_data(config, directory, say)
    return opened or new_model(config.model.config, data.vocab_size, config.seed, in_parts=in_parts), data


def _check(config: TrainConfig, model: TrainedModel, data: RunData | ClassificationData) -> None:
    """Check that the model takes the rows and knows the tokens.

    Raises:
        OptionError: A row is longer than the model takes, or the model cannot keep its documents apart.
        TargetError: The data has tokens that the model does not know.
    """
    if config.data.pack and (why := model.why_unpacked(model.module)):
        raise OptionError(
            f"data.pack has documents share rows, and {why}; leave it out, so that the text is one stream"
        )
    length = config.data.sequence_length
    if model.max_tokens is not None and length > model.max_tokens:
        raise OptionError(
            f"data.sequence_length is {length}, and the model takes {model.max_tokens} tokens; give fewer, or set "
            "model.max_position_embeddings for a new model"
        )
    if data.largest_id >= model.vocab_size:
        raise TargetError(
            f"the data holds token {data.largest_id}, and the model knows the tokens 0 to {model.vocab_size - 1}; "
            "split the text with the model's own tokenizer, or set model.vocab_size for a new model"
        )
    if data.num_rows < config.batch.global_batch_size:
        raise TargetError(
            f"the training data is {data.num_rows} rows of {length} tokens, fewer than batch.global_batch_size "
            f"{config.batch.global_batch_size}; give more data, a smaller batch or a shorter data.sequence_length"
        )


def _techniques(config: TrainConfig) -> tuple[tuple[Step, ...], tuple[str, ...]]:
    """Return the techniques of the recipe, with the micro-batches of the configuration, and what should be known."""
    recipe = None if config.recipe is None else Recipe.read(config.recipe).checked_for("training")
    steps = () if recipe is None else recipe.steps
    notes: tuple[str, ...] = ()
    if recipe is not None and recipe.fingerprint not in ("", describe().fingerprint):
        notes = ("the recipe was proved on another machine: its speed here is not known",)
    number = config.batch.num_parts
    own = next((step for step in steps if step.technique == ACCUMULATION), None)
    if own is not None and config.batch.micro_batch_size is not None:
        parts = num_parts_of([own])
        if parts != number:
            raise RecipeError(
                f"the recipe computes a batch in {parts} parts, and batch.micro_batch_size asks for {number}; leave "
                "batch.micro_batch_size out"
            )
    elif number > 1:
        steps = (*steps, Step(technique=ACCUMULATION, options={"num_parts": number}))
    return steps, notes


def _digest(value: object) -> str:
    text = value.model_dump_json() if hasattr(value, "model_dump_json") else repr(value)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def check_same(known: dict[str, str], setup: SetUp) -> None:
    """Raise OptionError where a change since the run of identity `known` began would make this another training."""
    now = setup.identity
    changed = [name for name in sorted(now.keys() | known.keys()) if known.get(name) != now.get(name)]
    if not changed:
        return
    told = {"data": "the data", "recipe": "the recipe", "seed": "seed"}
    tables = (*_FIXED, *_FIXED_IF_THERE)
    names = " and ".join(told.get(name, f"[{name}]" if name in tables else name) for name in changed)
    raise OptionError(
        f"{names} changed since this run began, so that going on would be another training; take the change back, or "
        "begin a new run in another out"
    )
