"""What `benchmarks/gpu.py` tunes and trains besides the built-in workloads: a transformer in bfloat16.

Shape suffixes: B batch, T tokens, D width, N heads, V vocabulary.
"""

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

_VOCABULARY = 8192
TRAINING = {False: (768, 12, 8, 512), True: (64, 2, 2, 32)}
"""Width, layers, batch and tokens of the training that is timed, by whether it is to be small."""


class Block(nn.Module):
    """Attention and a feed-forward network, each behind a norm and beside a residual."""

    def __init__(self, width: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.project = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x_BTD: Tensor) -> Tensor:
        qkv = self.qkv(self.norm1(x_BTD)).unflatten(-1, (3, self.num_heads, -1))
        q_BNTD, k_BNTD, v_BNTD = qkv.permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q_BNTD, k_BNTD, v_BNTD, is_causal=True)
        x_BTD = x_BTD + self.project(mixed.transpose(1, 2).flatten(2))
        return x_BTD + self.down(F.gelu(self.up(self.norm2(x_BTD))))


class Transformer(nn.Module):
    """A decoder that gives logits for every token."""

    def __init__(self, width: int, num_layers: int, num_heads: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(_VOCABULARY, width)
        self.blocks = nn.Sequential(*(Block(width, num_heads) for _ in range(num_layers)))
        self.head = nn.Linear(width, _VOCABULARY)

    def forward(self, ids_BT: Tensor) -> Tensor:
        return self.head(self.blocks(self.embedding(ids_BT)))


def transformer(device: str = "cpu") -> tuple[nn.Module, list[Tensor]]:
    """117 million parameters in bfloat16, 4 x 512 tokens."""
    return _made(device, width=768, num_layers=12, num_heads=12, batch=4, tokens=512)


def small_transformer(device: str = "cpu") -> tuple[nn.Module, list[Tensor]]:
    """The same code at a size for a CPU: 2 x 32 tokens."""
    return _made(device, width=64, num_layers=2, num_heads=4, batch=2, tokens=32)


def training(
    device: str, width: int, num_steps: int, *, num_layers: int = 2, batch: int = 8, tokens: int = 128
) -> tuple[nn.Module, torch.optim.Optimizer, Iterator[Tensor]]:
    """A model, its optimiser, and batches on the CPU."""
    torch.manual_seed(0)
    model = Transformer(width, num_layers, 8).to(device)
    batches = (torch.randint(_VOCABULARY, (batch, tokens)) for _ in range(num_steps))
    return model, torch.optim.AdamW(model.parameters(), lr=1e-3), batches


def _made(
    device: str, *, width: int, num_layers: int, num_heads: int, batch: int, tokens: int
) -> tuple[nn.Module, list[Tensor]]:
    torch.manual_seed(0)
    model = Transformer(width, num_layers, num_heads).to(device, torch.bfloat16).eval()
    return model, [torch.randint(_VOCABULARY, (batch, tokens)).to(device) for _ in range(2)]
