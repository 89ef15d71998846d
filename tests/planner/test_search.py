"""The search finds what looking at all layouts finds, and says why others do not fit."""

from typing import Any

import pytest
from plain_predictor import a_cluster, a_shape, predict

from whet.errors import OptionError
from whet.planner.alternatives import alternatives_of, misfits_of, nothing_fits
from whet.planner.clusters import cluster_named
from whet.planner.layout import Layout, Work
from whet.planner.model_shape import Experts, ModelShape
from whet.planner.predict import predict as real_predict
from whet.planner.search import Search
from whet.planner.space import Space, check_batch


def gated(layers: int, hidden: int, inner: int, heads: int, kv: int, vocab: int, **given: Any) -> ModelShape:
    return a_shape(
        num_layers=layers, hidden_size=hidden, intermediate_size=inner, num_heads=heads, num_kv_heads=kv,
        head_size=hidden // heads, vocab_size=vocab, **given,
    )  # fmt: skip


_MIXTURE = Experts(number=8, per_token=2, intermediate_size=14336)
_FINE_MIXTURE = Experts(number=128, per_token=8, intermediate_size=768)
MODELS: dict[str, tuple[ModelShape, int, int]] = {
    "gpt2": (gated(12, 768, 3072, 12, 12, 50257, is_gated=False), 512, 1024),
    "llama-3.2-1b": (gated(16, 2048, 8192, 32, 8, 128_256, is_tied=True), 512, 8192),
    "llama-3-8b": (gated(32, 4096, 14336, 32, 8, 128_256), 512, 8192),
    "llama-2-7b": (gated(32, 4096, 11008, 32, 32, 32000), 1024, 4096),
    "qwen2.5-14b": (gated(48, 5120, 13824, 40, 8, 152_064), 512, 4096),
    "qwen2.5-32b": (gated(64, 5120, 27648, 40, 8, 152_064), 512, 4096),
    "llama-3-70b": (gated(80, 8192, 28672, 64, 8, 128_256), 512, 8192),
    "gpt-3": (gated(96, 12288, 49152, 96, 96, 50257, is_gated=False), 1536, 2048),
    "gpt-neox-20b": (gated(44, 6144, 24576, 64, 64, 50432, is_gated=False), 768, 2048),
    "mixtral-8x7b": (gated(32, 4096, 14336, 32, 8, 32000, experts=_MIXTURE), 512, 8192),
    "qwen3-30b-a3b": (gated(48, 2048, 6144, 32, 4, 151_936, experts=_FINE_MIXTURE), 512, 4096),
}


def space_of(shape: ModelShape, rows: int, tokens: int, chips: int, **given: Any) -> Space:
    return Space(shape, a_cluster(chips), Work(global_batch_size=rows, sequence_length=tokens), **given)


@pytest.mark.thorough
@pytest.mark.timeout(1500)  # tens of thousands of predictions
@pytest.mark.parametrize("name", MODELS)
def test_the_best_of_all_layouts_of_64_gpus_is_found_with_a_twentieth_of_the_predictions(name: str) -> None:
    shape, rows, tokens = MODELS[name]
    space = Space(shape, cluster_named("h100", 64), Work(global_batch_size=rows, sequence_length=tokens))
    everything, search = Search(space, real_predict), Search(space, real_predict)
    best = everything.exhaustive()
    found = search.ranked(1)
    assert best is not None and best.fits
    assert Search(space, real_predict).ranked()[0].key == best.key
    assert found[0].key == best.key
    assert len(search.seen) <= len(everything.seen) / 20
    assert len(everything.seen) == space.count()


@pytest.mark.parametrize("name", ["gpt2", "llama-3-8b", "mixtral-8x7b"])
@pytest.mark.parametrize("memory_gb", [24, 80])
def test_the_best_of_all_layouts_of_8_gpus_is_found(name: str, memory_gb: float) -> None:
    shape, _, tokens = MODELS[name]
    space = Space(
        shape, a_cluster(8, memory_gb=memory_gb), Work(global_batch_size=16, sequence_length=tokens)
    )  # fmt: skip
    best = Search(space, predict).exhaustive()
    found = Search(space, predict).ranked()
    assert best is not None
    assert found[0].fits == best.fits
    if best.fits:
        assert found[0].prediction.step_s.value == pytest.approx(best.prediction.step_s.value, rel=0.02)
    assert [one.key for one in found] == sorted(one.key for one in found)
    assert [one.layout for one in found] == [one.layout for one in Search(space, predict).ranked()]


