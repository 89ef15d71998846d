"""Tests of counting parameters and operations: known models, and that nothing is lost or doubled over chips."""

import pytest
from hypothesis import given, settings
from known_models import DEEPSEEK_V3, LLAMA_8B, LLAMA_70B, LLAMA_405B, MIXTRAL, gpt
from layouts import layouts

from whet.planner.layout import Layout, Work
from whet.planner.memory import state_bytes
from whet.planner.model_shape import ModelShape
from whet.planner.operations import forward_operations, model_operations, step_operations
from whet.planner.parameters import active_parameters, model_count, stage_counts, stage_layers


@pytest.mark.parametrize(
    ("shape", "known"),
    [
        (LLAMA_8B, 8_030_261_248),  # the files of the models on Hugging Face
        (LLAMA_70B, 70_553_706_496),
        (LLAMA_405B, 405_853_388_800),
        (MIXTRAL, 46_702_792_704),
        (gpt(32, 4096, 32, 50368), 6_658_859_008),  # MPT 7B and 70B in llm-foundry's table
        (gpt(80, 8192, 64, 50368), 64_862_437_376),
    ],
)
def test_parameters_of_known_models(shape: ModelShape, known: int) -> None:
    assert model_count(shape).total == known


def test_parameters_as_papers_round_them() -> None:
    assert model_count(gpt(96, 12288, 96, 50257)).total == pytest.approx(175e9, rel=0.003)
    assert model_count(gpt(105, 20480, 128)).total == pytest.approx(529.6e9, rel=1e-3)
    assert model_count(gpt(128, 25600, 160)).total == pytest.approx(1008.0e9, rel=1e-3)
    assert model_count(DEEPSEEK_V3).total == pytest.approx(671e9, rel=1e-3)
    assert active_parameters(DEEPSEEK_V3) == pytest.approx(37e9, rel=0.02)
    assert active_parameters(MIXTRAL) == pytest.approx(12.9e9, rel=0.02)


def test_operations_are_those_of_megatrons_formula() -> None:
    """Narayanan et al., 2021, equation 3 counts 96 B s l h² (1 + s/6h + V/16lh) with everything computed again."""
    shape, work = gpt(48, 8192, 64), Work(global_batch_size=12, sequence_length=2048)
    layers, hidden, sequence, vocab = 48, 8192, 2048, 51200
    rest = 1 + sequence / (6 * hidden) + vocab / (16 * layers * hidden)
    formula = 96 * 12 * sequence * layers * hidden**2 * rest
    assert step_operations(shape, Layout(recompute="full"), work) == pytest.approx(formula, rel=1e-9)
    assert model_operations(shape, work, causal=True) < model_operations(shape, work)


def test_a_window_bounds_what_attention_sees() -> None:
    narrow = LLAMA_8B.model_copy(update={"window": 128})
    by_hand = sum(min(place + 1, 128) for place in range(1024)) / 1024
    layers, heads = 32, 32 * 128
    gap = forward_operations(LLAMA_8B, 1024, True) - forward_operations(narrow, 1024, True)
    assert gap == pytest.approx(layers * 4 * heads * ((1024 + 1) / 2 - by_hand))


@pytest.mark.parametrize("shape", [LLAMA_8B, LLAMA_405B, MIXTRAL, DEEPSEEK_V3, gpt(105, 20480, 128)])
@pytest.mark.parametrize("stages", [1, 2, 7, 8, 16])
def test_stages_hold_the_model_once(shape: ModelShape, stages: int) -> None:
    assert sum(stage_layers(shape, stages)) == shape.num_layers
    twice = shape.vocab_size * shape.hidden_size if shape.is_tied and stages > 1 else 0
    assert sum(count.total for count in stage_counts(shape, stages)) == model_count(shape).total + twice


def test_the_stage_with_the_logits_is_relieved() -> None:
    """Llama 3 405B has one layer less on the first and on the last of 16 stages (Dubey et al., 2024)."""
    assert stage_layers(LLAMA_405B, 16) == (7, *(8,) * 14, 7)
    assert stage_layers(LLAMA_70B, 8) == (10,) * 8


@settings(max_examples=60, deadline=None)
@given(drawn=layouts())
def test_chips_hold_the_parameters_once(drawn: tuple[Layout, Work]) -> None:
    layout, _ = drawn
    layout = layout.model_copy(update={"zero_stage": 3})
    chips = layout.tensor * layout.shard * layout.context
    held = 0.0
    for count in stage_counts(LLAMA_8B, layout.pipeline):
        held += chips * state_bytes(count, layout)[0] / layout.bytes.parameter - (layout.tensor - 1) * count.copied
    assert held == pytest.approx(model_count(LLAMA_8B).total, rel=1e-9)


@pytest.mark.parametrize("expert", [1, 2, 8])
def test_chips_hold_experts_once(expert: int) -> None:
    layout = Layout(shard=16, tensor=2, expert=expert, zero_stage=3)
    count = model_count(MIXTRAL)
    held = 32 * state_bytes(count, layout)[0] / layout.bytes.parameter - count.copied
    assert held == pytest.approx(count.total, rel=1e-9)
