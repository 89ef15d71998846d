"""A training whose samples lie compressed, so that a step waits for its data as long as it computes."""

import zlib

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

import whet

_SIZE, _NUM_SAMPLES, _BATCH = 96, 256, 32


class PackedSamples(Dataset[tuple[Tensor, Tensor]]):
    """Hold pictures as zlib wrote them. To inflate one releases Python's lock."""

    def __init__(self) -> None:
        draws = torch.Generator().manual_seed(0)
        pictures = torch.randint(0, 24, (_NUM_SAMPLES, 3, _SIZE, _SIZE), dtype=torch.uint8, generator=draws)
        self._labels = torch.randint(0, 10, (_NUM_SAMPLES,), generator=draws)
        self._packed = [zlib.compress(picture.numpy().tobytes() * 8, level=9) for picture in pictures]

    def __len__(self) -> int:
        return len(self._packed)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        values = torch.frombuffer(bytearray(zlib.decompress(self._packed[index])), dtype=torch.uint8)
        picture = values[: 3 * _SIZE * _SIZE].view(3, _SIZE, _SIZE)
        return picture.float() / 24 - 0.5, self._labels[index]


def build() -> whet.TrainingWorkload:
    """Return the training: a small convolutional network on such samples."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 16, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Conv2d(32, 32, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(32, 10),
    )
    loader = DataLoader(PackedSamples(), batch_size=_BATCH)

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        return nn.functional.cross_entropy(model(batch[0]), batch[1])

    return whet.TrainingWorkload(
        model=model,
        batches=loader,
        loss=loss,
        optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=1e-3),
        name="packed_samples",
    )
