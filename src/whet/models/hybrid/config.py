"""Describe a hybrid model: which mixers each layer has, their sizes, and the factors that apply.

The config.json of each family is mapped onto this one type by whet.models.hybrid.config_files.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from whet.models.decoder.config import DecoderConfig
from whet.models.selective.config import SelectiveConfig

Mixer = Literal["attention", "mamba", "conv"]
Mlp = Literal["silu gate", "squared relu"]
GateOrder = Literal["gate, then norm", "norm, then gate", "gate"]


@dataclass(frozen=True)
class Multipliers:
    """Hold the factors that a family applies. Those of 1 change nothing.

    Attributes:
        scores: Multiplies the products of queries and keys.
        mamba_parts: Multiply the parts that Mamba-2 projects its input to: z, x, B, C and step sizes.
        mlp_gate: Multiplies the gate of the MLP before SiLU.
    """

    scores: float
    embedding: float = 1.0
    logits: float = 1.0
    attention_in: float = 1.0
    attention_out: float = 1.0
    mamba_in: float = 1.0
    mamba_parts: tuple[float, float, float, float, float] = (1.0,) * 5
    mamba_out: float = 1.0
    mlp_gate: float = 1.0
    mlp_out: float = 1.0


@dataclass(frozen=True)
class HybridConfig:
    """Hold what decides the computation of a hybrid model.

    Attributes:
        keys: The keys of its config.json, as transformers writes them.
        mixers: The mixers of each layer. Several of them read the same input, and their outputs are added.
        mlp: What the MLPs compute: silu(gate) * up, or relu(up) squared.
        mlp_layers: The layers that have an MLP; None for all.
        decoder: A decoder with the same widths, attention, MLP, rotary positions, vocabulary and number of layers.
        mamba: A model of Mamba-2 with the same mixers; None if no layer has one.
        gate_order: In which order Mamba-2's output is gated and normalised.
        conv_taps: The taps of short convolutions.
        conv_bias: Whether short convolutions and their projections add biases.
    """

    model_type: str
    keys: Mapping[str, Any]
    mixers: tuple[tuple[Mixer, ...], ...]
    decoder: DecoderConfig
    multipliers: Multipliers
    mlp: Mlp = "silu gate"
    mlp_layers: frozenset[int] | None = None
    has_rotary: bool = True
    mamba: SelectiveConfig | None = None
    gate_order: GateOrder = "gate, then norm"
    mamba_out_bias: bool = False
    conv_taps: int = 1
    conv_bias: bool = False

    @property
    def vocab_size(self) -> int:
        return self.decoder.vocab_size

    @property
    def hidden_size(self) -> int:
        return self.decoder.hidden_size

    @property
    def num_hidden_layers(self) -> int:
        return len(self.mixers)

    @property
    def max_position_embeddings(self) -> int:
        return self.decoder.max_position_embeddings

    @property
    def tie_word_embeddings(self) -> bool:
        return self.decoder.tie_word_embeddings

    def layers_with(self, mixer: Mixer) -> tuple[int, ...]:
        return tuple(index for index, mixers in enumerate(self.mixers) if mixer in mixers)

    def has_mlp(self, layer: int) -> bool:
        return self.mlp_layers is None or layer in self.mlp_layers

    def state_shapes(self, layer: int) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
        """Return the shapes of a layer's state of fixed size, for one sequence: of convolution and scan.

        None if the layer keeps none. A short convolution has no scan: its shape is (0,).
        """
        if "conv" in self.mixers[layer]:
            return (self.conv_taps - 1, self.hidden_size), (0,)
        if "mamba" not in self.mixers[layer] or self.mamba is None:
            return None
        mamba = self.mamba
        return (mamba.conv_kernel - 1, mamba.conv_size), (mamba.num_heads, mamba.head_dim, mamba.state_size)
