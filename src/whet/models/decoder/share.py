"""Divide a decoder of the Llama family among processes: each has some heads, a part of the MLPs and of the vocabulary.

What each computes of attention and MLP is added before it goes into the stream (Shoeybi et al., 2019,
arXiv:1909.08053).
"""

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from whet.models.decoder.config import DecoderConfig

_DIVIDED = ("num_attention_heads", "num_key_value_heads", "intermediate_size")
_BY_OUTPUTS = ("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj")
_BY_INPUTS = ("o_proj", "down_proj")
_OF_FIRST = tuple(f".{name}.bias" for name in _BY_INPUTS)
HEAD = "lm_head.weight"
EMBEDDING = "embed_tokens.weight"


@dataclass(frozen=True)
class Share:
    """Name one of the processes that a decoder is divided among; `rank` counts from 0."""

    rank: int
    num_ranks: int

    def of(self, size: int) -> slice:
        """Return which of so many rows or columns this process has. Together they have each once."""
        return slice(size * self.rank // self.num_ranks, size * (self.rank + 1) // self.num_ranks)


def why_indivisible(config: DecoderConfig, num_ranks: int) -> str | None:
    """Return why a decoder cannot be divided among so many processes; None where it can."""
    for name in _DIVIDED:
        if getattr(config, name) % num_ranks:
            return f"its {name} is {getattr(config, name)}, which is not a multiple of {num_ranks}"
    if config.vocab_size < num_ranks:
        return f"its vocabulary has only {config.vocab_size} tokens"
    return None


def divided_config(config: DecoderConfig, share: Share) -> DecoderConfig:
    """Return the config of a share. The widths of the stream and the vocabulary stay."""
    return config.model_copy(update={name: getattr(config, name) // share.num_ranks for name in _DIVIDED})


def divided_weights(config: DecoderConfig, weights: Mapping[str, Tensor], share: Share) -> dict[str, Tensor]:
    """Return the weights of a share by name, as views. A tied head becomes a weight of its own.

    Biases that are added after a sum are the first process's alone, and so is the embedding.
    """
    parts = {}
    for name, weight in weights.items():
        if share.rank > 0 and (name == EMBEDDING or name.endswith(_OF_FIRST)):
            continue
        parts[name] = _part(name, weight, share)
    parts[HEAD] = weights.get(HEAD, weights[EMBEDDING])[share.of(config.vocab_size)]
    return parts


def _part(name: str, weight: Tensor, share: Share) -> Tensor:
    module = name.split(".")[-2]
    if module in _BY_OUTPUTS:
        return weight[share.of(len(weight))]
    if module in _BY_INPUTS and weight.dim() == 2:
        return weight[:, share.of(weight.shape[1])]
    return weight
