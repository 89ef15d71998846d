"""Small training runs for training_gate.py, whose weights and data are drawn anew for each number in GATE_SEED."""

import os

import torch
import torch.nn.functional as F
from torch import nn

from whet import Quality, TrainingWorkload
from whet.core.workload.training import OutputLoss
from whet.models.decoder import Decoder
from whet.models.decoder.config import read_config
from whet.models.decoder.fresh import initialise
from whet.models.resnet import ResNet
from whet.workloads import WEIGHTS, digits_cnn_training, docs_gpt, docs_gpt_training
from whet.workloads.shuffled import Shuffled

SEED = "GATE_SEED"  # the environment variable
_SHAPE = {"hidden_size": 96, "intermediate_size": 256, "num_hidden_layers": 2, "num_attention_heads": 3}
_ROWS, _TOKENS, _IMAGES = 4, 64, 16


def _seed() -> int:
    return int(os.environ.get(SEED, "0"))


class _Smaller:
    """Take the first rows of each batch, and the first elements of each row."""

    def __init__(self, batches, *shape):
        self._batches, self._places = batches, tuple(slice(size) for size in shape)

    def __iter__(self):
        for batch in self._batches:
            yield tuple(tensor[self._places[: tensor.dim()]].contiguous() for tensor in batch)


def _changed(workload: TrainingWorkload, **changes) -> TrainingWorkload:
    from dataclasses import replace

    return replace(workload, seed=_seed(), **changes)


def gpt() -> TrainingWorkload:
    """docs-gpt-training with two narrow layers, on 4 windows of 64 tokens."""
    workload = docs_gpt_training.build()
    config = read_config(WEIGHTS / docs_gpt.NAME).model_copy(update={**_SHAPE, "num_key_value_heads": 1})
    model = Decoder(config)
    initialise(model, torch.Generator().manual_seed(_seed()))
    return _changed(workload, model=model, batches=_Smaller(workload.batches, _ROWS, _TOKENS), num_samples=_ROWS)


def cnn() -> TrainingWorkload:
    """digits-cnn-training with a narrow network, on 16 images."""
    workload = digits_cnn_training.build()
    torch.manual_seed(_seed())
    model = ResNet(widths=(8, 16, 32), depths=(1, 1, 1))
    batches = _Smaller(workload.batches, _IMAGES)
    return _changed(workload, model=model, batches=batches, num_samples=_IMAGES)


def _mlp(optimizer) -> TrainingWorkload:
    """A classifier of points, which another network has named; a tenth of the names is wrong."""
    generator = torch.Generator().manual_seed(_seed())
    points = torch.randn(1280, 32, generator=generator)
    teacher = torch.randn(32, 4, generator=generator)
    names = (points @ teacher + torch.randn(1280, 4, generator=generator)).argmax(1)
    test_points, test_names = points[1024:], names[1024:]
    torch.manual_seed(_seed())
    model = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 4))

    def held_out(predict):
        return float(F.cross_entropy(predict(test_points), test_names))

    return TrainingWorkload(
        model=model,
        loss=OutputLoss(F.cross_entropy),
        optimizer=optimizer,
        batches=Shuffled(1024, 32, lambda rows: (points[rows], names[rows])),
        evaluation=Quality("held-out loss", held_out, higher_is_better=False),
        num_samples=32,
        seed=_seed(),
    )


def mlp_adamw() -> TrainingWorkload:
    """A tiny network, trained by AdamW."""
    return _mlp(lambda parameters: torch.optim.AdamW(parameters, lr=1e-3, weight_decay=0.05))


def mlp_sgd() -> TrainingWorkload:
    """The same network, trained by SGD with momentum."""
    return _mlp(lambda parameters: torch.optim.SGD(parameters, lr=0.02, momentum=0.9, weight_decay=5e-4))
