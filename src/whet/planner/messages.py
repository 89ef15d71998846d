"""Say what chips send in a step, and how long it takes where nothing hides it."""

import math
from dataclasses import dataclass

from whet.planner.cluster import Cluster
from whet.planner.layout import Layout, Work
from whet.planner.model_shape import Experts, ModelShape
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
    size = tokens * shape.hidden_size * layout.number_bytes
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
        keys = tokens * key_value_size(shape) / layout.tensor * layout.number_bytes * layout.context
        context_s = all_gather_s(keys, group.context, wire)
        context_bytes = ring_bytes(keys, layout.context)
    if is_sparse and shape.experts is not None and layout.expert > 1:
        size /= layout.tensor if layout.sequence_parallel else 1
        near, far = expert_copies(shape.experts, group.expert, layout.copies_tokens)
        expert_s = 2 * exchange_s(size * near, size * far, group.expert, wire)
        expert_bytes = 2 * size * (near + far)
    return LayerMessages(tensor_s, context_s, expert_s, tensor_bytes, context_bytes, expert_bytes)


def expert_copies(experts: Experts, group: Group, is_copied: bool = False) -> tuple[float, float]:
    """Return how often a token is sent within nodes, and to other nodes, to reach its experts.

    A token goes to each node with one of its experts once, and is copied there; its experts lie in a few of their
    groups, and so on a share of the nodes (DeepSeek-AI, 2024, sections 2.1.2 and 3.2.2).

    Args:
        is_copied: Whether it is sent once for each of its experts instead.
    """
    number, others = experts.per_token, (group.nodes - 1) / group.nodes
    if is_copied:
        return number * (group.per_node - 1) / group.size, number * others
    near = number * (group.per_node - 1) / group.per_node
    open_to = math.ceil(group.nodes * min(1.0, experts.groups_per_token / experts.groups))
    return near, open_to * (1 - (1 - 1 / open_to) ** number) * others


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
                sent = held * (1 if layout.precision == "fp8" else layout.number_bytes)
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
    size = layout.micro_batch_tokens(work) * shape.hidden_size * layout.number_bytes
    if layout.sequence_parallel or layout.software.startswith("megatron"):
        size /= layout.tensor
    return send_s(size, group.stages_leave_node, wire), size
