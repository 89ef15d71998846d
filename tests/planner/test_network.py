"""Tests of messages: what rings send is what is received, and how long links of known speed take."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from known_models import h100s

from whet.planner.curves import fitted
from whet.planner.layout import Layout
from whet.planner.messages import expert_copies
from whet.planner.model_shape import Experts
from whet.planner.network import Group, Wires, all_gather_s, all_reduce_s, exchange_s, placed, ring_bytes, send_s, wires

WIRE = Wires(inside=400e9, between=50e9, inside_latency=0.0, between_latency=0.0, gather=400e9)


@given(chips=st.integers(2, 12), chunk=st.integers(1, 1000))
def test_a_ring_sends_what_it_receives(chips: int, chunk: int) -> None:
    """Play a ring's all-gather step by step, and count what each chip sends and receives."""
    held = [{chip} for chip in range(chips)]
    sent, received = [0] * chips, [0] * chips
    for step in range(chips - 1):
        moves = [(chip, (chip + 1) % chips, (chip - step) % chips) for chip in range(chips)]
        for chip, after, part in moves:
            assert part in held[chip]
            sent[chip] += chunk
            received[after] += chunk
        for _, after, part in moves:
            held[after].add(part)
    assert all(len(parts) == chips for parts in held)
    assert sum(sent) == sum(received)
    assert sent == received == [pytest.approx(ring_bytes(chips * chunk, chips))] * chips


def test_chips_lie_on_nodes_as_they_are_counted() -> None:
    """Place each group of neighbours and of strangers on nodes of 8 by hand."""
    cluster = h100s(64)
    for stride, size in [(1, 8), (1, 16), (2, 4), (4, 4), (8, 8), (2, 16), (16, 4)]:
        nodes = [chip // 8 for chip in range(0, stride * size, stride)]
        group = placed(cluster, stride, size)
        assert (group.per_node, group.nodes) == (nodes.count(0), len(set(nodes)))


def test_seconds_of_collectives() -> None:
    # 8 GB within a node: each chip gets 7 GB over its link of 400 GB/s.
    assert all_gather_s(8e9, Group(8, 1), WIRE) == pytest.approx(7 / 400)
    # One chip a node: three quarters come over 50 GB/s.
    assert all_gather_s(8e9, Group(1, 4), WIRE) == pytest.approx(6 / 50)
    # Eight chips a node share the way: 15/16 within the node, and a half over 8 x 50 GB/s.
    assert all_gather_s(8e9, Group(8, 2), WIRE) == pytest.approx(8 * 15 / 16 / 400)
    assert all_reduce_s(8e9, Group(8, 1), WIRE) == pytest.approx(2 * 7 / 400)
    assert send_s(1e9, True, WIRE) == pytest.approx(1 / 50)
    assert all_gather_s(8e9, Group(1, 1), WIRE) == all_reduce_s(8e9, Group(1, 1), WIRE) == 0
    assert exchange_s(4e9, 1e9, Group(8, 2), WIRE) == pytest.approx(1 / 50)


def test_a_measured_link_is_taken_as_it_is() -> None:
    """Of a link from a data sheet a fitted share counts; gathering may be slower than sums, as gloo's is."""
    cluster = h100s(2)
    constants = fitted(cluster, Layout()).constants
    link = cluster.inside.model_copy(update={"gather_bytes_per_s": cluster.inside.bytes_per_s / 4})
    measured = cluster.model_copy(update={"inside": link.model_copy(update={"is_measured": True})})
    wire, plain = wires(measured, constants), wires(cluster, constants)
    assert wire.inside == link.bytes_per_s and plain.inside == link.bytes_per_s * constants.inside_efficiency
    group = Group(2, 1)
    assert all_gather_s(8e9, group, wire) == pytest.approx(4e9 / wire.gather + wire.inside_latency)
    assert wire.gather == wire.inside / 4 and plain.gather == plain.inside
    assert all_reduce_s(8e9, group, wire) == pytest.approx(8e9 / wire.inside + 2 * wire.inside_latency)


def test_small_sums_go_by_a_tree() -> None:
    slow = Wires(inside=400e9, between=50e9, inside_latency=1e-6, between_latency=5e-6, gather=400e9)
    assert all_reduce_s(8, Group(1, 64), slow) == pytest.approx(2 * 6 * 5e-6, rel=1e-3)


@pytest.mark.parametrize(("nodes", "per_token"), [(2, 2), (4, 3), (8, 4)])
def test_a_token_goes_to_each_node_once(nodes: int, per_token: int) -> None:
    """Go through all choices of nodes, and count those other than the first that are reached."""
    choices = list(itertools.product(range(nodes), repeat=per_token))
    reached = sum(len(set(choice) - {0}) for choice in choices) / len(choices)
    experts = Experts(number=64, per_token=per_token, intermediate_size=1)
    near, far = expert_copies(experts, Group(8, nodes))
    assert far == pytest.approx(reached)
    assert near == pytest.approx(per_token * 7 / 8)
    copied = expert_copies(experts, Group(8, nodes), is_copied=True)
    assert sum(copied) == pytest.approx(per_token * (8 * nodes - 1) / (8 * nodes))


def test_experts_in_groups_lie_on_fewer_nodes() -> None:
    """DeepSeek-AI, 2024, section 2.1.2: each token is sent to at most 4 of 8 nodes."""
    experts = Experts(number=256, per_token=8, intermediate_size=1, groups=8, groups_per_token=4)
    choices = itertools.product(range(4), repeat=8)
    reached = sum(len(set(choice)) for choice in choices) / 4**8
    assert expert_copies(experts, Group(8, 8))[1] == pytest.approx(reached * 7 / 8)
