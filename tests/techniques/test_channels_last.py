"""Channels-last: the same numbers in another order of memory."""

import torch
from small_models import EXAMINED
from torch import nn

from whet.techniques.layout import channels_last
from whet.techniques.rewriting.graph import relative_error
from whet.techniques.technique import Applies, Candidate, NoOptions, NotApplicable


def test_turns_weights_and_inputs(machine) -> None:
    examined = EXAMINED["conv_net"]()
    assert channels_last.check(examined, machine, NoOptions()) == Applies("2 convolutions")
    seen = []
    tuned = channels_last.apply(Candidate.original(examined), NoOptions())
    convolution = next(m for m in tuned.module.modules() if isinstance(m, nn.Conv2d))
    convolution.register_forward_pre_hook(lambda module, args: seen.append(args[0]))
    with torch.no_grad():
        outputs = tuned.call(*examined.flat_inputs[0])
    assert seen[0].is_contiguous(memory_format=torch.channels_last)
    assert convolution.weight.is_contiguous(memory_format=torch.channels_last)
    assert relative_error(outputs, examined.outputs[0]) < 1e-5


def test_refused_without_convolutions(machine) -> None:
    verdict = channels_last.check(EXAMINED["encoder"](), machine, NoOptions())
    assert verdict == NotApplicable("the model has no 2-d convolution")
