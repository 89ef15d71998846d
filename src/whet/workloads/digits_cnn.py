"""Define digits-cnn: a residual network names handwritten digits, those of scikit-learn, enlarged to 64 x 64.

Shape suffixes: B batch, C channels, H height, W width.
"""

import hashlib
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from whet.core.workload import Predict, Quality, Workload
from whet.errors import MissingExtra
from whet.models.resnet import ResNet
from whet.workloads import WEIGHTS
from whet.workloads.weights import load_weights

Array = np.ndarray[tuple[int, ...], np.dtype[np.float64]]

NAME = "digits-cnn"
BATCH = 8
SIZE = 64  # pixels, each way
NUM_HELD_OUT = 400  # images that are scored: whole batches, in a second or two
NUM_CALIBRATION = 16  # batches

_HELD_OUT = 64  # of 256 values of a hash byte: a quarter of the images


def build(weights: Path = WEIGHTS) -> Workload:
    """Return the workload: batches of 8 images, scored by the share of held-out digits classified correctly."""
    train_BCHW, _ = read_digits(held_out=False)
    test_BCHW, labels_B = read_digits(held_out=True)
    batches = list(zip(test_BCHW[:NUM_HELD_OUT].split(BATCH), labels_B[:NUM_HELD_OUT].split(BATCH), strict=True))

    def accuracy(predict: Predict) -> Tensor:
        return torch.cat([predict(x_BCHW).argmax(1) == y_B for x_BCHW, y_B in batches]).float()

    model = ResNet()
    load_weights(model, weights / NAME)
    return Workload(
        model=model.eval(),
        inputs=[x_BCHW for x_BCHW, _ in batches[:4]],
        quality=Quality("accuracy", accuracy),
        calibration=train_BCHW[: NUM_CALIBRATION * BATCH].split(BATCH),
        name=NAME,
    )


def read_digits(*, held_out: bool) -> tuple[Tensor, Tensor]:
    """Return one side of the split: images in [-1, 1], fp32 [B, 1, 64, 64], and their digits, int64 [B].

    A hash of the image's own pixels decides on the side, so the split does not depend on the order of the images.
    """
    digits_NHW, labels_N = _load_digits()
    side = [(hashlib.sha256(image.tobytes()).digest()[0] < _HELD_OUT) == held_out for image in digits_NHW]
    images_BHW = torch.from_numpy(digits_NHW[side]).float() / 8 - 1  # pixels are 0 to 16
    images_BCHW = F.interpolate(images_BHW[:, None], size=(SIZE, SIZE), mode="bilinear")
    return images_BCHW, torch.from_numpy(labels_N[side]).long()


def _load_digits() -> tuple[Array, Array]:
    """Return what sklearn.datasets.load_digits returns: images, float64 [N, 8, 8], and their digits [N].

    The library's own file is read, since importing the library takes a second in every process.
    """
    spec = find_spec("sklearn")
    if spec is None or not spec.submodule_search_locations:
        raise MissingExtra("scikit-learn", "examples", f"loading the images of {NAME}")
    path = Path(spec.submodule_search_locations[0]) / "datasets" / "data" / "digits.csv.gz"
    table = np.loadtxt(path, delimiter=",")
    return table[:, :-1].reshape(-1, 8, 8), table[:, -1]
