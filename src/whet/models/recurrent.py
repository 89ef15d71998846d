"""Define how readable models with a state are called: with whole texts, with packed documents, or step by step.

Shape suffixes: B batch, T tokens, D model width, V vocabulary.
"""

from abc import abstractmethod
from typing import Generic, TypeVar

import torch
from torch import Tensor, nn

from whet.errors import InputsError

State = TypeVar("State")


class Recurrent(nn.Module, Generic[State]):
    """Predict the next token after each token, from what a state holds and from the tokens."""

    lm_head: nn.Linear

    def forward(self, input_ids_BT: Tensor, state: State | None = None, documents_BT: Tensor | None = None) -> Tensor:
        """Map token ids, int64 [B, T] without padding, to the logits of the token after each [B, T, V].

        Args:
            state: What has been read before. It is replaced by what has been read after the tokens. None: the tokens
                begin sequences.
            documents_BT: The number of each token's document, for rows that hold several. Each of them begins a
                sequence. None: a row is one.

        Raises:
            InputsError: The state does not fit the model or the number of sequences, or comes with documents.
        """
        if state is not None and documents_BT is not None:
            raise InputsError("documents begin without a state; leave one of state and documents_BT out")
        return self._logits(self._read(input_ids_BT, state, documents_BT))

    @torch.no_grad()
    def step(self, tokens_BT: Tensor, state: State) -> Tensor:
        """Read tokens, one or many of each sequence, and return the logits after the last one [B, V].

        The tokens follow those that the state has read. It is replaced by what has been read after them.

        Raises:
            InputsError: The state does not fit the model or the number of sequences.
        """
        return self._logits(self._read(tokens_BT, state, None)[:, -1])

    @abstractmethod
    def _read(self, input_ids_BT: Tensor, state: State | None, documents_BT: Tensor | None) -> Tensor:
        """Return the normalised output of the last layer [B, T, D]."""

    def _logits(self, normed: Tensor) -> Tensor:
        logits: Tensor = self.lm_head(normed)
        return logits
