"""Small training runs for tests: a classifier over a vocabulary, packed rows, and a network of convolutions."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from whet.core.recipe import Step
from whet.core.workload import TrainingWorkload
from whet.core.workload.training import Trainer
from whet.techniques.applied import applied
from whet.techniques.mechanisms.packing.packing import PackedBatches
from whet.techniques.mechanisms.parts import Parts
from whet.techniques.training import TRAINING_TABLE

VOCAB, WIDTH = 1100, 24


class Block(nn.Module):
    """Add a gated MLP to its input."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up, self.gate, self.down = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(x)
        out: Tensor = x + self.dropout(self.down(F.silu(self.gate(y)) * self.up(y)))
        return out


class TinyLM(nn.Module):
    """Predict a token from the one before: [B, T] -> [B, T, 1100]."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCAB, WIDTH)
        self.blocks = nn.ModuleList(Block(dropout) for _ in range(3))
        self.head = nn.Linear(WIDTH, VOCAB)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embedding(ids)
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.head(x)
        return logits


def loss_of(model: nn.Module, batch: Tensor) -> Tensor:
    return F.cross_entropy(model(batch[:, :-1]).float().flatten(0, 1), batch[:, 1:].flatten())


def adamw(parameters: Iterable[nn.Parameter]) -> torch.optim.AdamW:
    return torch.optim.AdamW(parameters, lr=1e-3, weight_decay=0.1)


def tiny_workload(**changes: Any) -> TrainingWorkload:
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(1)
    fields: dict[str, Any] = {
        "model": TinyLM(),
        "loss": loss_of,
        "optimizer": adamw,
        "batches": [torch.randint(0, VOCAB, (4, 17), generator=generator) for _ in range(4)],
        "clip_norm": 1.0,
        **changes,
    }
    return TrainingWorkload(**fields)


class Rows(Dataset[Tensor]):
    """Hold rows of token ids."""

    def __init__(self, rows: Tensor) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Tensor:
        return self.rows[index].clone()


def loaded_workload(**changes: Any) -> TrainingWorkload:
    """Return tiny_workload with its rows in a DataLoader that shuffles: four batches of 4 rows."""
    workload = tiny_workload(**changes)
    return replace(workload, batches=DataLoader(Rows(torch.cat(list(workload.batches))), batch_size=4, shuffle=True))


class TinyNet(nn.Module):
    """Name one of ten classes of an image [B, 3, 8, 8]."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.second = nn.Conv2d(8, 8, 3, padding=1)
        self.last = nn.Linear(8, 10)

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.second(F.relu(self.norm(self.first(x)))))
        logits: Tensor = self.last(y.mean((2, 3)))
        return logits


def image_workload(**changes: Any) -> TrainingWorkload:
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(1)
    batches = [
        (torch.randn(4, 3, 8, 8, generator=generator), torch.randint(0, 10, (4,), generator=generator))
        for _ in range(4)
    ]
    fields: dict[str, Any] = {
        "model": TinyNet(),
        "loss": lambda model, batch: F.cross_entropy(model(batch[0]), batch[1]),
        "optimizer": adamw,
        "batches": batches,
        **changes,
    }
    return TrainingWorkload(**fields)


class PackedBlock(nn.Module):
    """Add attention of two heads, with a mask, to its input."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.qkv, self.out = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        q, k, v = (y.unflatten(-1, (2, -1)).transpose(1, 2) for y in self.qkv(self.norm(x)).chunk(3, -1))
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        added: Tensor = x + self.out(mixed.transpose(1, 2).flatten(2))
        return added


class PackedLM(nn.Module):
    """Predict tokens of packed rows, with a dense mask that keeps documents apart."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.places = nn.Embedding(VOCAB, WIDTH), nn.Embedding(32, WIDTH)
        self.blocks = nn.ModuleList(PackedBlock() for _ in range(2))
        self.head = nn.Linear(WIDTH, VOCAB)

    def forward(self, ids: Tensor, positions: Tensor, numbers: Tensor) -> Tensor:
        here, there = numbers[:, None, :, None], numbers[:, None, None, :]
        causal = torch.ones(ids.shape[1], ids.shape[1], dtype=torch.bool).tril()
        mask = ((here == there) & (here >= 0) & causal) | torch.eye(ids.shape[1], dtype=torch.bool)
        x = self.embedding(ids) + self.places(positions)
        for block in self.blocks:
            x = block(x, mask)
        logits: Tensor = self.head(x)
        return logits


def packed_loss_of(model: nn.Module, batch: Sequence[Tensor]) -> Tensor:
    ids, positions, numbers, targets = batch
    return F.cross_entropy(model(ids, positions, numbers).float().flatten(0, 1), targets.flatten())


def packed_workload(**changes: Any) -> TrainingWorkload:
    """Return a training on four batches of two packed rows with padding: 24 tokens, documents of 2 to 16."""
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(1)
    lengths = [16, 7, 9, 14, 8, 2, 12, 11, 20, 3, 6, 10, 5, 15, 13, 9, 6]
    documents = [torch.randint(1, VOCAB, (length,), generator=generator) for length in lengths]
    batches = [
        (batch.ids, batch.positions, batch.documents, batch.targets) for batch in PackedBatches(documents, 24, 2)
    ]
    fields: dict[str, Any] = {
        "model": PackedLM(),
        "loss": packed_loss_of,
        "optimizer": adamw,
        "batches": batches[:4],
        "clip_norm": 1.0,
        **changes,
    }
    return TrainingWorkload(**fields)


def trainer_with(workload: TrainingWorkload, *steps: Step) -> Trainer:
    return Trainer(workload, change=lambda m, o, b: applied(Parts(m, o, b), steps, TRAINING_TABLE))


def changed_trainer(workload: TrainingWorkload, change: Callable[[Parts], Parts]) -> Trainer:
    return Trainer(workload, change=lambda m, o, b: change(Parts(m, o, b)))
