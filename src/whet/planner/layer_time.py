"""Say how long a chip computes one layer of a micro-batch, or the logits: matrices, attention, small operators."""

import math
from dataclasses import dataclass
from functools import lru_cache

from whet.planner.cluster import Chip
from whet.planner.curves import Constants, clock_share
from whet.planner.layout import Layout, Work
from whet.planner.model_shape import ModelShape
from whet.planner.operations import attention_operations, recomputed_share
from whet.planner.parameters import attention_matrices, key_value_size, query_size, seen_width, value_size

# Backward passes of fused attention do five products for the two of forward (Dao, 2023, arXiv:2307.08691).
ATTENTION_BACKWARD = 2.5
# Elementwise operators read gradients beside what was kept: 3 tensors for 2 in a norm, 5 for 3 in a gated unit.
ELEMENTWISE_BACKWARD = 1.5
# Bytes for each number that becomes fp8: read once more after its scale is known, written in both orders.
FP8_CAST = 4
# Bytes for each pair of tokens and head that attention without a fused kernel moves: scores written, softmax read and
# written, a mask, dropout read and written, and what the second product reads; backward mirrors it.
SCORES_FORWARD, SCORES_BACKWARD = 2 + 4 + 1 + 4 + 2, 2 + 4 + 1 + 6 + 2


@dataclass(frozen=True)
class Speeds:
    """Hold what a chip does a second with a layout's programs.

    Attributes:
        linear: Operations of the layers' matrices, in the layout's precision.
        matrix: Operations of other matrices, in 16 bits.
        attention: Operations of fused attention.
        memory: Bytes that operators move.
        passes: How often elementwise operators move what a fused kernel moves once.
        is_fp8: Whether the layers' matrices are multiplied in fp8.
    """

    linear: float
    matrix: float
    attention: float
    memory: float
    passes: float
    is_fp8: bool


def speeds(chip: Chip, layout: Layout, constants: Constants) -> Speeds:
    """Return a chip's speeds: its maker's peaks, the fitted shares of them, and the clock that its power allows."""
    clock = clock_share(chip)
    half = chip.flops.get("bfloat16") or chip.flops.get("float16") or max(chip.flops.values())
    matrix = half * constants.matrix_efficiency * clock
    linear, attention = matrix, half * constants.attention_efficiency * clock
    is_fp8 = layout.precision == "fp8" and "fp8" in chip.flops
    if is_fp8:
        linear = chip.flops["fp8"] * constants.matrix_efficiency * constants.fp8_share * clock
    elif layout.precision == "float32":
        single = chip.flops.get("tfloat32") or chip.flops.get("float32") or half / 8
        linear, matrix = (single * constants.matrix_efficiency * clock,) * 2
    is_compiled = layout.software.startswith("torch") and layout.compiled
    return Speeds(
        linear=linear,
        matrix=matrix,
        attention=attention,
        memory=chip.bytes_per_s * constants.memory_efficiency,
        passes=1.0 if is_compiled else constants.passes,
        is_fp8=is_fp8,
    )


@dataclass(frozen=True)
class LayerTime:
    """Hold the seconds of one layer on one chip, without messages.

    Attributes:
        attention: The part of forward that attention's scores and sums take, which hides the messages of rings.
    """

    forward: float
    backward: float
    recompute: float
    attention: float


def matrix_s(tokens: float, rows: float, columns: float, rate: float, memory: float, size: int, made: int) -> float:
    """Return the seconds of a product [tokens, rows] x [rows, columns].

    Its operations hide its bytes, and not wholly where both take as long: the root of the sum of their squares is
    between the longer one and their sum.

    Args:
        size: The bytes of a number that is multiplied.
        made: The bytes of a number of the product.
    """
    moved = size * (tokens * rows + rows * columns) + made * tokens * columns
    return math.hypot(2 * tokens * rows * columns / rate, moved / memory)


def _linear_s(shape: ModelShape, layout: Layout, tokens: float, is_sparse: bool, speed: Speeds) -> float:
    """Return the forward seconds of a layer's matrices on one chip."""
    hidden, tensor, rate, memory = shape.hidden_size, layout.tensor, speed.linear, speed.memory
    sizes = (1 if speed.is_fp8 else layout.number_bytes, layout.number_bytes)
    pairs = attention_matrices(shape)
    total = sum(matrix_s(tokens, rows, columns / tensor, rate, memory, *sizes) for rows, columns in pairs[:-1])
    rows, columns = pairs[-1]
    total += matrix_s(tokens, rows / tensor, columns, rate, memory, *sizes)
    wide = 2 if shape.is_gated else 1
    experts = shape.experts
    if not is_sparse or experts is None:
        inner = shape.intermediate_size / tensor
        return (
            total
            + matrix_s(tokens, hidden, wide * inner, rate, memory, *sizes)
            + matrix_s(tokens, inner, hidden, rate, memory, *sizes)
        )
    local = experts.number / layout.expert
    each = tokens * experts.per_token / local
    inner = experts.intermediate_size / tensor
    total += local * matrix_s(each, hidden, wide * inner, rate, memory, *sizes)
    total += local * matrix_s(each, inner, hidden, rate, memory, *sizes)
    if experts.shared:
        total += matrix_s(tokens, hidden, wide * inner * experts.shared, rate, memory, *sizes)
        total += matrix_s(tokens, inner * experts.shared, hidden, rate, memory, *sizes)
    return total + matrix_s(tokens / tensor, hidden, experts.number, speed.matrix, memory, sizes[1], sizes[1])


