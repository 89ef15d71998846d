"""Tests of predictions: monotone in what a cluster has, conserved over chips, honest about what lies outside."""

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from known_models import DEEPSEEK_V3, LLAMA_8B, MIXTRAL, gpt, h100s
from layouts import CHIPS, layouts

from whet.errors import OptionError
from whet.planner.cluster import Cluster
from whet.planner.curves import fitted
from whet.planner.layer_time import Speeds, extra_time
from whet.planner.layout import Bytes, Layout, Work
from whet.planner.model_shape import ModelShape
from whet.planner.operations import step_operations
from whet.planner.parameters import model_count
from whet.planner.predict import assumptions_of, predict
from whet.planner.step_time import StepModel

CLUSTER = h100s(CHIPS)


def faster(cluster: Cluster, part: str, by: float) -> Cluster:
    """Return the cluster with one speed multiplied."""
    if part in ("inside", "between"):
        link = getattr(cluster, part)
        return cluster.model_copy(update={part: link.model_copy(update={"bytes_per_s": by * link.bytes_per_s})})
    chip = cluster.chip
    if part == "flops":
        changed: object = {number: by * value for number, value in chip.flops.items()}
    else:
        changed = by * getattr(chip, part)
    return cluster.model_copy(update={"chip": chip.model_copy(update={part: changed})})


@settings(max_examples=150, deadline=None)
@given(
    drawn=layouts(),
    part=st.sampled_from(["inside", "between", "flops", "bytes_per_s", "power_w"]),
    by=st.floats(1.01, 8),
)
def test_a_faster_part_never_makes_a_step_slower(drawn: tuple[Layout, Work], part: str, by: float) -> None:
    layout, work = drawn
    before = predict(LLAMA_8B, CLUSTER, layout, work).step_s.value
    after = predict(LLAMA_8B, faster(CLUSTER, part, by), layout, work).step_s.value
    assert after <= before * (1 + 1e-9)


@settings(max_examples=60, deadline=None)
@given(drawn=layouts(), by=st.floats(1, 4))
def test_more_memory_fits_what_less_fits(drawn: tuple[Layout, Work], by: float) -> None:
    layout, work = drawn
    larger = faster(CLUSTER, "memory_bytes", by)
    less, more = (predict(LLAMA_8B, cluster, layout, work) for cluster in (CLUSTER, larger))
    fits = less.memory_total.value <= CLUSTER.chip.memory_bytes
    assert not fits or more.memory_total.value <= larger.chip.memory_bytes


@settings(max_examples=100, deadline=None)
@given(drawn=layouts(), shape=st.sampled_from([LLAMA_8B, MIXTRAL, gpt(24, 2048, 16), DEEPSEEK_V3]))
def test_the_operations_of_all_chips_are_the_models(drawn: tuple[Layout, Work], shape: ModelShape) -> None:
    """Give chips memory without bounds and all of their peak: seconds are operations then, and must add up."""
    layout, work = drawn
    layout = layout.model_copy(update={"fused_attention": False, "precision": "bfloat16"})
    cluster = faster(CLUSTER, "bytes_per_s", 1e30)
    ideal = replace(fitted(cluster, layout).constants, matrix_efficiency=1.0, memory_efficiency=1.0)
    num = work.global_batch_size // (layout.data * layout.micro_batch_size)
    model = StepModel(shape, cluster, layout, work, ideal, num)
    stages = [model.stage(index) for index in range(layout.pipeline)]
    seconds = sum(stage.forward + stage.backward + stage.recompute for stage in stages)
    copies = num * layout.data * layout.tensor * layout.context
    assert seconds * copies * 989e12 == pytest.approx(step_operations(shape, layout, work), rel=1e-6)


@settings(max_examples=60, deadline=None)
@given(drawn=layouts())
def test_a_prediction_holds_together(drawn: tuple[Layout, Work]) -> None:
    layout, work = drawn
    result = predict(LLAMA_8B, CLUSTER, layout, work)
    assert result.step.total == pytest.approx(result.step_s.value)
    assert result.memory.total == pytest.approx(result.memory_total.value)
    for interval in (result.step_s, result.memory_total):
        assert interval.low < interval.value < interval.high
    assert result.mfu == pytest.approx(result.flops / (result.step_s.value * 989e12 * CHIPS))
    assert 0 < result.mfu < 1.2
    assert min(*result.step.model_dump().values(), *result.memory.model_dump().values()) >= 0
    assert result.flops_of_chips >= result.flops
    assert (result.sent["tensor"] > 0) == (layout.tensor > 1)
    assert (result.sent["pipeline"] > 0) == (layout.pipeline > 1)
    assert (result.sent["context"] > 0) == (layout.context > 1)


def test_the_bubble_is_the_papers() -> None:
    """Narayanan et al., 2021, section 2.2: (p-1)/(mv) of the time in which equal stages compute."""
    shape = gpt(64, 4096, 32, 64)
    for virtual in (1, 2, 4):
        layout = Layout(pipeline=8, virtual_stages=virtual, software="megatron-2022", fused_attention=False)
        step = predict(shape, h100s(8), layout, Work(global_batch_size=32, sequence_length=2048)).step
        busy = step.forward + step.backward + step.pipeline_communication
        assert step.bubble / busy == pytest.approx(7 / (32 * virtual), rel=0.01)


