"""Describe every technique: its card, its options, what was measured of it, and whether it can run on this machine.

`whet techniques` and the pages of the documentation show what this file returns.
"""

import dataclasses
import inspect
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from whet.core.workload import ExaminedWorkload, InferenceWorkload, TrainingWorkload, examine
from whet.measure.machine import describe
from whet.models.decoder.config import DecoderConfig
from whet.models.decoder.fresh import fresh_decoder
from whet.techniques import TABLE
from whet.techniques.applicability import options_that_apply
from whet.techniques.names import check_technique
from whet.techniques.technique import AnyTechnique, Technique
from whet.techniques.training import TRAINING_TABLE
from whet.techniques.training_catalogue import loops_of, runs_here
from whet.techniques.training_technique import TrainingTechnique
from whet.ui.card_sections import read_sections

MEASURED = Path(__file__).with_name("measured.json")  # written by benchmarks/results.py
_NUM_LINEAR = 16  # with fewer, keep_precision could not leave 16 layers in floating point and still quantise one
_ATTRIBUTE = re.compile(r"^    (?P<name>\w+): (?P<text>.*(?:\n {8,}.*)*)", re.MULTILINE)


@dataclass(frozen=True)
class OptionCard:
    """Describe one option of a technique.

    Attributes:
        default: Its value where a recipe names none.
        tried: The values that `whet tune` tries, the first one first; empty where it never changes the option.
        text: What the option does; "" where the technique's remarks say it.
    """

    name: str
    default: Any
    tried: tuple[Any, ...] = ()
    text: str = ""


@dataclass(frozen=True)
class MeasuredRow:
    """Describe one measured recipe that contains a technique.

    Attributes:
        recipe: The recipe, with its options.
        is_alone: Whether the recipe contains this technique only.
        speedup: The original's time over the recipe's time.
        ci95: The 95% interval of the speedup; None where it was measured in the screening only.
        quality: What became of the model's quality, in words.
    """

    model: str
    recipe: str
    is_alone: bool
    speedup: float
    ci95: tuple[float, float] | None
    quality: str
    chip: str
    fingerprint: str
    command: str


@dataclass(frozen=True)
class TechniqueCard:
    """Describe one technique, independent of the machine.

    Attributes:
        title: One sentence about it.
        sections: "What", "When it helps", "When it hurts", "Numerics", "Composes" and "Source".
        remarks: What is said about its options together.
        measured: Every published measurement of a recipe that contains it; those of training are in the results.
        loops: For a technique of training, what loops may do beside it, each with why not; "" where they may.
    """

    name: str
    stage: str
    title: str
    sections: dict[str, str]
    options: tuple[OptionCard, ...]
    remarks: str
    measured: tuple[MeasuredRow, ...]
    loops: dict[str, str] = dataclasses.field(default_factory=dict, kw_only=True)


@dataclass(frozen=True)
class TechniqueHere(TechniqueCard):
    """Describe one technique on this machine.

    Whether it applies to a model of yours depends on the model too: `whet tune` and `whet profile` say so.

    Attributes:
        can_run: Whether it can run on this machine at all.
        reason: Why it cannot run; "" where it can.
        refused: The values of its options that cannot be used on this machine.
    """

    can_run: bool
    reason: str
    refused: dict[str, tuple[Any, ...]]

    def __repr__(self) -> str:
        can = "can run here" if self.can_run else f"cannot run here: {self.reason}"
        return f"TechniqueHere({self.name!r}, {self.stage}, {can})"


def list_techniques(*, training: bool = False) -> list[TechniqueHere]:
    """Return every technique in the order in which recipes apply them, and whether it can run on this machine.

    Each technique is asked about a small model that has a layer for every technique.

    Args:
        training: Whether to return those for training in place of those for inference.
    """
    return [_here(technique) for technique in _table(training=training).values()]


def describe_technique(name: str, *, training: bool = False) -> TechniqueHere:
    """Return one technique, and whether it can run on this machine.

    Args:
        training: Whether that for training is meant, where inference has a technique of this name too.

    Raises:
        OptionError: There is no technique of that name. The message names the nearest ones.
    """
    check_technique(name)
    first, other = (_table(training=kind) for kind in (training, not training))
    return _here(first[name] if name in first else other[name])


def _table(*, training: bool) -> Mapping[str, AnyTechnique]:
    return TRAINING_TABLE if training else TABLE


def technique_cards(*, training: bool = False) -> list[TechniqueCard]:
    """Return what list_techniques does, without a look at the machine."""
    return [_card(technique) for technique in _table(training=training).values()]


def _card(technique: AnyTechnique) -> TechniqueCard:
    title, sections = read_sections(inspect.cleandoc(technique.card or ""))
    texts, remarks = _option_texts(technique.options)
    options = tuple(
        OptionCard(field.name, field.default, technique.space.get(field.name, ()), texts.get(field.name, ""))
        for field in dataclasses.fields(technique.options)
    )
    is_training = isinstance(technique, TrainingTechnique)
    rows = tuple(row for name, row in _measured_rows() if name == technique.name and not is_training)
    loops = loops_of(technique) if isinstance(technique, TrainingTechnique) else {}
    return TechniqueCard(technique.name, technique.stage.value, title, sections, options, remarks, rows, loops=loops)


