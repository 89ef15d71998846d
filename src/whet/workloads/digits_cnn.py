"""digits-cnn: a residual network names handwritten digits, scikit-learn's own, enlarged to 64 x 64.

Shape suffixes: B batch, C channels, H height, W width.
"""

import hashlib
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from whet.errors import MissingExtra
from whet.models.resnet import ResNet
from whet.workload import Predict, Quality, Workload
from whet.workloads import WEIGHTS
from whet.workloads.weights import load_weights

NAME = "digits-cnn"
BATCH = 8
SIZE = 64  # pixels, each way
NUM_HELD_OUT = 400  # scored: whole batches, in a second or two
NUM_CALIBRATION = 16  # batches

_HELD_OUT = 64  # of 256: a quarter of the images


def build(weights: Path = WEIGHTS) -> Workload:
    """The workload: batches of 8 images; quality is the share of held-out digits named rightly."""
    train_BCHW, _ = read_digits(held_out=False)
    test_BCHW, labels_B = read_digits(held_out=True)
    batches = list(zip(test_BCHW[:NUM_HELD_OUT].split(BATCH), labels_B[:NUM_HELD_OUT].split(BATCH), strict=True))

    def accuracy(predict: Predict) -> float:
        right = sum(int((predict(x_BCHW).argmax(1) == y_B).sum()) for x_BCHW, y_B in batches)
        return right / NUM_HELD_OUT

    model = ResNet()
    load_weights(model, weights / NAME)
    return Workload(
        model=model.eval(),
        inputs=[x_BCHW for x_BCHW, _ in batches[:4]],
        quality=Quality("accuracy", accuracy),
        calibration=train_BCHW[: NUM_CALIBRATION * BATCH].split(BATCH),
        name=NAME,
    )


def baseline() -> float:
    """The accuracy of always naming the digit that is most frequent in training."""
    _, train_B = read_digits(held_out=False)
    _, test_B = read_digits(held_out=True)
    return float((test_B[:NUM_HELD_OUT] == train_B.mode().values).float().mean())


def read_digits(*, held_out: bool) -> tuple[Tensor, Tensor]:
    """One side of the split: images in [-1, 1], fp32 [B, 1, 64, 64], and their digits, int64 [B].

    The side is decided by a hash of an image's own pixels, so it does not hang on the order they come in.
    """
    digits = _datasets().load_digits()
    side = [(hashlib.sha256(image.tobytes()).digest()[0] < _HELD_OUT) == held_out for image in digits.images]
    images_BHW = torch.from_numpy(digits.images[side]).float() / 8 - 1  # pixels are 0 to 16
    images_BCHW = F.interpolate(images_BHW[:, None], size=(SIZE, SIZE), mode="bilinear")
    return images_BCHW, torch.from_numpy(digits.target[side]).long()


def _datasets() -> Any:
    try:
        import sklearn.datasets
    except ImportError as error:
        raise MissingExtra("scikit-learn", "examples", f"loading the images of {NAME}") from error
    return sklearn.datasets
