"""Say what an engine needs of a model with long-term memory, so that requests begin at states and leave states behind.

A state is of one model: with other weights it means nothing, though its shapes may fit. So states carry a digest.
"""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Mapping

import torch
from torch import Tensor

from whet.errors import InputsError
from whet.models.memory_bank.config import LtmConfig
from whet.models.memory_bank.state import LtmState, check_state

_SAMPLED = 1024  # numbers of each tensor: training changes nearly all of them
_FOR_TRAINING = {"gradient_checkpointing_granularity", "checkpoint_segments", "backpropagation_segments"}


def digest_of(config: LtmConfig, weights: Mapping[str, Tensor]) -> str:
    """Return a digest of the config and of some numbers of each tensor, the same for weights in float32 and in bf16."""
    digest = hashlib.sha256(config.model_dump_json(exclude=_FOR_TRAINING).encode())
    for name, weight in sorted(weights.items()):
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue  # files may leave it out
        numbers = weight.detach().reshape(-1)[:: max(1, weight.numel() // _SAMPLED)]
        digest.update(f"{name} {tuple(weight.shape)} ".encode())
        digest.update(numbers.bfloat16().view(torch.int16).cpu().numpy().tobytes())
    return digest.hexdigest()


class ServedMemory(ABC):
    """Give a ServedModel states that can be read from its rows and written to them, between steps."""

    memory_config: LtmConfig
    digest: str

    @abstractmethod
    def read_state(self, row: int, num_tokens: int | None = None) -> LtmState:
        """Return a copy of a row's state, as the readable model has it, to be looked at, saved, or to go on from.

        Args:
            num_tokens: The tokens that its sequence has read; None for those that are settled.

        Raises:
            InputsError: Its sequence has read another number of tokens, or some of them are not settled.
        """

    @abstractmethod
    def write_state(self, row: int, state: LtmState) -> None:
        """Put the state of one sequence into a row, whose next step then goes on from it.

        Raises:
            InputsError: The state does not fit the model.
        """

    def check_state(self, state: LtmState) -> None:
        """Check that a sequence can go on from a state. One that names no model is only checked by its shapes.

        Raises:
            InputsError: It is of another model, of several sequences, or not of numbers.
        """
        check_state(state, self.memory_config, 1)
        if state.model and state.model != self.digest:
            raise InputsError(
                "the state was made by another model, or by this one before its weights changed: "
                "load the model that made it, or let this one read the text"
            )
        if any(bool(tensor.isnan().any()) for layer in state.layers for tensor in layer.tensors().values()):
            raise InputsError("the state holds NaN: let the model read the text anew")