def test_a_message_of_data_parallel_chips_is_zeros() -> None:
    """Rajbhandari et al., 2020, section 7: gradients and parameters are sent once, with ZeRO 3 parameters twice."""
    work = Work(global_batch_size=64, sequence_length=2048)
    parameters = model_count(LLAMA_8B).total
    sent = {}
    for stage in (0, 1, 3):
        layout = Layout(shard=64, zero_stage=stage)
        sent[stage] = predict(LLAMA_8B, CLUSTER, layout, work).sent["data"] * 64 / 63
    # Gradients travel with 4 bytes and parameters with 2.
    assert sent[0] == pytest.approx(2 * 4 * parameters)
    assert sent[1] == pytest.approx((4 + 2) * parameters)
    table = 2 * LLAMA_8B.vocab_size * LLAMA_8B.hidden_size + LLAMA_8B.hidden_size
    assert sent[3] == pytest.approx((4 + 2 + 2) * parameters - 2 * table)


def test_what_lies_outside_is_said_and_widens_the_interval() -> None:
    work = Work(global_batch_size=64, sequence_length=8192)
    layout = Layout(shard=64, zero_stage=3, recompute="full")
    inside = predict(LLAMA_8B, CLUSTER, layout, work)
    assert inside.outside == ()
    chip = CLUSTER.chip.model_copy(update={"name": "Another"})
    other = predict(LLAMA_8B, CLUSTER.model_copy(update={"chip": chip}), layout, work)
    assert "no published runs of torch-2024 on Another were fitted" in other.outside[0]
    assert other.step_s.high / other.step_s.value > inside.step_s.high / inside.step_s.value
    longer = predict(LLAMA_8B, CLUSTER, layout, Work(global_batch_size=64, sequence_length=2**21))
    assert any("sequence length 2.09715e+06 is outside" in line for line in longer.outside)


def test_more_chips_wait_longer_for_the_slowest() -> None:
    """The largest of n normal numbers lies about sqrt(2 ln n) deviations above their mean; within a node none count."""
    shares = []
    for chips in (8, 64, 4096):
        work = Work(global_batch_size=chips, sequence_length=4096)
        step = predict(LLAMA_8B, h100s(chips), Layout(shard=chips, zero_stage=3, recompute="full"), work).step
        shares.append(step.slowest / (step.total - step.slowest))
    jitter = fitted(CLUSTER, Layout()).constants.jitter
    above = [math.sqrt(2 * math.log(chips)) for chips in (8, 64, 4096)]
    assert shares == pytest.approx([jitter * (one - above[0]) for one in above])


def test_float32_takes_twice_the_bytes_of_16_bits() -> None:
    """Activations, and messages of layers, have 4 bytes a number; the logits' four float32 forms stay."""
    layout = Layout(shard=8, tensor=8, zero_stage=1, bytes=Bytes(parameter=4, gradient=4, state=8))
    work = Work(global_batch_size=8, sequence_length=512)
    half = predict(LLAMA_8B, CLUSTER, layout, work)
    single = predict(LLAMA_8B, CLUSTER, layout.model_copy(update={"precision": "float32"}), work)
    assert single.sent["tensor"] == 2 * half.sent["tensor"]
    assert single.memory.parameters == half.memory.parameters
    assert 1 < single.memory.activations / half.memory.activations <= 2


def test_layers_that_predict_later_tokens_move_twice_the_bytes_in_float32() -> None:
    """Chips without bounds but their memory's: seconds are bytes then."""
    shape, work = DEEPSEEK_V3.model_copy(update={"num_extra_layers": 1}), Work(global_batch_size=1, sequence_length=512)
    speed = Speeds(linear=math.inf, matrix=math.inf, attention=math.inf, memory=1.0, passes=1.0, is_fp8=False)
    half, single = (
        extra_time(shape, Layout(fused_loss=True, precision=precision), work, speed)
        for precision in ("bfloat16", "float32")
    )
    assert single == pytest.approx([2 * one for one in half])


def test_assumptions_name_their_sources() -> None:
    layout = Layout(shard=32, pipeline=2, zero_stage=1)
    lines = assumptions_of(CLUSTER, layout)
    assert any("NDR: data sheet" in line for line in lines)
    assert any("arXiv:2104.04473" in line for line in lines)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"shard": 32}, "multiply to 32 chips, but the cluster has 64"),
        ({"micro_batch_size": 3}, "ask for a multiple of 192"),
        ({"shard": 1, "pipeline": 64}, "64 pipeline stages are more than the 32 layers"),
        ({"shard": 1, "tensor": 64}, "64 tensor-parallel chips do not divide the 32 heads"),
        ({"expert": 2}, "2 expert-parallel chips do not divide the experts"),
    ],
)
def test_an_impossible_layout_is_refused(changes: dict[str, int], message: str) -> None:
    layout = Layout(**{"shard": 64, **changes})  # type: ignore[arg-type]
    with pytest.raises(OptionError, match=message):
        predict(LLAMA_8B, CLUSTER, layout, Work(global_batch_size=64, sequence_length=2048))
