"""The memory that learns while it reads, by the tests of titans-pytorch: several calls in a chain are one call.

The sizes, lengths and tolerances are theirs. Each of whet's depths takes the place of their gated transition, which
whet's memory has not: its gates are those of momentum and decay.
"""

from itertools import product

import pytest
import torch
from torch import Tensor

from foreign_functions import checkout, marks, parametrised

pytest.importorskip("whet.models.memory_bank.inference_learning")

from whet.models.memory_bank.config import LtmConfig
from whet.models.memory_bank.inference_learning import TestTimeMemory

pytestmark = [*marks, pytest.mark.timeout(600), pytest.mark.parametrize("depth", ["linear", "mlp"])]

TESTS = "tests/test_titans.py"


def memory(depth: str, heads: int, chunk: int, dtype: torch.dtype = torch.float32) -> TestTimeMemory:
    """A memory of width 16 for each head, which is what their tests have."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "memory_compression_ratio": float(heads), "num_attention_heads": 1}
    sizes |= {"vocab_size": 8, "intermediate_size": 16, "num_hidden_layers": 1, "test_time_heads": heads}
    config = LtmConfig(**sizes, test_time_memory=depth, test_time_chunk=chunk)
    return TestTimeMemory(config).to(dtype)


def through(found: TestTimeMemory, parts: list[Tensor]) -> Tensor:
    """What is read of the parts, one call each, with the state handed on."""
    state, offset, outputs = found.new_state(parts[0].shape[0], parts[0].dtype), 0, []
    for part in parts:
        read, state = found(part, state, offset)
        outputs.append(read)
        offset += part.shape[1]
    return torch.cat(outputs, 1)


@torch.no_grad()
def test_neural_mem_chaining_chunks(depth: str) -> None:
    checkout("titans-pytorch")
    found, sequence = memory(depth, heads=2, chunk=16), torch.randn(2, 48, 16)
    whole = through(found, [sequence])
    torch.testing.assert_close(through(found, list(sequence.split(16, 1))), whole, rtol=1e-5, atol=1e-5)


@torch.no_grad()
def test_neural_mem_chaining_with_batch_size(depth: str) -> None:
    """Their weights change every 64 tokens, whose gradients are taken in chunks of 16; ours change with each chunk."""
    checkout("titans-pytorch")
    for chunk in (16, 64):
        found, sequence = memory(depth, heads=2, chunk=chunk), torch.randn(2, 112, 16)
        whole = through(found, [sequence])
        parts = list(sequence.split([16, 48, 48], 1))
        torch.testing.assert_close(through(found, parts), whole, rtol=1e-5, atol=1e-5)


@torch.no_grad()
def test_neural_mem_inference(depth: str) -> None:
    """In float64: a prompt in one call, then token after token."""
    values = parametrised("titans-pytorch", TESTS, "test_neural_mem_inference")
    for length, prompt, chunk in product(values["seq_len"], values["prompt_len"], values["mem_chunk_size"]):
        found = memory(depth, heads=1, chunk=chunk, dtype=torch.float64)
        sequence = torch.randn(2, length, 16, dtype=torch.float64)
        whole = through(found, [sequence])
        first = [sequence[:, :prompt]] if 0 < prompt < length else []
        rest = sequence[:, prompt if first else 0 :].split(1, 1)
        torch.testing.assert_close(through(found, [*first, *rest]), whole, rtol=1e-6, atol=1e-6)
