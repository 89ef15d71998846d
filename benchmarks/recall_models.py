"""Build the models that benchmarks/recall.py trains: whet's long-term-memory decoder in several forms, and Titans.

All arms have two layers of width 64, and as many parameters as the one with a bank, to about 1 %: the width of their
MLPs makes up for what their memories take.
"""

import importlib.util
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from whet.models.memory_bank import Ltm, LtmConfig

NONE, BANK, TEST_TIME, FULL, TITANS = "none", "bank", "test-time", "full attention", "titans-pytorch"
ARMS = (NONE, BANK, TEST_TIME, FULL, TITANS)
WIDTH, LAYERS, HEADS, SLOTS, INNER = 64, 2, 2, 64, 128
_LEAST_INNER = 8


@dataclass(frozen=True)
class Shape:
    """Say what a model has to read.

    Attributes:
        vocab_size: The ids.
        segment: The tokens that attention sees, but for full attention.
        longest: The tokens of the longest text.
    """

    vocab_size: int
    segment: int
    longest: int


class Arm(Protocol):
    """Describe what the benchmark asks of a model."""

    def logits_at(self, tokens_BT: Tensor, where_BT: Tensor) -> Tensor:
        """Return the logits [N, V] at the places where `where_BT` is true."""
        ...

    def parameters(self) -> Any:
        """Return the parameters."""
        ...


class LtmArm(nn.Module):
    """Wrap whet's decoder."""

    def __init__(self, model: Ltm, segment: int) -> None:
        super().__init__()
        self.model, self.segment = model, segment

    def logits_at(self, tokens_BT: Tensor, where_BT: Tensor) -> Tensor:
        logits_NV: Tensor = self.model.lm_head(self.model.hidden(tokens_BT)[where_BT])
        return logits_NV

    def logits_with_the_memory_of_others(self, tokens_BT: Tensor, where_BT: Tensor) -> Tensor:
        """Return the logits at places of the last segment, when each row remembers what the row before it has read.

        Raises:
            ValueError: A place lies before the last segment.
        """
        begin = tokens_BT.shape[1] - self.segment
        if where_BT[:, :begin].any():
            raise ValueError("places before the last segment")
        state = self.model.new_state(len(tokens_BT))
        self.model.hidden(tokens_BT[:, :begin], state)
        others = state.rows([(row - 1) % len(tokens_BT) for row in range(len(tokens_BT))])
        hidden_BtD = self.model.hidden(tokens_BT[:, begin:], others)
        logits_NV: Tensor = self.model.lm_head(hidden_BtD[where_BT[:, begin:]])
        return logits_NV

    def ignores_the_first_segment(self, tokens_BT: Tensor) -> bool:
        """Return whether the outputs behind the first segment are the same, bit for bit, with another first segment."""
        others_BT = tokens_BT.clone()
        others_BT[:, : self.segment] = tokens_BT[:, : self.segment].roll(1, 0)
        first, second = (self.model.hidden(tokens)[:, self.segment :] for tokens in (tokens_BT, others_BT))
        return torch.equal(first, second)


class TitansArm(nn.Module):
    """Wrap titans-pytorch's Memory as Context: segments of attention with a neural memory of two layers."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def logits_at(self, tokens_BT: Tensor, where_BT: Tensor) -> Tensor:
        logits_NV: Tensor = self.model(tokens_BT)[where_BT]
        return logits_NV


def titans_is_installed() -> bool:
    """Return whether titans-pytorch can be imported."""
    return importlib.util.find_spec("titans_pytorch") is not None


def build(arm: str, shape: Shape, seed: int) -> LtmArm | TitansArm:
    """Return a model with new weights, of about as many parameters as the arm with a bank.

    Args:
        arm: One of `ARMS`.
        shape: What it reads.
        seed: Decides the weights.
    """
    torch.manual_seed(seed)
    if arm == TITANS:
        return TitansArm(_titans(shape))
    return LtmArm(Ltm(ltm_config(arm, shape, _inner(arm, shape))), shape.segment)


def num_parameters(model: nn.Module) -> int:
    """Return the number of trained numbers."""
    return sum(weight.numel() for weight in model.parameters())


def ltm_config(arm: str, shape: Shape, inner: int) -> LtmConfig:
    """Return an arm's config with MLPs of so many channels."""
    return LtmConfig.model_validate(
        {
            "vocab_size": shape.vocab_size,
            "hidden_size": WIDTH,
            "intermediate_size": inner,
            "num_hidden_layers": LAYERS,
            "num_attention_heads": HEADS,
            "attention_block_size": shape.longest if arm == FULL else shape.segment,
            "memory_slots": SLOTS if arm == BANK else 0,
            "test_time_memory": "mlp" if arm == TEST_TIME else "none",
            "test_time_chunk": shape.segment,  # as titans-pytorch has it
        }
    )


def _inner(arm: str, shape: Shape) -> int:
    """Return the channels of the MLPs that give an arm about as many parameters as the arm with a bank."""
    with torch.device("meta"):
        wanted, least, one_more = (
            num_parameters(Ltm(ltm_config(name, shape, inner)))
            for name, inner in ((BANK, INNER), (arm, _LEAST_INNER), (arm, _LEAST_INNER + 1))
        )
    return max(_LEAST_INNER, _LEAST_INNER + round((wanted - least) / (one_more - least)))


def _titans(shape: Shape) -> nn.Module:
    """Return Memory as Context with titans-pytorch's defaults, but for the sizes."""
    from titans_pytorch import MemoryAsContextTransformer, MemoryMLP

    def model(ff_mult: float) -> nn.Module:
        made: nn.Module = MemoryAsContextTransformer(
            num_tokens=shape.vocab_size,
            dim=WIDTH,
            depth=LAYERS,
            segment_len=shape.segment,
            dim_head=WIDTH // HEADS,
            heads=HEADS,
            ff_mult=ff_mult,
            num_residual_streams=1,
            neural_memory_segment_len=shape.segment,
            neural_memory_layers=(LAYERS,),
            neural_memory_model=MemoryMLP(dim=WIDTH // HEADS, depth=2, expansion_factor=2.0),
            neural_memory_kwargs={"dim_head": WIDTH // HEADS, "heads": HEADS, "qk_rmsnorm": True},
        )
        return made

    with torch.device("meta"):
        wanted = num_parameters(Ltm(ltm_config(BANK, shape, INNER)))
    factors = [quarter / 4 for quarter in range(1, 17)]
    chosen = model(min(factors, key=lambda factor: abs(num_parameters(model(factor)) - wanted)))
    for parameter in chosen.parameters():  # some are one value, expanded, which no optimiser can write
        parameter.data = parameter.data.clone(memory_format=torch.contiguous_format)
    return chosen
