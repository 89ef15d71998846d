"""Open the teacher of a run: the [distill] table of `whet train`."""

from dataclasses import dataclass
from typing import Any

from torch import nn

from whet.core.recipe import Step
from whet.core.tokenizer_files.reading import FILE as TOKENIZER
from whet.core.workload import TrainingWorkload
from whet.core.workload.blocks import blocks_of
from whet.errors import OptionError, RecipeError
from whet.models.config_file import FILE
from whet.techniques.mechanisms.distillation import HiddenStates, distilled, even_layers
from whet.trainer.config import TrainConfig
from whet.trainer.data import RunData
from whet.trainer.model import TrainedModel, open_model
from whet.trainer.sections import DistillSection
from whet.trainer.tokens.file_digests import tokens_cache, weights_digest
from whet.trainer.tokens.tokenizer import load_tokenizer

_HIDES_LAYERS = ("compile", "activation_budget")  # techniques after which the layers' outputs are not seen


@dataclass(frozen=True)
class Teacher:
    """Hold the teacher of a run. `hidden` says which hidden states are held against each other; None for none."""

    model: TrainedModel
    section: DistillSection
    hidden: HiddenStates | None
    digest: str

    def distilled(self, workload: TrainingWorkload) -> TrainingWorkload:
        return distilled(
            workload,
            self.model.module,
            self.section.temperature,
            self.section.alpha,
            teacher_loss=self.model.loss,
            hidden=self.hidden,
        )


def open_teacher(config: TrainConfig, student: TrainedModel, data: RunData, steps: tuple[Step, ...]) -> Teacher:
    """Open the teacher of a configuration with a [distill] table, and give the student the maps to its widths.

    Raises:
        OptionError: The teacher does not fit the model or the data.
        TargetError: It cannot be opened.
        RecipeError: The recipe hides the layers whose states are to be seen.
    """
    section = config.distill
    assert section is not None
    if not (section.teacher / FILE).is_file():
        raise OptionError(
            f"distill.teacher {section.teacher} has no {FILE}; name what save_pretrained or whet train wrote"
        )
    model = open_model(section.teacher, config.seed)
    if model.vocab_size != student.vocab_size:
        raise OptionError(
            f"the teacher knows {model.vocab_size} tokens, and the model {student.vocab_size}; distillation needs one "
            "vocabulary: take the teacher's tokenizer for the data, and its vocab_size for a new model"
        )
    length = config.data.sequence_length
    if model.max_tokens is not None and length > model.max_tokens:
        raise OptionError(
            f"data.sequence_length is {length}, and the teacher takes {model.max_tokens} tokens; give fewer"
        )
    _check_tokenizers(section, data)
    return Teacher(
        model=model,
        section=section,
        hidden=_hidden(config, student.module, model.module, steps),
        digest=weights_digest(section.teacher, tokens_cache(config.data.cache)),
    )


def _check_tokenizers(section: DistillSection, data: RunData) -> None:
    """Check that a token means the same text to both models, where both tokenizers are at hand."""
    if data.tokenizer is None or not (section.teacher / TOKENIZER).is_file():
        return
    ours: dict[str, int] = data.tokenizer.tokenizer.get_vocab(with_added_tokens=True)
    theirs: dict[str, int] = load_tokenizer(section.teacher).tokenizer.get_vocab(with_added_tokens=True)
    if different := sorted(ours.items() ^ theirs.items(), key=lambda one: one[1]):
        text, number = different[0]
        raise OptionError(
            f"token {number} is {text!r} to only one of the teacher's tokenizer and the data's, as are "
            f"{len(different) - 1} others; split the text with the teacher's: data.tokenizer = {str(section.teacher)!r}"
        )


def _hidden(
    config: TrainConfig, student: nn.Module, teacher: nn.Module, steps: tuple[Step, ...]
) -> HiddenStates | None:
    """Return which hidden states are held against each other, and add the maps to the student."""
    section = config.distill
    assert section is not None
    if not section.hidden_weight:
        return None
    hiding = next((step.technique for step in steps if step.technique in _HIDES_LAYERS), None)
    if hiding is not None:
        raise RecipeError(
            f"{hiding} hides the outputs of layers, which distill.hidden_weight compares; leave it out of the recipe, "
            "or set hidden_weight to 0"
        )
    numbers = len(blocks_of(student)), len(blocks_of(teacher))
    if not all(numbers):
        raise OptionError(
            "distill.hidden_weight compares layers, and whet finds none in one of the models; set it to 0"
        )
    layers = section.layers or even_layers(*numbers)
    for pair in layers.items():
        if any(layer >= number for layer, number in zip(pair, numbers, strict=True)):
            raise OptionError(
                f"distill.layers pairs layer {pair[0]} with the teacher's layer {pair[1]}; the model has {numbers[0]} "
                f"layers and the teacher {numbers[1]}, counted from 0"
            )
    hidden = HiddenStates(dict(sorted(layers.items())), section.hidden_weight)
    hidden.add_maps(student, (_width(student), _width(teacher)), config.seed)
    return hidden


def _width(model: Any) -> int:
    """Return the width of a model's hidden states."""
    config = model.config
    return int((config.get_text_config() if hasattr(config, "get_text_config") else config).hidden_size)
