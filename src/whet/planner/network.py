"""Say how long chips take to exchange bytes: rings, trees, and all to all, within nodes and between them."""

import math
from dataclasses import dataclass

from whet.planner.cluster import Cluster
from whet.planner.curves import Constants


@dataclass(frozen=True)
class Group:
    """Hold where the chips of a group lie.

    Attributes:
        per_node: How many of them share a node. Each has its own way out of the node.
        nodes: How many nodes they lie on.
    """

    per_node: int
    nodes: int

    @property
    def size(self) -> int:
        return self.per_node * self.nodes


def placed(cluster: Cluster, stride: int, size: int) -> Group:
    """Return where a group of chips lies that are `stride` chips apart, where nodes are filled in turn."""
    per_node = max(1, min(size, cluster.chips_per_node // stride))
    return Group(per_node, math.ceil(size / per_node))


@dataclass(frozen=True)
class Wires:
    """Hold what links carry in practice.

    Attributes:
        inside: Bytes a second of a chip within its node.
        between: Bytes a second of a chip to other nodes, shared by no other chip.
        inside_latency: Seconds of a step of a ring within a node.
        between_latency: Seconds of a step between nodes.
        gather: Bytes a second of a chip within its node, while chips gather or scatter.
    """

    inside: float
    between: float
    inside_latency: float
    between_latency: float
    gather: float


def wires(cluster: Cluster, constants: Constants) -> Wires:
    """Return what a cluster's links carry in practice, by the fitted shares of what their makers say."""
    out = cluster.between or cluster.inside
    inside = 1.0 if cluster.inside.is_measured else constants.inside_efficiency
    between = 1.0 if out.is_measured else constants.between_efficiency
    return Wires(
        inside=cluster.inside.bytes_per_s * inside,
        between=out.bytes_per_s * between / cluster.oversubscription,
        inside_latency=cluster.inside.latency_s,
        between_latency=out.latency_s,
        gather=(cluster.inside.gather_bytes_per_s or cluster.inside.bytes_per_s) * inside,
    )


def all_gather_s(size: float, group: Group, wire: Wires) -> float:
    """Return the seconds in which each chip of a group gets all `size` bytes, of which it has its share.

    A ring passes through all chips of a node before it leaves it, and there are as many rings as ways out of a node, so
    the slower of the two links decides (NVIDIA, NCCL). A reduce-scatter takes as long.
    """
    return _ring_s(size, group, wire, wire.gather)


def _ring_s(size: float, group: Group, wire: Wires, rate: float) -> float:
    """Return the seconds in which all chips of a group have passed on `size` bytes, at a rate within nodes."""
    if group.size <= 1:
        return 0.0
    inside = size * (group.size - 1) / group.size / rate if group.per_node > 1 else 0.0
    between = 0.0
    if group.nodes > 1:
        between = size * (group.nodes - 1) / group.nodes / (group.per_node * wire.between)
    latency = wire.inside_latency * (group.per_node - 1) + wire.between_latency * (group.nodes - 1)
    return max(inside, between) + latency


def all_reduce_s(size: float, group: Group, wire: Wires) -> float:
    """Return the seconds in which a group sums `size` bytes by a ring, or by a tree where that is faster."""
    if group.size <= 1:
        return 0.0
    ring = 2 * _ring_s(size, group, wire, wire.inside)
    slowest = wire.inside if group.per_node > 1 else math.inf
    if group.nodes > 1:
        slowest = min(slowest, group.per_node * wire.between)
    levels = math.ceil(math.log2(group.per_node)) * wire.inside_latency
    levels += math.ceil(math.log2(group.nodes)) * wire.between_latency
    return min(ring, 2 * size / slowest + 2 * levels)


def exchange_s(near: float, far: float, group: Group, wire: Wires) -> float:
    """Return the seconds in which each chip sends bytes to all others, near ones and far ones at a time."""
    if group.size <= 1:
        return 0.0
    latency = wire.between_latency if group.nodes > 1 else wire.inside_latency
    return max(near / wire.inside, far / wire.between) + latency


def send_s(size: float, leaves_node: bool, wire: Wires) -> float:
    """Return the seconds in which one chip sends `size` bytes to another."""
    if leaves_node:
        return size / wire.between + wire.between_latency
    return size / wire.inside + wire.inside_latency


def ring_bytes(size: float, chips: int) -> float:
    """Return what a chip sends, and receives, in an all-gather or a reduce-scatter of `size` bytes."""
    return size * (chips - 1) / chips
