"""Cut the channels that matter least out of a network, and train the smaller one further.

What            Channels go from convolutions and linear layers, with all that depends on them: norms, the next layer,
                and what a residual connection adds. `keep` of the operations stay. The network is then fine-tuned for
                `steps` steps of the training that goes with the model, with the original as its teacher (`distil`).
When it helps   Convolution networks that are larger than their task needs; the result is smaller on disk too.
When it hurts   Networks that need all of their channels lose quality. The trial takes as long as the fine-tuning.
Numerics        Another network: the quality that the workload measures decides, within --max-drop.
Composes        Alone in its group (pruning); before every other technique. Needs a training (--training) and the
                extra `compress`. Fine-tuned weights are kept for later trials of the same search.
Source          Fang et al., 2023, DepGraph (arXiv:2301.12900); Molchanov et al., 2019 (arXiv:1906.10771).
"""

from dataclasses import dataclass
from importlib.util import find_spec

from torch import nn

from whet.core.workload import ExaminedWorkload, TrainingWorkload
from whet.errors import TargetError, how_to_install
from whet.measure.machine import Machine
from whet.techniques import pruned
from whet.techniques.mechanisms.pruning import decoders
from whet.techniques.mechanisms.pruning.channels import with_fewer_channels, with_share_of_work
from whet.techniques.mechanisms.pruning.importance import first_batches, gradients
from whet.techniques.technique import Applicability, Applies, Candidate, NotApplicable, Stage, Technique
from whet.ui.figures import percent

NAME = "prune_channels"
_TRIED = 0.5  # the share of channels that the check cuts


@dataclass(frozen=True, kw_only=True)
class Options:
    """Hold the options of prune_channels.

    Attributes:
        keep: The share of the operations that may stay.
        importance: What tells which channels matter: "taylor" (gradients on a training batch) or "magnitude".
        steps: The optimiser steps of the fine-tuning.
        rate: Its highest learning rate over that of the training's optimiser.
        distil: The weight of the original's outputs in the loss of the fine-tuning, from 0 to 1.
    """

    keep: float = 0.5
    importance: str = "taylor"
    steps: int = 100
    rate: float = 1.0
    distil: float = 0.9


def check(examined: ExaminedWorkload, machine: Machine, options: Options) -> Applicability:
    """Check that a training goes with the model, and that it works with fewer channels."""
    pruned.check_options(options)
    if why := pruned.refusal(examined):
        return NotApplicable(why)
    if find_spec("torch_pruning") is None:
        return NotApplicable(f"torch-pruning is not installed: {how_to_install('compress')}")
    model = examined.workload.model
    if not decoders.refusal(model):
        return NotApplicable("the model is a decoder, whose heads prune_decoder cuts whole")
    if why := pruned.once_for(model, NAME, lambda: _refusal(examined)):
        return NotApplicable(why)
    return Applies(f"{percent(options.keep, decimals=0)} of the operations stay; {options.steps} steps of fine-tuning")


def _refusal(examined: ExaminedWorkload) -> str:
    try:
        with_fewer_channels(examined.workload.model, pruned.call_of(examined), _TRIED)
    except TargetError as error:
        return str(error)
    return ""


def apply(candidate: Candidate, options: Options) -> Candidate:
    """Return the candidate with the smaller network, fine-tuned.

    Raises:
        TargetError: The model cannot be cut so far, or no training goes with it.
    """
    pruned.check_options(options)
    call = pruned.call_of(candidate.examined)

    def cut(model: nn.Module, training: TrainingWorkload) -> nn.Module:
        batch = first_batches(training, 1)[0]
        slopes = gradients(model, training, batch) if options.importance == "taylor" else None
        return with_share_of_work(model, call, options.keep, slopes)

    return pruned.pruned(candidate, NAME, options, cut)


TECHNIQUE = Technique(
    name=NAME,
    stage=Stage.STRUCTURE,
    order=1,
    card=__doc__,
    options=Options,
    check=check,
    predict=pruned.predict,
    apply=apply,
    space={
        "keep": (0.5, 0.35),
        "importance": ("taylor", "magnitude"),
        "steps": (100, 400),
    },
    groups=frozenset({pruned.PRUNING}),
    work_scale_of=pruned.work_scale_of,
)
