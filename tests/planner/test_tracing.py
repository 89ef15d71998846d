"""Traces of one rank against what real processes allocate, what follows from a model's sizes, and each other."""

from collections import Counter
from typing import Any

import pytest
import torch
from known_models import LLAMA_8B, MIXTRAL, gpt, llama
from many import on_ranks
from torch import distributed
from torch.testing._internal.distributed.fake_pg import FakeStore
from traced_jobs import allocated_peak

from whet.errors import OptionError
from whet.planner.layout import Layout, Work
from whet.planner.memory_trace import MemoryTrace
from whet.planner.model_shape import ModelShape
from whet.planner.parameters import model_count
from whet.planner.tracing.live_bytes import LiveBytes
from whet.planner.tracing.trace import trace_memory

SMALL = llama(4, 256, 704, 8, 4, vocab=2048)
WORK = Work(global_batch_size=16, sequence_length=128)


def traced(shape: ModelShape, layout: Layout, work: Work = WORK, **given: Any) -> MemoryTrace:
    found = trace_memory(shape, layout, work, 0.0, **given)
    assert not found.why_not
    return found


def parts(found: MemoryTrace) -> dict[str, float]:
    return {one.name: one.best for one in found.parts}


@pytest.mark.parametrize(
    ("number", "layout"),
    [
        (2, {"replicate": 2, "zero_stage": 0, "precision": "float32"}),
        (2, {"shard": 2, "zero_stage": 3, "precision": "bfloat16"}),
        (2, {"tensor": 2, "precision": "float32"}),
        pytest.param(2, {"shard": 2, "zero_stage": 2, "precision": "float32"}, marks=pytest.mark.thorough),
        pytest.param(2, {"shard": 2, "zero_stage": 1, "precision": "float32"}, marks=pytest.mark.thorough),
        pytest.param(2, {"replicate": 2, "precision": "bfloat16"}, marks=pytest.mark.thorough),
        pytest.param(2, {"pipeline": 2, "precision": "float32"}, marks=pytest.mark.thorough),
        pytest.param(2, {"shard": 2, "zero_stage": 3, "recompute": "full"}, marks=pytest.mark.thorough),
        pytest.param(4, {"shard": 4, "zero_stage": 3, "precision": "float32"}, marks=pytest.mark.thorough),
        pytest.param(4, {"shard": 2, "tensor": 2, "zero_stage": 3}, marks=pytest.mark.thorough),
        pytest.param(4, {"replicate": 2, "shard": 2, "zero_stage": 3}, marks=pytest.mark.thorough),
    ],
)
def test_a_trace_finds_what_real_processes_allocate(number: int, layout: dict[str, Any]) -> None:
    made = Layout(**layout, micro_batch_size=2)
    given = [one.model_dump() for one in (SMALL, made, WORK)]
    real = max(on_ranks(allocated_peak, number, *given))
    assert traced(SMALL, made, device="cpu").total == pytest.approx(real, rel=0.05)


def test_state_is_what_the_sizes_say() -> None:
    """Rajbhandari et al., 2020: each of 8 ranks holds an eighth of the state, all of whose sizes divide by 8 here."""
    number = model_count(SMALL).total
    found = parts(traced(SMALL, Layout(shard=8, zero_stage=3, micro_batch_size=2)))
    for name, size in (("parameters", 4), ("gradients", 4), ("optimizer", 8)):
        assert found[name] == pytest.approx(size * number / 8, rel=0.02)  # blocks of 512 bytes are rounded up


def test_however_many_ranks_there_are() -> None:
    few = parts(traced(SMALL, Layout(shard=8, zero_stage=3)))
    many = traced(SMALL, Layout(replicate=512, shard=8, tensor=2, zero_stage=3), Work(global_batch_size=4096, sequence_length=128))
    assert many.ranks == 8192
    assert parts(many)["parameters"] == pytest.approx(few["parameters"] / 2, rel=0.05)
    assert parts(many)["activations"] < few["activations"]


def test_what_is_computed_again_is_not_kept() -> None:
    kinds: tuple[Any, ...] = ("none", "operators", "full")
    kept = [
        parts(traced(LLAMA_8B.model_copy(update={"num_layers": 8}), Layout(shard=8, zero_stage=3, recompute=kind)))
        for kind in kinds
    ]
    assert kept[0]["activations"] > kept[1]["activations"] > kept[2]["activations"]
    assert kept[0]["parameters"] == kept[2]["parameters"]


@pytest.mark.thorough
def test_pipelines_grow_by_the_same_bytes_with_each_round() -> None:
    layout = Layout(pipeline=2, zero_stage=0, precision="float32")
    by_round = [
        traced(SMALL, layout, Work(global_batch_size=number, sequence_length=64)).total for number in (4, 6, 14)
    ]
    assert by_round[2] == pytest.approx(by_round[1] + 4 * (by_round[1] - by_round[0]), rel=1e-6)


@pytest.mark.parametrize("shape", [MIXTRAL, gpt(2, 512, 8)], ids=["experts", "gpt"])
def test_models_that_whet_has_not_are_traced_as_plain_decoders(shape: ModelShape) -> None:
    small = shape.model_copy(update={"num_layers": 2})
    found = traced(small, Layout(shard=8, zero_stage=3))
    assert "plain decoder" in found.differs[0]
    assert parts(found)["parameters"] == pytest.approx(4 * model_count(small).total / 8, rel=0.02)


@pytest.mark.parametrize(
    ("shape", "layout", "said"),
    [
        (MIXTRAL, {"tensor": 2}, "decoders like Llama's alone"),
        (SMALL, {"offload": True}, "the host's"),
        (SMALL, {"tensor": 8}, "does not divide"),
    ],
)
def test_what_cannot_be_traced_is_left_to_the_formulas(shape: ModelShape, layout: dict[str, Any], said: str) -> None:
    found = trace_memory(shape, Layout(**layout), WORK, 0.05)
    assert said in found.why_not
    assert {one.source for one in found.parts} == {"formula"}
    assert found.difference is None


def test_a_process_that_trains_with_others_traces_nothing() -> None:
    distributed.init_process_group("fake", rank=0, world_size=2, store=FakeStore())
    try:
        with pytest.raises(OptionError, match="trains with no others"):
            traced(SMALL, Layout(shard=8, zero_stage=3))
    finally:
        distributed.destroy_process_group()


def test_blocks_are_counted_once_and_until_they_are_freed() -> None:
    with LiveBytes(rounded_to=512) as live:
        live.phase = "forward"
        first = torch.ones(1000)
        view = first[:10]
        assert live.now == 4096
        second = first * 2
        assert (live.now, live.peaks[()][0]) == (8192, 8192)
        del first
        assert live.now == 8192  # the view holds it
        del view
        live.segment = ("next",)
        third = second + 1
        assert {segment: peak for segment, (peak, _) in live.peaks.items()} == {(): 8192, ("next",): 8192}
        del third
        second.untyped_storage().resize_(0)
        assert live.now == 0
        second.untyped_storage().resize_(4000)
        assert live.by_kind([]) == Counter({"forward": 4096})
        assert live.by_kind([("kept", [second])]) == Counter({"kept": 4096})
