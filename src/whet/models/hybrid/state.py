"""Hold what a hybrid model remembers of the tokens that it has read: states of fixed size, keys and values.

Shape suffixes: B batch, S = taps - 1 inputs, C convolved channels, K key-value heads, T tokens read, H head width.
"""

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from whet.errors import InputsError
from whet.models.hybrid.config import HybridConfig
from whet.models.selective.state import LayerState
from whet.models.state_files import SavedState


@dataclass
class HybridLayerState:
    """Hold the state of one layer.

    Attributes:
        recurrent: The state of Mamba-2 or of a short convolution, whose scan is empty. None where the layer has none.
        keys_BKTH: The keys of attention. None where the layer has none.
    """

    recurrent: LayerState | None = None
    keys_BKTH: Tensor | None = None
    values_BKTH: Tensor | None = None

    def copy(self) -> "HybridLayerState":
        """Return a state that holds the same tensors, of which each may be replaced."""
        return replace(self, recurrent=None if self.recurrent is None else replace(self.recurrent))

    def tensors(self) -> dict[str, Tensor]:
        known = {"keys": self.keys_BKTH, "values": self.values_BKTH}
        recurrent = {} if self.recurrent is None else self.recurrent.tensors()
        return recurrent | {name: tensor for name, tensor in known.items() if tensor is not None}


@dataclass
class HybridState(SavedState):
    """Hold the state of B sequences, one HybridLayerState for each layer. A model replaces the tensors as it reads."""

    FORMAT: ClassVar[str] = "whet hybrid state 1"
    NUMBERS: ClassVar[tuple[str, ...]] = ("batch_size", "num_tokens")

    layers: list[HybridLayerState]
    batch_size: int
    num_tokens: int = 0

    @classmethod
    def layer_of(cls, tensors: dict[str, Tensor]) -> HybridLayerState:
        recurrent = LayerState(tensors["conv"], tensors["scan"]) if {"conv", "scan"} & tensors.keys() else None
        if not {"keys", "values"} & tensors.keys():
            return HybridLayerState(recurrent)
        return HybridLayerState(recurrent, tensors["keys"], tensors["values"])

    def copy(self) -> "HybridState":
        """Return a state to go on from here twice. Tensors are replaced and never changed, so that they are shared."""
        return replace(self, layers=[layer.copy() for layer in self.layers])


def new_state(config: HybridConfig, batch_size: int, dtype: torch.dtype, device: torch.device) -> HybridState:
    """Return the state before the first token.

    Args:
        dtype: The type of keys, values and inputs of convolutions. The scans' states are float32 (float64 for float64).
    """
    wide = torch.promote_types(dtype, torch.float32)
    decoder, layers = config.decoder, []
    for index, mixers in enumerate(config.mixers):
        layer = HybridLayerState()
        if (shapes := config.state_shapes(index)) is not None:
            conv, scan = ((batch_size, *shape) for shape in shapes)
            layer.recurrent = LayerState(
                torch.zeros(conv, dtype=dtype, device=device), torch.zeros(scan, dtype=wide, device=device)
            )
        if "attention" in mixers:
            none = (batch_size, decoder.num_key_value_heads, 0, decoder.head_dim)
            layer.keys_BKTH = layer.values_BKTH = torch.zeros(none, dtype=dtype, device=device)
        layers.append(layer)
    return HybridState(layers, batch_size)


def check_state(state: HybridState, config: HybridConfig, batch_size: int) -> None:
    """Raise InputsError unless a state is of such a model and of so many sequences."""
    meta = new_state(config, batch_size, torch.float32, torch.device("meta"))
    fits = state.batch_size == batch_size and len(state.layers) == len(meta.layers)
    if not fits or not all(
        _fits(found, wanted, state.num_tokens) for found, wanted in zip(state.layers, meta.layers, strict=True)
    ):
        raise InputsError(
            f"the state is not one of {batch_size} sequences of this model; make one with "
            f"model.new_state(batch_size={batch_size})"
        )


def _fits(found: HybridLayerState, wanted: HybridLayerState, num_tokens: int) -> bool:
    """Return whether the shapes of a layer's state are those of a new one, with keys and values of so many tokens."""
    shapes = {name: tuple(tensor.shape) for name, tensor in wanted.tensors().items()}
    for name in ("keys", "values"):
        if name in shapes:
            B, K, _, H = shapes[name]
            shapes[name] = (B, K, num_tokens, H)
    return {name: tuple(tensor.shape) for name, tensor in found.tensors().items()} == shapes
