"""Say what the chip that needs most memory holds: state by ZeRO's stages, activations by Megatron's formulas."""

from dataclasses import dataclass

from whet.planner.layout import Layout, Work
from whet.planner.model_shape import ModelShape
from whet.planner.operations import layer_products
from whet.planner.parameters import (
    Count,
    key_value_size,
    layer_count,
    num_sparse_layers,
    query_size,
    seen_width,
    stage_counts,
    stage_kinds,
    value_size,
)
from whet.planner.prediction import MemoryParts

HALF, WHOLE = 2, 4  # bytes of a number in 16 bits and in float32


@dataclass(frozen=True)
class Shards:
    """Hold over how many chips ZeRO divides the state: of dense parameters, and of routed experts."""

    dense: int
    experts: float


def shards(layout: Layout) -> Shards:
    group = layout.shard * layout.context
    return Shards(group, max(1.0, group / layout.expert))


def state_bytes(count: Count, layout: Layout) -> tuple[float, float, float]:
    """Return the bytes of parameters, gradients and state of one chip (Rajbhandari et al., 2020, figure 1)."""
    dense, experts = count.held(layout)
    group = shards(layout)
    whole, divided = dense + experts, dense / group.dense + experts / group.experts
    stage, size = layout.zero_stage, layout.bytes
    return (
        (divided if stage >= 3 else whole) * size.parameter,
        (divided if stage >= 2 else whole) * size.gradient,
        0.0 if layout.offload else (divided if stage >= 1 else whole) * size.state,
    )


def _mlp_bytes(shape: ModelShape, layout: Layout, is_sparse: bool) -> tuple[float, float]:
    """Return the bytes a token that the MLP keeps: undivided or by sequence parallelism, and divided by matrices."""
    hidden, inner, experts, each = shape.hidden_size, shape.intermediate_size, shape.experts, layout.number_bytes
    # Gate, up and their product; or what goes into the activation function, and what comes out of it.
    kept = 3 if shape.is_gated else 2
    if shape.is_gated and not layout.compiled and layout.software.startswith("torch"):
        kept += 1
    if is_sparse and experts is not None:
        routed = experts.per_token * (2 * hidden + kept * experts.intermediate_size / layout.tensor)
        shared = kept * experts.shared * experts.intermediate_size
        return each * (hidden + routed), each * shared
    return each * hidden, each * kept * inner


def _read_size(shape: ModelShape, layout: Layout) -> int:
    """Return the width of the keys and values that attention keeps.

    PyTorch's programs repeat them for all heads that share them; compiled ones repeat them again in backward.
    """
    if layout.compiled or not layout.software.startswith("torch") or shape.latent is not None:
        return key_value_size(shape)
    return query_size(shape) + value_size(shape)


def layer_bytes(shape: ModelShape, layout: Layout, work: Work, is_sparse: bool = False) -> float:
    """Return the bytes of activations that one layer keeps of a micro-batch (Korthikanti et al., 2022, section 4).

    With GELU, dropout and 16-bit numbers that is sbh(34 + 5as/h) bytes without any parallelism, sbh(10 + 24/t + 5as/ht)
    with tensor parallelism, and 34sbh/t with sequence parallelism and selective recomputation.
    """
    hidden, tensor, each = shape.hidden_size, layout.tensor, layout.number_bytes
    tokens = layout.micro_batch_tokens(work)
    spread = tensor if layout.sequence_parallel else 1
    if layout.recompute == "full":
        return each * hidden * tokens / spread
    if layout.recompute == "operators":
        return _operators_bytes(shape, layout, is_sparse) * tokens
    masks = 2 * hidden if shape.drops else 0
    around, inner = _mlp_bytes(shape, layout, is_sparse)
    # The inputs of two norms, of the first matrix, and the masks.
    whole = each * 3 * hidden + masks + around
    if spread > 1 and layout.software.startswith("torch"):
        # PyTorch keeps the gathered inputs of the first matrices; Megatron gathers them again.
        whole += 2 * each * hidden * (spread - 1)
    divided = each * (query_size(shape) + _read_size(shape, layout) + value_size(shape)) + inner
    if layout.fused_attention:
        divided += 4 * shape.num_heads
    elif layout.recompute != "selective":
        divided += (5 if shape.drops else 2) * shape.num_heads * work.sequence_length
    return tokens * (whole / spread + divided / tensor)