def test_layouts_divide_what_they_share() -> None:
    shape, rows, tokens = MODELS["mixtral-8x7b"]
    found = list(space_of(shape, rows, tokens, 32).layouts())
    assert len(found) == len(set(found)) == space_of(shape, rows, tokens, 32).count()
    for one in found:
        assert one.chips == 32
        assert one.tensor <= 8
        assert shape.num_heads % one.tensor == 0
        assert rows % (one.data * one.micro_batch_size) == 0
        assert one.data % one.expert == 0 and 8 % one.expert == 0
        assert one.zero_stage or one.shard == 1
        parts = rows // (one.data * one.micro_batch_size)
        assert one.virtual_stages == 1 or parts % one.pipeline == 0
    assert {one.tensor for one in found} == {1, 2, 4, 8}
    assert {one.pipeline for one in found} >= {1, 2, 4, 8, 16}
    assert {one.zero_stage for one in found} == {0, 1, 2, 3}


def test_tensor_parallelism_leaves_a_node_where_it_may() -> None:
    shape, rows, tokens = MODELS["llama-3-8b"]
    assert max(one.tensor for one in space_of(shape, rows, tokens, 32).degrees) == 8
    assert max(one.tensor for one in space_of(shape, rows, tokens, 32, most_tensor=32).degrees) == 32


def test_layouts_that_are_not_admitted_are_not_predicted() -> None:
    shape, rows, tokens = MODELS["llama-3-8b"]
    search = Search(space_of(shape, rows, tokens, 64, admits=lambda one: one.tensor == 2), predict)
    assert search.ranked()
    assert {one.tensor for one in search.seen} == {2}


def test_thousands_of_ranks_take_few_predictions() -> None:
    shape, _, tokens = MODELS["llama-3-70b"]
    search = Search(space_of(shape, 2048, tokens, 8192), predict)
    assert search.ranked(1)[0].fits
    assert len(search.seen) < 1000


def test_why_usual_ways_do_not_fit() -> None:
    shape, rows, tokens = MODELS["llama-3-8b"]
    search = Search(space_of(shape, rows, tokens, 64), predict)
    search.ranked()
    found = {one.name: one for one in alternatives_of(search)}
    plain = found["data parallel"]
    parameters = 8.03e9
    assert not plain.fits
    assert (plain.part, plain.part_bytes) == ("optimizer", pytest.approx(12 * parameters, rel=0.01))
    assert plain.lacks == pytest.approx(plain.memory_bytes - 0.94 * 80e9)
    assert found["ZeRO 3 (FSDP)"].fits
    assert found["ZeRO 1"].memory_bytes < plain.memory_bytes
    assert {"tensor parallel 8", "pipeline 32"} <= found.keys()
    misfits = misfits_of(search)
    over = [one for one in search.seen.values() if not one.fits]
    assert sum(misfits.by_part.values()) == len(over)
    assert misfits.nearest is not None
    assert misfits.nearest.lacks == min(one.lacks for one in over)


def test_nothing_fits_is_said_with_what_is_nearest_and_what_would_do() -> None:
    shape, _, tokens = MODELS["llama-3-70b"]
    space = space_of(shape, 256, tokens, 8)
    search = Search(space, predict)
    nearest = search.ranked()[0]
    assert not nearest.fits
    said = str(nothing_fits(search, nearest, predict))
    assert said.startswith("no layout of small fits 8 x chip (80.0 GB): the nearest, tensor 8")
    assert "\n" not in said
    number = int(said.partition("--gpus ")[2].split()[0])
    assert Search(space_of(shape, 256, tokens, number), predict).ranked(1)[0].fits
    assert not Search(space_of(shape, 256, tokens, number // 2), predict).ranked(1)[0].fits


def test_state_in_the_hosts_memory_counts_against_it() -> None:
    shape, _, tokens = MODELS["llama-3-70b"]
    layout = Layout(shard=8, zero_stage=3, recompute="full", offload=True)
    space = space_of(shape, 256, tokens, 8)
    small = space.cluster.model_copy(
        update={"host": space.cluster.host.model_copy(update={"memory_bytes": 1e11})}
    )  # fmt: skip
    much = Search(space, predict).candidate(layout).lacks
    assert Search(Space(shape, small, space.work), predict).candidate(layout).lacks > much + 8e10


@pytest.mark.parametrize(
    ("rows", "chips", "nearest"), [(7, 8, "8 and 4"), (4095, 64, "4096 and 4032"), (1023, 512, "1024 and 512")]
)
def test_rows_that_do_not_divide_are_refused_with_the_nearest(rows: int, chips: int, nearest: str) -> None:
    with pytest.raises(
        OptionError, match=f"--global-batch-size {rows} .* {chips} GPUs; the nearest that do are {nearest}"
    ):
        check_batch(Work(global_batch_size=rows, sequence_length=8), chips)


@pytest.mark.parametrize(("rows", "chips"), [(6, 8), (1, 8), (7, 1), (1536, 1024), (512, 8192)])
def test_rows_that_divide_in_part_are_taken(rows: int, chips: int) -> None:
    check_batch(Work(global_batch_size=rows, sequence_length=8), chips)