def _elementwise_bytes(shape: ModelShape, layout: Layout, is_sparse: bool) -> float:
    """Return the bytes a token that fused elementwise operators of a layer move forward."""
    hidden, tensor, number = shape.hidden_size, layout.tensor, layout.number_bytes
    spread = tensor if layout.sequence_parallel else 1
    inner = seen_width(shape, is_sparse)
    # Two norms read and write; two sums read two tensors and write one; dropout writes masks.
    whole = number * hidden * (4 + 6) + (2 * hidden if shape.drops else 0)
    turned = 0 if shape.num_positions else 2 * number * (query_size(shape) + key_value_size(shape) / 2)
    divided = number * inner * (3 if shape.is_gated else 2) + turned
    return whole / spread + divided / tensor


def _ordered_bytes(shape: ModelShape, layout: Layout) -> float:
    """Return the bytes a token that are moved to put tokens in the order of experts and back, by two fused kernels."""
    if shape.experts is None:
        return 0.0
    spread = layout.tensor if layout.sequence_parallel else 1
    return layout.number_bytes * shape.hidden_size * 5 * shape.experts.per_token / spread


def _cast_bytes(shape: ModelShape, layout: Layout, is_sparse: bool) -> float:
    """Return the bytes a token that are moved to make fp8 of what a layer's matrices multiply, each in one kernel."""
    numbers = 2 * shape.hidden_size + (value_size(shape) + seen_width(shape, is_sparse)) / layout.tensor
    return FP8_CAST * numbers


@lru_cache(maxsize=8192)
def layer_time(shape: ModelShape, layout: Layout, work: Work, is_sparse: bool, speed: Speeds) -> LayerTime:
    """Return how long one chip computes one layer of a micro-batch."""
    tokens = layout.micro_batch_tokens(work)
    linear = _linear_s(shape, layout, tokens, is_sparse, speed)
    moved = _elementwise_bytes(shape, layout, is_sparse) * speed.passes
    moved += _cast_bytes(shape, layout, is_sparse) if speed.is_fp8 else 0.0
    moved += _ordered_bytes(shape, layout) if is_sparse else 0.0
    small = tokens * moved / speed.memory
    pairs = attention_operations(shape, work.sequence_length, layout.fused_attention) * tokens / layout.tensor
    if layout.fused_attention:
        attention = pairs / speed.attention
        attention_back = ATTENTION_BACKWARD * attention
    else:
        scores = tokens * work.sequence_length * shape.num_heads / layout.tensor
        attention = pairs / speed.matrix + SCORES_FORWARD * scores / speed.memory
        attention_back = 2 * pairs / speed.matrix + SCORES_BACKWARD * scores / speed.memory
    matrices, inner = recomputed_share(shape, layout, is_sparse)
    again = matrices * linear + inner * attention
    if layout.recompute in ("full", "operators"):
        again += small
    return LayerTime(
        forward=linear + attention + small,
        backward=2 * linear + attention_back + ELEMENTWISE_BACKWARD * small,
        recompute=again,
        attention=attention,
    )


@lru_cache(maxsize=8192)
def head_time(shape: ModelShape, layout: Layout, work: Work, speed: Speeds) -> tuple[float, float]:
    """Return how long one chip computes the logits and the loss of a micro-batch, forward and backward."""
    tokens = layout.micro_batch_tokens(work)
    vocab = shape.vocab_size / layout.tensor
    number = layout.number_bytes
    product = matrix_s(tokens, shape.hidden_size, vocab, speed.matrix, speed.memory, number, number)
    # The loss reads 16-bit logits and writes float32 ones, their logarithms, and the gradients of both.
    each = 2 * number if layout.fused_loss else number + 3 * 4
    loss = tokens * vocab * each / speed.memory
    return product + loss, 2 * product + loss


def accumulation_s(parameters: float, layout: Layout, speed: Speeds) -> float:
    """Return the seconds in which a micro-batch's gradients are added to those before: read twice, written once."""
    return parameters * (layout.number_bytes + 2 * layout.bytes.gradient) / speed.memory


@lru_cache(maxsize=8192)
def extra_time(shape: ModelShape, layout: Layout, work: Work, speed: Speeds) -> tuple[float, float]:
    """Return how long one chip computes the layers that predict later tokens, forward and backward."""
    if not shape.num_extra_layers:
        return 0.0, 0.0
    tokens = layout.micro_batch_tokens(work)
    layer = layer_time(shape, layout, work, shape.experts is not None, speed)
    head = head_time(shape, layout, work, speed)
    hidden, each = shape.hidden_size, layout.number_bytes
    joined = matrix_s(tokens, 2 * hidden, hidden / layout.tensor, speed.linear, speed.memory, each, each)
    number = shape.num_extra_layers
    return number * (layer.forward + head[0] + joined), number * (layer.backward + head[1] + 2 * joined)
