"""Let requests begin at what a model remembers of a text, rather than at nothing.

The tokens of that text are not there, only the state after them. UNREAD stands for each, so that places in the sequence
are what they are for the model. No step reads them.
"""

import hashlib
from dataclasses import dataclass

import torch

from whet.errors import InputsError, RequestError
from whet.models.memory_bank.served_memory import ServedMemory
from whet.models.memory_bank.state import LtmState
from whet.models.step import ServedModel

UNREAD = -1


@dataclass(frozen=True, eq=False)
class Beginning:
    """Hold a state at which requests begin. Nobody changes it. `key` is a hash of all that it holds."""

    state: LtmState
    key: bytes

    @property
    def num_tokens(self) -> int:
        return self.state.num_tokens


def memory_of(model: ServedModel | None) -> ServedMemory:
    """Return a model as one whose states can be read and written.

    Raises:
        RequestError: It is of a family that keeps no such states.
    """
    if isinstance(model, ServedMemory):
        return model
    raise RequestError(
        f"{type(model).__name__} keeps no state to look at, to save or to begin at: an engine does so for models with "
        "long-term memory (model_type ltm). Send the whole text: prefix caching finds what was read before",
        param="state",
    )


def beginning(model: ServedModel | None, state: LtmState) -> Beginning:
    """Check a state, and return a copy of it that requests begin at.

    Raises:
        RequestError: The model cannot go on from the state.
    """
    memory = memory_of(model)
    if not isinstance(state, LtmState):
        raise RequestError(
            f"state is a {type(state).__name__}: give what engine.memory.read or engine.memory.load returned"
        )
    if not state.num_tokens:
        raise RequestError("the state has read no tokens: leave it out, and begin at nothing", param="state")
    try:
        memory.check_state(state)
    except InputsError as error:
        raise RequestError(str(error), param="state") from error
    own = state.detach().clone()
    digest = hashlib.sha256(str(own.num_tokens).encode())
    for layer in own.layers:
        for name, tensor in layer.tensors().items():
            digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)} ".encode())
            digest.update(tensor.cpu().flatten().view(torch.uint8).numpy().tobytes())
    return Beginning(own, digest.digest())
