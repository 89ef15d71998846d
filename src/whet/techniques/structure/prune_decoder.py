"""Cut heads, MLP channels, layers or width out of a decoder, and train the smaller one further.

What            `what` goes, the parts that matter least first, until `keep` of the operations stay: "mlp+heads"
                (channels, and key-value heads with their query heads), "layers", or "width". The decoder is then
                fine-tuned for `steps` steps of the training that goes with it, with the original as its teacher.
When it helps   Decoders that are larger than their task needs; the result is smaller on disk too. Fewer key-value
                heads also mean a smaller cache for serving.
When it hurts   Decoders that need all of their parts lose quality. The trial takes as long as the fine-tuning.
Numerics        Another decoder: the quality that the workload measures decides, within --max-drop.
Composes        Alone in its group (pruning); before every other technique. Needs a training (--training). Fine-tuned
                weights are kept for later trials of the same search.
Source          Ma et al., 2023, LLM-Pruner (arXiv:2305.11627); Men et al., 2024, ShortGPT (arXiv:2403.03853);
                Muralidharan et al., 2024, Minitron (arXiv:2407.14679).
"""

from dataclasses import dataclass

from torch import nn

from whet.core.workload import ExaminedWorkload, TrainingWorkload
from whet.errors import OptionError
from whet.measure.machine import Machine
from whet.techniques import pruned
from whet.techniques.mechanisms.pruning import decoders
from whet.techniques.mechanisms.pruning.importance import cut_to_share, decoder_scores
from whet.techniques.technique import Applicability, Applies, Candidate, NotApplicable, Stage, Technique
from whet.ui.figures import percent

NAME = "prune_decoder"
_WHAT = ("mlp+heads", "layers", "width")


@dataclass(frozen=True, kw_only=True)
class Options:
    """Hold the options of prune_decoder.

    Attributes:
        keep: The share of the operations that may stay.
        what: The parts that go: "mlp+heads", "layers" or "width".
        importance: What tells which heads and channels matter: "taylor" (gradients on training batches) or "magnitude".
        steps: The optimiser steps of the fine-tuning.
        rate: Its highest learning rate over that of the training's optimiser.
        distil: The weight of the original's outputs in the loss of the fine-tuning, from 0 to 1.
    """

    keep: float = 0.5
    what: str = "mlp+heads"
    importance: str = "taylor"
    steps: int = 300
    rate: float = 3.0
    distil: float = 0.9


def check(examined: ExaminedWorkload, machine: Machine, options: Options) -> Applicability:
    _check_options(options)
    if why := decoders.refusal(examined.workload.model) or pruned.refusal(examined):
        return NotApplicable(why)
    return Applies(f"{percent(options.keep, decimals=0)} of the operations stay; {options.steps} steps of fine-tuning")


def _check_options(options: Options) -> None:
    pruned.check_options(options)
    if options.what not in _WHAT:
        raise OptionError(f"what must be one of {', '.join(_WHAT)}, not {options.what!r}")


def apply(candidate: Candidate, options: Options) -> Candidate:
    """Return the candidate with the smaller decoder, fine-tuned.

    Raises:
        TargetError: The model cannot be cut so far, or no training goes with it.
    """
    _check_options(options)
    call = pruned.call_of(candidate.examined)

    def cut(model: nn.Module, training: TrainingWorkload) -> nn.Module:
        scores = decoder_scores(model, training, importance=options.importance)  # type: ignore[arg-type]
        return cut_to_share(model, scores, options.what.split("+"), call, options.keep)

    return pruned.pruned(candidate, NAME, options, cut)


TECHNIQUE = Technique(
    name=NAME,
    stage=Stage.STRUCTURE,
    order=2,
    card=__doc__,
    options=Options,
    check=check,
    predict=pruned.predict,
    apply=apply,
    space={
        "keep": (0.5, 0.7),
        "what": _WHAT,
        "importance": ("taylor", "magnitude"),
        "steps": (300, 900),
        "rate": (3.0, 1.0),
    },
    groups=frozenset({pruned.PRUNING}),
    work_scale_of=pruned.work_scale_of,
)
