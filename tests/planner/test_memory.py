"""Tests of memory: Megatron's formulas of activations, ZeRO's table, pipelines' micro-batches in flight."""

from typing import Literal

import pytest
from hypothesis import given, settings
from known_models import LLAMA_8B, gpt
from layouts import layouts

from whet.planner.layout import Bytes, Layout, Work
from whet.planner.memory import in_flight, layer_bytes, predict_memory, state_bytes
from whet.planner.parameters import Count

GIB = 2**30


@pytest.mark.parametrize(
    ("layers", "hidden", "heads", "stages", "virtual", "micro", "none", "both"),
    [  # Korthikanti et al., 2022, figure 1, as Calculon's validation gives them
        (48, 6144, 64, 1, 1, 4, 59.25, 9.5625),
        (96, 12288, 96, 8, 3, 1, 66.84375, 12.3515625),
        (105, 20480, 128, 35, 3, 1, 114.0234375, 23.076171875),
        (128, 25600, 160, 64, 1, 1, 131.25, 26.5625),
    ],
)
def test_activations_of_megatron(
    layers: int, hidden: int, heads: int, stages: int, virtual: int, micro: int, none: float, both: float
) -> None:
    shape, work = gpt(layers, hidden, heads), Work(global_batch_size=512, sequence_length=2048)
    plain = Layout(
        tensor=8,
        pipeline=stages,
        virtual_stages=virtual,
        micro_batch_size=micro,
        sequence_parallel=False,
        fused_attention=False,
        software="megatron-2022",
    )
    saving = plain.model_copy(update={"sequence_parallel": True, "recompute": "selective"})
    kept = layers / stages * in_flight(plain, 512, 0) / GIB
    assert kept * layer_bytes(shape, plain, work) == pytest.approx(none, rel=1e-3)
    assert kept * layer_bytes(shape, saving, work) == pytest.approx(both, rel=1e-3)


def test_a_layers_activations_by_the_papers_equations() -> None:
    """Korthikanti et al., 2022, table 2: sbh(34 + 5as/h), and 2sbh where a layer is computed again."""
    shape, work = gpt(4, 1024, 16), Work(global_batch_size=2, sequence_length=512)
    plain = Layout(micro_batch_size=2, fused_attention=False, software="megatron-2022")
    sbh = 512 * 2 * 1024
    assert layer_bytes(shape, plain, work) == sbh * (34 + 5 * 16 * 512 / 1024)
    assert layer_bytes(shape, plain.model_copy(update={"recompute": "full"}), work) == 2 * sbh


@pytest.mark.parametrize(("stage", "gigabytes"), [(0, 120), (1, 31.4), (2, 16.6), (3, 1.88)])
def test_zeros_table(stage: Literal[0, 1, 2, 3], gigabytes: float) -> None:
    """Rajbhandari et al., 2020, figure 1: 7.5 billion parameters, 64 chips, 2 + 2 + 12 bytes."""
    layout = Layout(shard=64, zero_stage=stage, bytes=Bytes(parameter=2, gradient=2, state=12))
    assert sum(state_bytes(Count(matrices=7_500_000_000), layout)) / 1e9 == pytest.approx(gigabytes, rel=5e-3)


def test_offloaded_state_takes_no_memory_of_the_chip() -> None:
    layout = Layout(offload=True)
    assert state_bytes(Count(matrices=1000), layout) == (2000, 4000, 0)


def test_micro_batches_in_flight() -> None:
    assert in_flight(Layout(pipeline=8), 64, 0) == 8
    assert in_flight(Layout(pipeline=8), 64, 7) == 1
    assert in_flight(Layout(pipeline=8), 3, 0) == 3
    # Narayanan et al., 2021: an interleaved first stage keeps 1 + (p-1)/(pv) times as much.
    assert in_flight(Layout(pipeline=8, virtual_stages=3), 64, 0) == pytest.approx(8 * (1 + 7 / 24))


@settings(max_examples=80, deadline=None)
@given(drawn=layouts())
def test_saving_never_costs_memory(drawn: tuple[Layout, Work]) -> None:
    layout, work = drawn
    num = work.global_batch_size // (layout.data * layout.micro_batch_size)

    def total(**changes: object) -> float:
        return predict_memory(LLAMA_8B, layout.model_copy(update=changes), work, num, 0.05).total

    assert total(recompute="full") <= total(recompute="none") * (1 + 1e-9)
    assert total(offload=True) <= total(offload=False)
    assert total(zero_stage=1) <= total(zero_stage=0)
    if layout.recompute != "operators":  # which keeps sums that are divided, and makes whole ones again
        assert total(sequence_parallel=True) <= total(sequence_parallel=False)
    assert total(fused_loss=True) <= total(fused_loss=False)
