"""Small long-term-memory decoders for tests."""

from typing import Any

import torch
from torch import Tensor

from whet.models.memory_bank import Ltm, LtmConfig

SMALL: dict[str, Any] = {
    "vocab_size": 50,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "attention_block_size": 8,
    "memory_slots": 6,
    "test_time_chunk": 5,
}
KINDS: dict[str, dict[str, Any]] = {
    "bank": {},
    "every second segment, one layer": {"memory_update_interval": 2, "memory_layers": (1,), "max_memory_slots": 9},
    "linear": {"test_time_memory": "linear", "memory_slots": 0, "tie_word_embeddings": True},
    "mlp with heads, bank": {"test_time_memory": "mlp", "test_time_heads": 2, "memory_compression_ratio": 0.5},
    "no memory, no MLP": {"memory_slots": 0, "intermediate_size": 0},
}


def make(dtype: torch.dtype = torch.float32, **changes: Any) -> Ltm:
    """Return a model whose weights all differ from their first values."""
    torch.manual_seed(0)
    model = Ltm(LtmConfig(**SMALL | changes)).to(dtype).eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(torch.randn_like(weight) * 0.1)
    return model


def random_ids(rows: int, count: int, seed: int = 1) -> Tensor:
    """Return token ids [rows, count]."""
    return torch.randint(0, 50, (rows, count), generator=torch.Generator().manual_seed(seed))
