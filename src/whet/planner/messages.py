"""Say what chips send in a step, and how long it takes where nothing hides it."""

from dataclasses import dataclass

from whet.planner.cluster import Cluster
from whet.planner.layout import Layout, Work
from whet.planner.memory import HALF
from whet.planner.model_shape import ModelShape
from whet.planner.network import (
    Group,
    Wires,
    all_gather_s,
    all_reduce_s,
    exchange_s,
    placed,
    ring_bytes,
    send_s,
)
from whet.planner.parameters import Count, key_value_size


@dataclass(frozen=True)
class Groups:
    """Hold where the groups of a layout lie.

    Chips that share matrices are neighbours, then those that share rows, then those that share state, then replicas,
    and pipeline stages are farthest apart (Narayanan et al., 2021).
    """

    tensor: Group
    context: Group
    shard: Group
    replicate: Group
    expert: Group
    expert_shard: Group
    stages_leave_node: bool


def groups(cluster: Cluster, layout: Layout) -> Groups:
    tensor, context, shard = layout.tensor, layout.context, layout.shard
    inner = tensor * context * layout.data
    expert_shard = max(1, shard * context // layout.expert)
    return Groups(
        tensor=placed(cluster, 1, tensor),
        context=placed(cluster, tensor, context),
        shard=placed(cluster, tensor, shard * context),
        replicate=placed(cluster, tensor * context * shard, layout.replicate),
        expert=placed(cluster, tensor, layout.expert),
        expert_shard=placed(cluster, tensor * layout.expert, expert_shard),
        stages_leave_node=inner * layout.pipeline > cluster.chips_per_node,
    )


@dataclass(frozen=True)
class LayerMessages:
    """Hold the seconds that messages of one layer of a micro-batch take, and the bytes that a chip sends for it."""

    tensor_forward: float
    context_forward: float
    expert_forward: float
    tensor_bytes: float
    context_bytes: float
    expert_bytes: float


def layer_messages(
    shape: ModelShape, layout: Layout, work: Work, is_sparse: bool, group: Groups, wire: Wires
) -> LayerMessages:
    """Return the forward messages of one layer; backward sends as many, but twice as many keys and values."""
    tokens = layout.micro_batch_tokens(work)
    size = tokens * shape.hidden_size * HALF
    # What is gathered for fp8 matrices travels as fp8; sums travel in 16 bits (torchao, Transformer Engine).
    gathered = 0.5 if layout.precision == "fp8" and layout.sequence_parallel else 1.0
    tensor_s = tensor_bytes = context_s = context_bytes = expert_s = expert_bytes = 0.0
    if layout.tensor > 1:
        # Two sums a layer; with sequence parallelism each is a reduce-scatter and an all-gather of the same bytes.
        if layout.sequence_parallel:
            tensor_s = 2 * (1 + gathered) * all_gather_s(size, group.tensor, wire)
        else:
            tensor_s = 2 * all_reduce_s(size, group.tensor, wire)
        tensor_bytes = 2 * (1 + gathered) * ring_bytes(size, layout.tensor)
    if layout.context > 1:
        keys = tokens * key_value_size(shape) / layout.tensor * HALF * layout.context
        context_s = all_gather_s(keys, group.context, wire)
        context_bytes = ring_bytes(keys, layout.context)
    if is_sparse and shape.experts is not None and layout.expert > 1:
        size /= layout.tensor if layout.sequence_parallel else 1
        near, far = expert_copies(shape.experts.per_token, group.expert)
        expert_s = 2 * exchange_s(size * near, size * far, group.expert, wire)
        expert_bytes = 2 * size * (near + far)
    return LayerMessages(tensor_s, context_s, expert_s, tensor_bytes, context_bytes, expert_bytes)


def expert_copies(per_token: int, group: Group) -> tuple[float, float]:
    """Return how often a token is sent within nodes, and to other nodes, to reach its experts.

    A token goes to each node with one of its experts once, and is copied there (DeepSeek-AI, 2024, section 3.2.2).
    """
    near = per_token * (group.per_node - 1) / group.per_node
    reached = group.nodes * (1 - (1 - 1 / group.nodes) ** per_token)
    return near, reached * (group.nodes - 1) / group.nodes


@dataclass(frozen=True)
class StateMessages:
    """Hold the seconds in which parameters are gathered once, gradients summed once, and the bytes a chip sends."""

    gather: float
    reduce: float
    gather_bytes: float
    reduce_bytes: float


def state_messages(count: Count, layout: Layout, group: Groups, wire: Wires) -> StateMessages:
    """Return the messages for the parameters that `count` counts."""
    gather = reduce = gather_bytes = reduce_bytes = 0.0
    dense, experts = count.held(layout)
    for held, own in ((dense, group.shard), (experts, group.expert_shard)):
        if not held:
            continue
        size = held * layout.bytes.gradient
        if own.size > 1:
            if layout.zero_stage == 0:
                reduce += all_reduce_s(size, own, wire)
                reduce_bytes += 2 * ring_bytes(size, own.size)
            else:
                reduce += all_gather_s(size, own, wire)
                reduce_bytes += ring_bytes(size, own.size)
                sent = held * (1 if layout.precision == "fp8" else HALF)
                gather += all_gather_s(sent, own, wire)
                gather_bytes += ring_bytes(sent, own.size)
        if layout.replicate > 1:
            part = size / (own.size if layout.zero_stage else 1)
            reduce += all_reduce_s(part, group.replicate, wire)
            reduce_bytes += 2 * ring_bytes(part, layout.replicate)
    return StateMessages(gather, reduce, gather_bytes, reduce_bytes)


def stage_message(shape: ModelShape, layout: Layout, work: Work, group: Groups, wire: Wires) -> tuple[float, float]:
    """Return the seconds and the bytes of what a pipeline stage sends on, for one micro-batch in one direction."""
    if layout.pipeline == 1:
        return 0.0, 0.0
    size = layout.micro_batch_tokens(work) * shape.hidden_size * HALF
    if layout.sequence_parallel or layout.software.startswith("megatron"):
        size /= layout.tensor
    return send_s(size, group.stages_leave_node, wire), size
