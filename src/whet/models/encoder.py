"""Encode text like BERT, with a classification head (Devlin et al., 2018, arXiv:1810.04805).

Attention is written out by hand: separate query, key and value projections, two matrix products, and a softmax between
them. Many existing models still do it this way, and the techniques that fuse these operators are shown on this one.

Shape suffixes: B batch, T tokens, S tokens attended to (= T), D model width, N heads, H head width, K classes.
"""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True)
class EncoderConfig:
    """Hold the sizes of an Encoder. The defaults give 3.7 million parameters."""

    vocab_size: int = 2048
    num_classes: int = 2
    max_tokens: int = 128
    width: int = 256
    num_layers: int = 4
    num_heads: int = 8
    mlp_width: int = 1024
    dropout: float = 0.1


class Attention(nn.Module):
    """Compute self-attention over all tokens: [B, T, D] -> [B, T, D]."""

    def __init__(self, width: int, num_heads: int) -> None:
        super().__init__()
        if width % num_heads:
            raise ValueError(f"width {width} is not a multiple of num_heads {num_heads}")
        self.num_heads = num_heads
        self.head_width = width // num_heads
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width)
        self.value = nn.Linear(width, width)
        self.output = nn.Linear(width, width)

    def forward(self, x_BTD: Tensor) -> Tensor:
        B, T, D = x_BTD.shape
        query_BNTH = self.query(x_BTD).view(B, T, self.num_heads, self.head_width).transpose(1, 2)
        key_BNSH = self.key(x_BTD).view(B, T, self.num_heads, self.head_width).transpose(1, 2)
        value_BNSH = self.value(x_BTD).view(B, T, self.num_heads, self.head_width).transpose(1, 2)

        scores_BNTS = torch.matmul(query_BNTH, key_BNSH.transpose(-2, -1)) / math.sqrt(self.head_width)
        weights_BNTS = F.softmax(scores_BNTS, dim=-1)
        mixed_BNTH = torch.matmul(weights_BNTS, value_BNSH)

        mixed_BTD = mixed_BNTH.transpose(1, 2).reshape(B, T, D)
        output_BTD: Tensor = self.output(mixed_BTD)
        return output_BTD


class EncoderLayer(nn.Module):
    """Apply attention, then a two-layer MLP. Each is added to its input, then normalised: [B, T, D] -> [B, T, D]."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.attention = Attention(config.width, config.num_heads)
        self.attention_norm = nn.LayerNorm(config.width)
        self.up = nn.Linear(config.width, config.mlp_width)
        self.down = nn.Linear(config.mlp_width, config.width)
        self.mlp_norm = nn.LayerNorm(config.width)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x_BTD: Tensor) -> Tensor:
        x_BTD = self.attention_norm(x_BTD + self.dropout(self.attention(x_BTD)))
        mlp_BTD = self.down(F.gelu(self.up(x_BTD)))
        output_BTD: Tensor = self.mlp_norm(x_BTD + self.dropout(mlp_BTD))
        return output_BTD


class Encoder(nn.Module):
    """Classify texts with embeddings, layers, a mean over the tokens, and a linear head."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.config = config
        self.token_embedding = nn.Embedding(config.vocab_size, config.width)
        self.position_embedding = nn.Embedding(config.max_tokens, config.width)
        self.embedding_norm = nn.LayerNorm(config.width)
        self.dropout = nn.Dropout(config.dropout)
        self.layers = nn.ModuleList(EncoderLayer(config) for _ in range(config.num_layers))
        self.head = nn.Linear(config.width, config.num_classes)
        self.apply(_initialise)

    def encode(self, input_ids_BT: Tensor) -> Tensor:
        """Map token ids [B, T] to the last layer's output [B, T, D]."""
        positions_T = torch.arange(input_ids_BT.shape[1], device=input_ids_BT.device)
        x_BTD: Tensor = self.token_embedding(input_ids_BT) + self.position_embedding(positions_T)
        x_BTD = self.dropout(self.embedding_norm(x_BTD))
        for layer in self.layers:
            x_BTD = layer(x_BTD)
        return x_BTD

    def forward(self, input_ids_BT: Tensor) -> Tensor:
        """Map token ids, int64 [B, T] without padding, T at most max_tokens, to logits [B, num_classes]."""
        x_BTD = self.encode(input_ids_BT)
        logits_BK: Tensor = self.head(self.dropout(x_BTD.mean(dim=1)))
        return logits_BK


def _initialise(module: nn.Module) -> None:
    """Initialise as BERT does: weights from a normal distribution of standard deviation 0.02, and biases of 0."""
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=0.02)
    if isinstance(module, nn.Linear) and module.bias is not None:
        nn.init.zeros_(module.bias)
