"""Train digits-cnn with images shifted by up to four pixels, in 20 passes over the training digits."""

from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from whet.models.resnet import ResNet
from whet.workloads import WEIGHTS, digits_cnn

from .loop import Schedule, fit, report
from .writing import save_weights, write_directory

BATCH = 64
SHIFT = 4  # pixels


def train(out: Path = WEIGHTS, steps: int = 420) -> None:
    """Write out/digits-cnn and print its held-out accuracy."""
    torch.manual_seed(0)
    images_NCHW, labels_N = digits_cnn.read_digits(held_out=False)
    padded_NCHW = F.pad(images_NCHW, [SHIFT] * 4, value=-1.0)
    model = ResNet()

    def loss(step: int) -> Tensor:
        chosen = torch.randint(len(labels_N), (BATCH,))
        down, right = torch.randint(2 * SHIFT + 1, (2,)).tolist()
        size = digits_cnn.SIZE
        logits = model(padded_NCHW[chosen, :, down : down + size, right : right + size])
        return F.cross_entropy(logits.float(), labels_N[chosen], label_smoothing=0.1)

    fit(model, loss, Schedule(steps=steps, learning_rate=1e-3, weight_decay=0.05))
    write_directory(out / digits_cnn.NAME, lambda directory: save_weights(model.state_dict(), directory))
    report(digits_cnn.build(out), baseline())


def baseline() -> float:
    """Return the accuracy of always naming the digit that is most frequent in training."""
    _, train_B = digits_cnn.read_digits(held_out=False)
    _, test_B = digits_cnn.read_digits(held_out=True)
    return float((test_B[: digits_cnn.NUM_HELD_OUT] == train_B.mode().values).float().mean())
