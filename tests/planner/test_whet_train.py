"""What whet train takes for a layout is what its own reader of plans takes, and what it cannot do is said."""

import tomllib

import pytest
from plain_predictor import a_cluster

from whet.models.decoder.config import MODEL_TYPES
from whet.parallel.plan import ParallelPlan, degrees_of
from whet.planner import whet_train
from whet.planner.layout import Layout, Work
from whet.planner.whet_train import torchrun, train_section

WORK = Work(global_batch_size=64, sequence_length=128)


@pytest.mark.parametrize(
    "layout",
    [
        Layout(replicate=16),
        Layout(replicate=16, micro_batch_size=2, recompute="full"),
        Layout(shard=16, zero_stage=1),
        Layout(shard=16, zero_stage=2),
        Layout(shard=8, replicate=2, zero_stage=3, recompute="full", compiled=True),
        Layout(shard=16, zero_stage=3, offload=True),
        Layout(tensor=8, shard=2, zero_stage=1),
        Layout(tensor=4, shard=4, zero_stage=3),
        Layout(tensor=8, replicate=2),
        Layout(pipeline=4, replicate=4, recompute="full"),
        Layout(pipeline=8, shard=2, zero_stage=1, virtual_stages=2),
        Layout(pipeline=4, shard=2, replicate=2, zero_stage=3, micro_batch_size=4),
        Layout(replicate=16, precision="float32"),
        Layout(tensor=2, pipeline=4, shard=2, zero_stage=2),
    ],
)  # fmt: skip
def test_tables_are_taken_and_mean_the_same_degrees(layout: Layout) -> None:
    found = train_section(layout, WORK, a_cluster(16), "llama")
    assert found.runs, found.missing
    tables = tomllib.loads(found.toml)
    degrees = degrees_of(ParallelPlan.model_validate(tables["parallel"]), 16)
    assert (degrees.tensor, degrees.pipeline, degrees.data) == (layout.tensor, layout.pipeline, layout.data)
    plan = ParallelPlan.model_validate(tables["parallel"])
    assert plan.stage == layout.zero_stage or found.differs
    if layout.zero_stage == 3:
        assert degrees.shard == layout.shard
    if layout.pipeline > 1:
        assert plan.num_micro_batches == 64 // (layout.data * layout.micro_batch_size)
        assert plan.num_stages_per_rank == layout.virtual_stages
        assert (plan.checkpointing == "blocks") == (layout.recompute == "full")
    else:
        assert tables["batch"]["micro_batch_size"] == layout.micro_batch_size
        assert ("checkpointing" in found.recipe) == (layout.recompute == "full")
    assert tables["batch"]["global_batch_size"] == 64


@pytest.mark.parametrize(
    ("layout", "model_type", "said"),
    [
        (Layout(context=4, shard=4), "llama", "whet shares no rows of tokens"),
        (Layout(expert=4, shard=16), "qwen3_moe", "whet shares no experts"),
        (Layout(tensor=8, shard=2), "gpt2", "this is gpt2"),
        (Layout(shard=16, recompute="operators"), "llama", "whet computes whole blocks again"),
    ],
)
def test_what_whet_cannot_run_is_said(layout: Layout, model_type: str, said: str) -> None:
    found = train_section(layout, WORK, a_cluster(16), model_type)
    assert not found.runs
    assert any(said in why for why in found.missing)


def test_the_line_for_torchrun() -> None:
    assert torchrun(a_cluster(8)) == "torchrun --standalone --nproc-per-node 8 -m whet train CONFIG.toml"
    assert "--nnodes 4 " in torchrun(a_cluster(32))
    assert "--nproc-per-node 2 " in torchrun(a_cluster(2))


def test_the_decoders_that_are_divided_are_those_of_whet() -> None:
    """The planner names them itself, since whet's models import torch."""
    assert set(whet_train._DIVIDED) == set(MODEL_TYPES)
