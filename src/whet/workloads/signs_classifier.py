"""Name the digit that a colour frame shows, with a small residual network: the judge of what signs-stream draws."""

from pathlib import Path

import torch
from torch import Tensor

from whet.errors import TargetError
from whet.models.resnet import ResNet
from whet.workloads import WEIGHTS
from whet.workloads.signs_data import NUM_DIGITS
from whet.workloads.weights import FILE, load_weights

NAME = "signs-classifier"
BATCH = 64  # frames that are classified at a time


def new_classifier() -> ResNet:
    """Return a classifier with random weights. It maps frames in [-1, 1], [B, 3, 64, 64], to logits [B, 10]."""
    return ResNet(in_channels=3, num_classes=NUM_DIGITS, widths=(16, 32, 64, 128), depths=(1, 1, 1, 1))


def load_classifier(weights: Path = WEIGHTS) -> ResNet:
    """Return the classifier of signs-classifier/model.safetensors, in eval mode; raise TargetError without the file."""
    if not (weights / NAME / FILE).is_file():
        raise TargetError(
            f"{weights / NAME} has no {FILE}: in a clone of whet, train it with "
            "python -m benchmarks.built_in_weights signs-stream --data FILE"
        )
    model = new_classifier()
    load_weights(model, weights / NAME)
    return model.eval()


@torch.no_grad()
def is_recognised(classifier: ResNet, frames_BCHW: Tensor, digits_B: Tensor) -> Tensor:
    """Return which frames are recognised as their digit, bool [B]."""
    batches = zip(frames_BCHW.split(BATCH), digits_B.split(BATCH), strict=True)
    return torch.cat([classifier(x_BCHW).argmax(1) == y_B for x_BCHW, y_B in batches])
