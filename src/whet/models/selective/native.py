"""Run a selective state-space model for an engine with whet's own kernels: weights are packed once, a step is one call.

Matrices have float32, bf16, int8 or int4 weights; activations and states are float32. A sequence's logits are the same,
bit for bit, whatever other sequences are in the step and however its tokens are divided into steps.

Shape suffixes: D channels, N states.
"""

import ctypes
import math
from collections.abc import Mapping
from functools import partial

import torch
from torch import Tensor

from whet.kernels.build import Library
from whet.kernels.linear.packed import LANES, Kind
from whet.kernels.linear.places import PRIVATE, Place
from whet.kernels.selective_model.structs import LayerStruct, ModelStruct, TokensStruct
from whet.models.native_model import NativeModel
from whet.models.native_weights import NativeWeights, Tensors, weight_and_bias
from whet.models.options import checked_length
from whet.models.selective.config import SelectiveConfig
from whet.models.selective.native_states import NativeStates
from whet.models.selective.state import SelectiveState
from whet.models.step import Allocation, StepBatch


class NativeSelective(NativeModel):
    """Run a selective state-space model as a ServedModel.

    Args:
        weights: The tensors by name, from whet.models.selective.files.read_weights. They are copied.
        kind: The format of all matrices, including the head. Convolutions, rates and norms are float32.
        place: The memory that the weights lie in.

    Raises:
        OptionError: max_model_len is out of range.
    """

    bytes_per_block = 0

    def __init__(
        self,
        config: SelectiveConfig,
        weights: Mapping[str, Tensor],
        library: Library,
        *,
        kind: Kind,
        max_model_len: int | None = None,
        place: Place = PRIVATE,
    ) -> None:
        super().__init__(library, "selective", config.vocab_size, kind, place)
        self.config = config
        self.max_model_len = checked_length(max_model_len)
        self._states = NativeStates(config)
        self.bytes_per_state, self.bytes_per_draft = self._states.bytes_per_state, self._states.bytes_per_draft
        self._layers = (LayerStruct * config.num_hidden_layers)()
        for index, layer in enumerate(self._layers):
            of = partial(lambda index, name: weights.get(f"layers.{index}.mixer.{name}"), index)
            fill_mixer(layer, self._weights, config, of)
            layer.norm = self._weights.floats(weights[f"layers.{index}.norm.weight"])
        self._struct = selective_struct(config)
        self._struct.vocab = config.vocab_size
        self._struct.layers = self._layers
        self._struct.ones = self._weights.floats(torch.ones(max(config.time_step_rank, config.state_size)))
        self._weights.put_ends(self._struct, weights, "embeddings.weight", "norm_f.weight")

    def allocate(self, room: Allocation) -> None:
        self._states.allocate(room, self._layers)
        self._struct.num_drafts = room.num_drafts
        self._open(self._struct)

    def copy_state(self, source_row: int, target_row: int) -> None:
        self._states.copy(source_row, target_row)

    def step(self, batch: StepBatch) -> Tensor:
        segments = self._states.segments(batch)
        tokens = TokensStruct(len(batch.token_ids), len(segments), segments.ctypes.data)
        return self._run(batch, ctypes.byref(tokens))

    def read_state(self, row: int, num_tokens: int) -> SelectiveState:
        """Return a copy of a row's state, as the readable model has it, to be saved or to go on from.

        Raises:
            InputsError: Its sequence has read another number of tokens, or some of them are not settled.
        """
        return self._states.read(row, num_tokens)

    def write_state(self, row: int, state: SelectiveState) -> None:
        """Put the state of one sequence into a row, whose next step then goes on from it.

        Raises:
            InputsError: The state does not fit the model.
        """
        self._states.write(row, state)


def fill_mixer(layer: LayerStruct, packed: NativeWeights, config: SelectiveConfig, of: Tensors) -> None:
    """Pack the weights of a layer's mixer, and fill in its structure, but for the norm before it."""
    convolution, logs = of("conv1d.weight"), of("A_log")
    assert convolution is not None
    assert logs is not None
    layer.in_proj, layer.out_proj = packed.linear(of, "in_proj"), packed.linear(of, "out_proj")
    layer.conv_weight, layer.conv_bias = packed.floats(convolution[:, 0].T), packed.floats(of("conv1d.bias"))
    layer.d = packed.floats(of("D"))
    rates = -torch.exp(logs.float())
    if config.has_heads:
        layer.rates, layer.delta_bias = packed.floats(rates), packed.floats(of("dt_bias"))
        layer.gated_norm = packed.floats(of("norm.weight"))
        return
    steps, delta_bias = weight_and_bias(of, "dt_proj")
    layer.x_proj, layer.dt_proj = packed.linear(of, "x_proj"), packed.packed(steps, None)
    layer.delta_bias = packed.floats(delta_bias)
    layer.rates = packed.floats(_in_lanes(rates * math.log2(math.e)))


def selective_struct(config: SelectiveConfig) -> ModelStruct:
    """Return the structure of a model with its sizes, without layers, norms and vocabulary."""
    limits = config.time_step_limit if config.has_heads else (-math.inf, math.inf)
    return ModelStruct(
        per_head=config.has_heads,
        hidden=config.hidden_size,
        inner=config.intermediate_size,
        conv_size=config.conv_size,
        taps=config.conv_kernel,
        num_states=config.state_size,
        rank=config.time_step_rank,
        num_heads=config.num_heads,
        head_dim=config.head_dim,
        num_groups=config.n_groups,
        num_layers=config.num_hidden_layers,
        eps=config.layer_norm_epsilon,
        projection_eps=config.mixer_rms_eps if config.norms_projections else 0.0,
        delta_min=limits[0],
        delta_max=limits[1],
        out_factor=1.0,
    )


def _in_lanes(rates_DN: Tensor) -> Tensor:
    """Return rates in the order of the scan's registers, [strips, N, lanes]; lanes beyond the channels are 0."""
    D, N = rates_DN.shape
    padded = torch.zeros(-(-D // LANES) * LANES, N)
    padded[:D] = rates_DN
    laned: Tensor = padded.unflatten(0, (-1, LANES)).transpose(1, 2)
    return laned