def _operators_bytes(shape: ModelShape, layout: Layout, is_sparse: bool) -> float:
    """Return the bytes a token that a layer keeps when all but attention and every second matrix is computed again."""
    hidden, tensor = shape.hidden_size, layout.tensor
    spread = tensor if layout.sequence_parallel else 1
    # What a chip multiplies for the stream is of all tokens until the chips' sum divides it, and that sum is kept too.
    shares = {"divided": tensor, "whole": 1, "stream": 1, "sum": spread}
    *products, last = layer_products(shape, is_sparse)
    kept = [(hidden, "sum"), (value_size(shape), "divided")]
    kept += [(one.outputs, one.lies) for one in products[::2]]
    # A compiled layer sees that what its last matrix adds is not needed again.
    if len(products) % 2 == 0 and not layout.compiled:
        kept.append((last.outputs, last.lies))
    if spread > 1:
        kept += [(hidden, "sum")] * (1 if layout.compiled else 2)
    return sum(layout.number_bytes * width / shares[lies] for width, lies in kept) + 4 * shape.num_heads / tensor


def in_flight(layout: Layout, num_micro_batches: int, stage: int) -> float:
    """Return how many micro-batches of all its layers a stage keeps at most.

    One forward, one backward (Narayanan et al., 2021, arXiv:2104.04473, section 2.2); interleaved stages keep
    1 + (p-1)/(pv) times as much on the first chip.
    """
    stages, virtual = layout.pipeline, layout.virtual_stages
    if stages == 1:
        return 1.0
    if virtual == 1:
        return float(min(num_micro_batches, stages - stage))
    pieces = 2 * (stages - stage - 1) + (virtual - 1) * stages + 1
    return min(num_micro_batches * virtual, pieces) / virtual


def logits_bytes(shape: ModelShape, layout: Layout, work: Work) -> float:
    """Return the bytes of logits while their gradients are made.

    PyTorch keeps float32 ones in three forms (the logarithms of probabilities, the loss's gradient by them, and its
    gradient by logits), as traces show; Megatron works in place; a fused loss keeps 16-bit ones with their gradients.
    """
    tokens = layout.micro_batch_tokens(work)
    # Where tensor-parallel chips share the logits, PyTorch adds their exponentials in a step of its own.
    each = (4 if layout.tensor > 1 else 3) * WHOLE
    if layout.software.startswith("megatron"):
        each = HALF + WHOLE + HALF
    if layout.fused_loss:
        each = 3 * HALF
    return tokens * shape.vocab_size / layout.tensor * each


def _working_bytes(shape: ModelShape, layout: Layout, work: Work, is_sparse: bool) -> float:
    """Return the bytes of a layer's gradients in backward, with the layer itself where it is computed again."""
    again = 0.0
    if layout.recompute in ("full", "operators"):
        again = layer_bytes(shape, layout.model_copy(update={"recompute": "none"}), work, is_sparse)
    elif layout.recompute == "selective" and not layout.fused_attention:
        plain = layout.model_copy(update={"recompute": "none"})
        again = layer_bytes(shape, plain, work, is_sparse) - layer_bytes(shape, layout, work, is_sparse)
    tokens = layout.micro_batch_tokens(work)
    each = layout.number_bytes
    inner = each * (3 if shape.is_gated else 2) * seen_width(shape, is_sparse) / layout.tensor
    # Sequence-parallel chips gather the tokens before a matrix and keep one gathered tensor at a time.
    gathered = each * shape.hidden_size * (2 if layout.tensor > 1 else 1)
    return again + tokens * (inner + gathered)


