"""Define digits-cnn-training: a residual network learns to name handwritten digits, from random weights."""

import torch
import torch.nn.functional as F
from torch import Tensor

from whet.core.workload import Predict, Quality, TrainingWorkload
from whet.core.workload.training import OutputLoss
from whet.models.resnet import ResNet
from whet.workloads import digits_cnn
from whet.workloads.shuffled import Shuffled

NAME = "digits-cnn-training"
BATCH = 64
LEARNING_RATE, WEIGHT_DECAY = 1e-3, 0.05


def build() -> TrainingWorkload:
    """Return the workload: batches of 64 images of 64 x 64 pixels, AdamW, scored by held-out mean cross-entropy."""
    images_BCHW, labels_B = digits_cnn.read_digits(held_out=False)
    test_BCHW, truth_B = digits_cnn.read_digits(held_out=True)
    held_out = list(zip(test_BCHW.split(BATCH), truth_B.split(BATCH), strict=True))

    def nats(predict: Predict) -> Tensor:
        return torch.cat([F.cross_entropy(predict(x_BCHW), y_B, reduction="none") for x_BCHW, y_B in held_out])

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = ResNet()
    return TrainingWorkload(
        model=model,
        loss=OutputLoss(F.cross_entropy),
        optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=LEARNING_RATE, weight_decay=WEIGHT_DECAY),
        batches=Shuffled(len(labels_B), BATCH, lambda rows: (images_BCHW[rows], labels_B[rows])),
        evaluation=Quality("held-out loss", nats, higher_is_better=False),
        num_samples=BATCH,
        name=NAME,
    )
