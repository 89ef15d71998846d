"""Hold what a selective state-space model remembers of the tokens that it has read: a few numbers of fixed size.

Shape suffixes: B batch, S = conv_kernel - 1 inputs, C convolved channels, H heads, P channels of a head, N states.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from whet.errors import InputsError
from whet.models.selective.config import SelectiveConfig
from whet.models.state_files import SavedState


@dataclass
class LayerState:
    """Hold the state of one layer.

    Attributes:
        conv_BSC: The last inputs of the convolution.
        scan: The states of the scan, float32: [B, D, N] of Mamba-1, [B, H, P, N] of Mamba-2.
    """

    conv_BSC: Tensor
    scan: Tensor

    def tensors(self) -> dict[str, Tensor]:
        return {"conv": self.conv_BSC, "scan": self.scan}


@dataclass
class SelectiveState(SavedState):
    """Hold the state of B sequences, one LayerState for each layer. A model replaces these as it reads tokens."""

    FORMAT: ClassVar[str] = "whet selective state 1"

    layers: list[LayerState]
    num_tokens: int = 0

    @classmethod
    def layer_of(cls, tensors: dict[str, Tensor]) -> LayerState:
        return LayerState(tensors["conv"], tensors["scan"])

    @property
    def batch_size(self) -> int:
        return self.layers[0].scan.shape[0]

    def rows(self, indices: list[int]) -> "SelectiveState":
        """Return a copy that holds some of the sequences, in this order."""
        return self.changed(lambda tensor: tensor[indices])


def new_state(config: SelectiveConfig, batch_size: int, dtype: torch.dtype, device: torch.device) -> SelectiveState:
    """Return the state before the first token: zeros.

    Args:
        dtype: The type of the convolution's inputs. The scan's states are float32 (float64 for float64).
    """
    conv, scan = _shapes(config, batch_size)
    wide = torch.promote_types(dtype, torch.float32)
    layers = [
        LayerState(torch.zeros(conv, dtype=dtype, device=device), torch.zeros(scan, dtype=wide, device=device))
        for _ in range(config.num_hidden_layers)
    ]
    return SelectiveState(layers)


def check_state(state: SelectiveState, config: SelectiveConfig, batch_size: int) -> None:
    """Raise InputsError unless a state is of such a model and of so many sequences."""
    conv, scan = _shapes(config, batch_size)
    fits = all(layer.conv_BSC.shape == conv and layer.scan.shape == scan for layer in state.layers)
    if len(state.layers) != config.num_hidden_layers or not fits:
        raise InputsError(
            f"the state is not one of {batch_size} sequences of this model, which has {config.num_hidden_layers} "
            f"layers of {list(conv)} and {list(scan)}; make one with model.new_state(batch_size={batch_size})"
        )


def _shapes(config: SelectiveConfig, batch_size: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    conv = (batch_size, config.conv_kernel - 1, config.conv_size)
    if config.has_heads:
        return conv, (batch_size, config.num_heads, config.head_dim, config.state_size)
    return conv, (batch_size, config.intermediate_size, config.state_size)
