"""Hold what a long-term-memory decoder remembers of the tokens that it has read, apart from its weights.

Shape suffixes: B batch, K key-value heads, P tokens of the segment so far, H head width, S slots, C memory width.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from whet.errors import InputsError
from whet.models.memory_bank.attention import SegmentState
from whet.models.memory_bank.bank import BankState
from whet.models.memory_bank.config import LtmConfig
from whet.models.memory_bank.inference_learning import TestTimeState
from whet.models.state_files import SavedState

_PARTS: dict[str, type[Any]] = {"segment": SegmentState, "bank": BankState, "test_time": TestTimeState}


@dataclass
class LayerState:
    """Hold the state of one layer, with None for what it does not have."""

    segment: SegmentState
    bank: BankState | None = None
    test_time: TestTimeState | None = None

    def tensors(self) -> dict[str, Tensor]:
        """Return all tensors by name, such as `bank.rows_BSR`."""
        parts = {name: part for name in _PARTS if (part := getattr(self, name)) is not None}
        return {f"{name}.{key}": value for name, part in parts.items() for key, value in vars(part).items()}

    def changed(self, change: Callable[[Tensor], Tensor]) -> "LayerState":
        return layer_state({name: change(value) for name, value in self.tensors().items()})


def layer_state(tensors: dict[str, Tensor]) -> LayerState:
    """Return a layer's state from its tensors by name.

    Raises:
        KeyError: A tensor is missing, or unknown.
    """
    parts = {}
    for name, kind in _PARTS.items():
        known = {key.removeprefix(f"{name}."): value for key, value in tensors.items() if key.startswith(f"{name}.")}
        if known or name == "segment":
            if wrong := sorted(known.keys() ^ kind.__dataclass_fields__.keys()):
                raise KeyError(f"{name}.{wrong[0]}")
            parts[name] = kind(**known)
    return LayerState(**parts)


@dataclass
class LtmState(SavedState):
    """Hold the state of B sequences, one LayerState for each layer.

    Attributes:
        layers: The layers' states. A model replaces them as it reads tokens.
        model: A digest of the model that began to read, in `step` or in an engine; empty where it is not known.
    """

    FORMAT: ClassVar[str] = "whet ltm state 1"
    WORDS: ClassVar[tuple[str, ...]] = ("model",)

    layers: list[LayerState]
    num_tokens: int = 0
    model: str = ""

    @classmethod
    def layer_of(cls, tensors: dict[str, Tensor]) -> LayerState:
        return layer_state(tensors)

    @property
    def batch_size(self) -> int:
        return self.layers[0].segment.keys_BKPH.shape[0]

    @property
    def banks(self) -> list[BankState]:
        return [layer.bank for layer in self.layers if layer.bank is not None]

    def rows(self, indices: list[int]) -> "LtmState":
        """Return a copy that holds some of the sequences, in this order."""
        return self.changed(lambda tensor: tensor[indices])

    def detach(self) -> "LtmState":
        return self.changed(Tensor.detach)


def check_state(state: LtmState, config: LtmConfig, batch_size: int) -> None:
    """Raise InputsError unless a state is of such a model and of so many sequences."""
    if len(state.layers) == config.num_hidden_layers and all(
        _fits(layer, config, batch_size, index, state.num_tokens) for index, layer in enumerate(state.layers)
    ):
        return
    raise InputsError(
        f"the state is not one of {batch_size} sequences of this model, which has {config.num_hidden_layers} layers "
        f"with banks of {config.min_memory_slots} to {config.max_memory_slots} slots of {config.memory_width} numbers; "
        f"make one with model.new_state({batch_size})"
    )


def _are_slots(ids_BS: Tensor, most: int) -> bool:
    """Return whether ids are of slots, each there once in a sequence, or -1 for none."""
    if ids_BS.dtype is not torch.int64 or ids_BS.dim() != 2:
        return False
    if ids_BS.numel() and not -1 <= int(ids_BS.min()) <= int(ids_BS.max()) < most:
        return False
    rows = [[number for number in row if number >= 0] for row in ids_BS.tolist()]
    return all(len(set(row)) == len(row) for row in rows)


def _fits(layer: LayerState, config: LtmConfig, B: int, index: int, num_tokens: int) -> bool:
    has_memory = config.has_memory(index)
    P, heads = num_tokens % config.attention_block_size, config.num_key_value_heads
    wanted: dict[str, tuple[int, ...]] = {"segment.keys_BKPH": (B, heads, P, config.head_dim)}
    wanted["segment.values_BKPH"] = wanted["segment.keys_BKPH"]
    C, found = config.memory_width, layer.tensors()
    if has_memory and config.memory_slots:
        S = found["bank.rows_BSR"].shape[1] if layer.bank is not None and layer.bank.rows_BSR.dim() == 3 else 0
        if not config.min_memory_slots <= S <= config.max_memory_slots:
            return False
        names = {f"bank.{name}": (B, S) for name in ("ages_BS", "usage_BS", "mass_BS", "ids_BS", "top_BS", "total_BS")}
        wanted |= {"bank.rows_BSR": (B, S, C + 2), "bank.pooled_BSC": (B, S, C + 1), **names}
        if not _are_slots(found["bank.ids_BS"], config.max_memory_slots):
            return False
    if has_memory and config.test_time_memory != "none":
        heads, depth = config.test_time_heads, 2 if config.test_time_memory == "mlp" else 1
        shape = (B, heads, depth, C // heads, C // heads)
        wanted |= {f"test_time.{name}": shape for name in ("start_BHPCC", "now_BHPCC", "momentum_BHPCC")}
    if not all(tensor.is_floating_point() for name, tensor in found.items() if name != "bank.ids_BS"):
        return False
    return {name: tuple(tensor.shape) for name, tensor in found.items()} == wanted