def buffer_bytes(shape: ModelShape, layout: Layout, stage: int = 0) -> float:
    """Return the bytes of parameters and gradients that ZeRO has gathered at a time: two layers, and the logits'.

    Pipelines keep all that one chip computes gathered, and sum its gradients whole, over all micro-batches.
    """
    if layout.zero_stage < 2 or shards(layout).dense == 1:
        return 0.0
    each = layout.number_bytes
    if layout.pipeline > 1:
        whole = sum(stage_counts(shape, layout.pipeline)[stage].held(layout))
        return whole * (layout.bytes.gradient + (each if layout.zero_stage == 3 else 0))
    dense, experts = layer_count(shape, num_sparse_layers(shape) > 0).held(layout)
    layer = dense + experts
    head = shape.vocab_size * shape.hidden_size / layout.tensor
    gradients = max(layer, head) * (each + layout.bytes.gradient)
    return gradients + (each * (2 * layer + head) if layout.zero_stage == 3 else 0.0)


def received_bytes(shape: ModelShape, layout: Layout, work: Work, num_micro_batches: int, stage: int) -> float:
    """Return the bytes of what a stage receives, for which PyTorch's pipelines hold a buffer a micro-batch."""
    if layout.pipeline == 1 or not layout.software.startswith("torch"):
        return 0.0
    # A stream from the stage before, and its gradient from the next; each chip of an interleaved pipeline has several.
    ends = (stage == 0) + (stage == layout.pipeline - 1)
    held = layout.micro_batch_tokens(work) / (layout.tensor if layout.sequence_parallel else 1)
    each = layout.number_bytes * shape.hidden_size * held
    return each * num_micro_batches * (2 * layout.virtual_stages - ends)


def _stage_parts(
    shape: ModelShape, layout: Layout, work: Work, num_micro_batches: int, stage: int
) -> tuple[float, float, float, float, float]:
    """Return the bytes of parameters, gradients, optimiser, activations and buffers on one pipeline stage."""
    state = state_bytes(stage_counts(shape, layout.pipeline)[stage], layout)
    plain, sparse = stage_kinds(shape, layout.pipeline)[stage]
    kept = plain * layer_bytes(shape, layout, work) if plain else 0.0
    kept += sparse * layer_bytes(shape, layout, work, True) if sparse else 0.0
    activations = kept * in_flight(layout, num_micro_batches, stage)
    kinds = [is_sparse for is_sparse, number in ((False, plain), (True, sparse)) if number]
    working = max((_working_bytes(shape, layout, work, is_sparse) for is_sparse in kinds), default=0.0)
    if stage == layout.pipeline - 1:
        working = max(working, logits_bytes(shape, layout, work) * (1 + shape.num_extra_layers))
    received = received_bytes(shape, layout, work, num_micro_batches, stage)
    return (*state, activations + working, buffer_bytes(shape, layout, stage) + received)


def predict_memory(
    shape: ModelShape, layout: Layout, work: Work, num_micro_batches: int, fragmentation: float
) -> MemoryParts:
    """Return the memory of the chip that needs most, by part.

    Args:
        fragmentation: What the allocator holds beside what is used, as a share of activations and buffers.
    """
    last = layout.pipeline - 1
    parts = [_stage_parts(shape, layout, work, num_micro_batches, stage) for stage in sorted({0, min(1, last), last})]
    most = max(parts, key=lambda part: sum(part[:3]) + (part[3] + part[4]) * (1 + fragmentation))
    return MemoryParts(
        parameters=most[0],
        gradients=most[1],
        optimizer=most[2],
        activations=most[3],
        buffers=most[4],
        fragmentation=fragmentation * (most[3] + most[4]),
    )