def _option_texts(options: type[Any]) -> tuple[dict[str, str], str]:
    """Return what the docstring of a technique's options says of each option, and of all of them after its summary."""
    if not dataclasses.fields(options):
        return {}, ""
    rest, _, attributes = inspect.cleandoc(options.__doc__ or "").partition("Attributes:\n")
    texts = {found["name"]: " ".join(found["text"].split()) for found in _ATTRIBUTE.finditer(attributes)}
    _, _, remarks = rest.strip().partition(". ")
    return texts, remarks if texts else rest.strip()


@cache
def _measured_rows() -> tuple[tuple[str, MeasuredRow], ...]:
    """Return every published measurement with the name of a technique that its recipe contains."""
    rows = json.loads(MEASURED.read_text(encoding="utf-8"))
    return tuple(
        (name, MeasuredRow(**fields, is_alone=len(names) == 1, ci95=None if ci95 is None else tuple(ci95)))
        for names, ci95, fields in ((row.pop("techniques"), row.pop("ci95"), row) for row in rows)
        for name in names
    )


def _here(technique: AnyTechnique) -> TechniqueHere:
    options, reason = runs_here(technique) if isinstance(technique, TrainingTechnique) else _accepted(technique)
    refused = {
        name: tuple(value for value in values if value not in (options or {}).get(name, ()))
        for name, values in technique.space.items()
    }
    card = {field.name: getattr(_card(technique), field.name) for field in dataclasses.fields(TechniqueCard)}
    return TechniqueHere(
        **card,
        can_run=options is not None,
        reason=reason if options is None else "",
        refused={} if options is None else {name: values for name, values in refused.items() if values},
    )


def _accepted(technique: AnyTechnique) -> tuple[dict[str, list[Any]] | None, str]:
    """Return the values of each option that a technique for inference accepts here, or None and why it accepts none."""
    has_graph = not (isinstance(technique, Technique) and technique.in_process)
    options, _, reason = options_that_apply(technique, _sample(has_graph=has_graph), describe())
    if options is not None:
        return options, reason
    as_decoder, _, other = options_that_apply(technique, _decoder_sample(), describe())
    return as_decoder, reason if as_decoder is None else other


@cache
def _sample(*, has_graph: bool) -> ExaminedWorkload:
    """Return a small model that has a layer for every technique; `has_graph` says whether torch.export takes it."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = _Sample(has_graph).eval()
        x = torch.randn(2, 32, 4, 4)
        workload = InferenceWorkload(model=model, inputs=[x], name="sample", training=_training_of(model, x))
    return examine(workload, with_quality=False, with_effects=False)


@cache
def _decoder_sample() -> ExaminedWorkload:
    """Return a small decoder, for the techniques that take nothing else."""
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = DecoderConfig.model_validate({"vocab_size": 32, **sizes})
    model = fresh_decoder(config, torch.Generator().manual_seed(0)).eval()
    ids = torch.arange(8)[None]
    workload = InferenceWorkload(model=model, inputs=[ids], name="decoder", training=_training_of(model, ids))
    return examine(workload, with_quality=False, with_effects=False)


def _training_of(model: nn.Module, inputs: Tensor) -> TrainingWorkload:
    """Return a training of a sample, which nobody runs."""
    return TrainingWorkload(
        model=model, loss=lambda module, x: module(x).square().mean(), optimizer=torch.optim.SGD, batches=[inputs]
    )


class _Sample(nn.Module):
    """Compute a convolution with a batch norm, attention written out by hand, and linear layers.

    Without `has_graph`, forward uses NumPy, which torch.export cannot trace.
    """

    def __init__(self, has_graph: bool) -> None:
        super().__init__()
        self.has_graph = has_graph
        self.convolution = nn.Conv2d(32, 32, 3, padding=1)
        self.norm = nn.BatchNorm2d(32)
        self.query, self.key, self.value = (nn.Linear(32, 32) for _ in range(3))
        self.output = nn.Sequential(*(nn.Linear(32, 32) for _ in range(_NUM_LINEAR)))

    def forward(self, x_NCHW: Tensor) -> Tensor:
        """Turn [N, 32, 4, 4] into [N, 16, 32]."""
        x_NTC = self.norm(self.convolution(x_NCHW)).flatten(2).transpose(1, 2)
        if not self.has_graph:
            x_NTC = torch.from_numpy(-x_NTC.numpy())
        query, key, value = self.query(x_NTC), self.key(x_NTC), self.value(x_NTC)
        scores = (query @ key.transpose(-2, -1) * 32**-0.5).softmax(-1)
        return self.output(scores @ value)  # type: ignore[no-any-return]


def by_stage(techniques: Iterable[TechniqueHere]) -> dict[str, list[TechniqueHere]]:
    stages: dict[str, list[TechniqueHere]] = {}
    for technique in techniques:
        stages.setdefault(technique.stage, []).append(technique)
    return stages
