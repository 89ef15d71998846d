"""A tiny model with something for each technique, its rows, and the optimisers of a loop around it."""

from collections.abc import Iterable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from whet.techniques.mechanisms.muon import MuonWithAdamW
from whet.techniques.training import TRAINING_TABLE
from whet.techniques.training_technique import Exactness

VOCAB, WIDTH, LENGTH, STEPS, RATE = 1024, 16, 8, 3, 0.5


class Block(nn.Module):
    """Add attention of two heads and a layer to the input."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.qkv, self.out = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (y.unflatten(-1, (2, -1)).transpose(1, 2) for y in self.qkv(self.norm(x)).chunk(3, -1))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        added: Tensor = x + self.out(mixed.transpose(1, 2).flatten(2))
        return added


class Net(nn.Module):
    """Predict tokens, with something for each technique: blocks, a convolution, and a large vocabulary."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCAB, WIDTH)
        self.filter = nn.Conv2d(1, 1, 3, padding=1)
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.head = nn.Linear(WIDTH, VOCAB)

    def forward(self, ids: Tensor, labels: Tensor | None = None) -> Any:
        x = self.embedding(ids)
        x = x + self.filter(x[:, None])[:, 0]
        for block in self.blocks:
            x = block(x)
        logits = self.head(x)
        return logits if labels is None else {"loss": self.loss(logits, labels), "logits": logits}

    @staticmethod
    def loss(logits: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(logits[:, :-1].float().flatten(0, 1), labels[:, 1:].flatten())


def net() -> Net:
    torch.manual_seed(0)
    return Net()


def rows(per_step: int) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randint(0, VOCAB, (STEPS * per_step, LENGTH), generator=generator)


def optimizer_for(name: str, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    """Return the loop's own optimiser: AdamW where a technique needs it, else one that shows a gradient's size."""
    if name == "fused_optimizer":  # fully_shard has no fused SGD; a large eps lets the size of gradients show
        return torch.optim.AdamW(parameters, lr=0.1, eps=1e-2)
    if TRAINING_TABLE[name].exactness is Exactness.OTHER:
        return torch.optim.AdamW(parameters, lr=0.01)
    return torch.optim.SGD(parameters, lr=RATE, momentum=0.9)


def reference_optimizer(name: str, model: nn.Module) -> torch.optim.Optimizer:
    """Return what an untouched loop would take for the algorithm that a technique stands for."""
    own = list(model.parameters())
    if name == "adafactor":
        return torch.optim.Adafactor(own, lr=0.01, beta2_decay=-0.8, eps=(None, 1e-3), d=1.0, weight_decay=0.01)
    if name == "adamw_8bit":
        from torchao.optim import AdamW8bit

        return AdamW8bit(own, lr=0.01, weight_decay=0.01)
    if name == "muon":
        linear = [m.weight for m in model.modules() if isinstance(m, nn.Linear)][:-1]
        return MuonWithAdamW([{"params": own, "lr": 0.01, "weight_decay": 0.01}], linear)
    if name == "lamb":
        from pytorch_optimizer import Lamb

        made: Any = Lamb(own, lr=0.01, weight_decay=0.01, weight_decouple=False, adam_debias=True)
        return made  # type: ignore[no-any-return]
    return optimizer_for(name, own)
