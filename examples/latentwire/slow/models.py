"""The encoder that turns a context into a few soft tokens, and the frozen decoder that reads them."""

import torch
from tokenizers import Tokenizer
from torch import nn
from transformers import AutoModelForCausalLM

from whet.workloads import WEIGHTS

DECODER = WEIGHTS / "docs-gpt"


def load_decoder(device):
    """The frozen language model, and its tokenizer."""
    decoder = AutoModelForCausalLM.from_pretrained(DECODER, dtype=torch.float32)
    decoder.requires_grad_(False)
    return decoder.eval().to(device), Tokenizer.from_file(str(DECODER / "tokenizer.json"))


class Attention(nn.Module):
    """Attention of some positions to others, written out."""

    def __init__(self, width, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.query = nn.Linear(width, width)
        self.key_value = nn.Linear(width, 2 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x, memory):
        batch, length, width = x.shape
        head = width // self.num_heads
        q = self.query(x).view(batch, length, self.num_heads, head).transpose(1, 2)
        k, v = self.key_value(memory).view(batch, memory.shape[1], 2, self.num_heads, head).unbind(2)
        k, v = k.transpose(1, 2), v.transpose(1, 2)
        scores = torch.matmul(q, k.transpose(-2, -1)) / head**0.5
        weights = torch.softmax(scores, dim=-1)
        mixed = torch.matmul(weights, v)
        return self.out(mixed.transpose(1, 2).reshape(batch, length, width))


class Block(nn.Module):
    def __init__(self, width, num_heads):
        super().__init__()
        self.norm_attention = nn.LayerNorm(width)
        self.attention = Attention(width, num_heads)
        self.norm_mlp = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x, memory=None):
        normed = self.norm_attention(x)
        x = x + self.attention(normed, normed if memory is None else memory)
        return x + self.mlp(self.norm_mlp(x))


class PromptEncoder(nn.Module):
    """Compresses embedded text [B, T, width] into soft tokens [B, num_latents, width]."""

    def __init__(self, width, num_latents=8, num_blocks=2, num_heads=8, max_length=128):
        super().__init__()
        self.latents = nn.Parameter(torch.randn(num_latents, width) * 0.02)
        self.position = nn.Embedding(max_length, width)
        self.blocks = nn.ModuleList([Block(width, num_heads) for _ in range(num_blocks)])
        self.read = Block(width, num_heads)

    def forward(self, embedded):
        positions = torch.arange(embedded.shape[1]).to(embedded.device)
        x = embedded + self.position(positions)
        for block in self.blocks:
            x = block(x)
        latents = self.latents.expand(embedded.shape[0], -1, -1)
        return self.read(latents, x)
