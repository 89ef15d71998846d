"""A long step goes through the layers in parts: its logits are those of short steps, bit for bit."""

import math

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from whet.kernels.build import Isa, library, supported
from whet.kernels.decoder.structs import Kv
from whet.kernels.linear.packed import Kind
from whet.models.decoder.config import DecoderConfig
from whet.models.decoder.files import weight_shapes
from whet.models.hybrid.native import NativeDecoder
from whet.models.step import Allocation, StepBatch

PART_TOKENS = 192  # of decoder/kernel.h
SHORT = 100  # tokens of a step that is one part
CONFIG = DecoderConfig(
    vocab_size=97,
    hidden_size=48,
    intermediate_size=80,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=16,
    max_position_embeddings=512,
)
BLOCKS = CONFIG.max_position_embeddings // 16

Sequence = tuple[int, int, int]  # which one, its first and its last new token + 1


def decoder(isa: Isa, kind: Kind, kv: Kv) -> NativeDecoder:
    generator = torch.Generator().manual_seed(0)
    weights: dict[str, Tensor] = {}
    for name, shape in weight_shapes(CONFIG).items():
        weights[name] = torch.randn(shape, generator=generator) * (1.5 / math.sqrt(shape[-1]))
        if "norm" in name:
            weights[name] += 1
    model = NativeDecoder(CONFIG, weights, library(isa), kind=kind, kv=kv)
    model.allocate(Allocation(num_blocks=4 * BLOCKS))
    return model


def step(model: NativeDecoder, sequences: list[Sequence]) -> Tensor:
    """The logits of all new tokens; a sequence's blocks lie apart, the last one first."""
    news = [last - first for _, first, last in sequences]
    starts: NDArray[np.int32] = np.concatenate([[0], np.cumsum(news)]).astype(np.int32)
    places = [np.arange(first, last) for _, first, last in sequences]
    token_ids = [(7 * p * p + 3 * p + which) % 97 for p, (which, _, _) in zip(places, sequences, strict=True)]
    batch = StepBatch(
        token_ids=np.concatenate(token_ids).astype(np.int32),
        positions=np.concatenate(places).astype(np.int32),
        query_start=starts,
        context_len=np.array([last for _, _, last in sequences], np.int32),
        settled_len=np.array([last for _, _, last in sequences], np.int32),
        block_tables=np.stack([np.arange(BLOCKS)[::-1] * 4 + which for which, _, _ in sequences]).astype(np.int32),
        state_rows=np.zeros(len(sequences), np.int32),
        logit_rows=np.arange(starts[-1], dtype=np.int32),
    )
    return model.step(batch).clone()


@pytest.mark.parametrize("isa", supported())
@pytest.mark.parametrize(("kind", "kv"), [(Kind.F32, Kv.F32), (Kind.S8, Kv.BF16), (Kind.S4, Kv.S8)])
def test_a_long_step_is_many_short_ones(isa: Isa, kind: Kind, kv: Kv) -> None:
    # Cuts fall within the first and the third; the second and the last are whole, and the last has a past.
    sequences: list[Sequence] = [(0, 0, 233), (1, 0, 3), (2, 0, 411), (3, 40, 41)]
    long, short = decoder(isa, kind, kv), decoder(isa, kind, kv)
    for model in (long, short):
        step(model, [(3, 0, 40)])
    assert sum(last - first for _, first, last in sequences) > 3 * PART_TOKENS
    wanted = [
        step(short, [(which, begin, min(begin + SHORT, last))])
        for which, first, last in sequences
        for begin in range(first, last, SHORT)
    ]
    assert torch.equal(step(long, sequences), torch.cat(wanted))
    # what they left in the cache serves what comes next
    following: list[Sequence] = [(which, last, last + 1) for which, _, last in sequences]
    assert torch.equal(step(long, following), torch.cat([step(short, [one]) for one in following]))
