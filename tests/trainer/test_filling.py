"""A model whose processes share its parameters gets its weights as it is divided: bit for bit, in little memory."""

from pathlib import Path
from typing import Any

import pytest
import torch
from filling_jobs import SEED, filled, opened
from many import on_ranks

from whet.models.decoder.fresh import TRAINABLE
from whet.models.filling import Drawing, Filling

SMALL = {"hidden_size": 36, "intermediate_size": 70, "num_hidden_layers": 8, "num_attention_heads": 3}
KINDS: dict[str, dict[str, Any]] = {
    "llama": SMALL,
    "tied": {**SMALL, "tie_word_embeddings": True},
    "qwen2": {**SMALL, "model_type": "qwen2"},  # with biases
    "qwen3": {**SMALL, "model_type": "qwen3", "head_dim": 12},
    "one layer": {**SMALL, "num_hidden_layers": 1},
}
PLANS: list[tuple[int, dict[str, Any]]] = [
    (2, {"zero_stage": 3}),
    (3, {"zero_stage": 2}),
    (4, {"zero_stage": 3, "data_parallel_replicate_degree": 2, "data_parallel_shard_degree": 2}),
]
# Parts are padded to equal sizes, which is at most a row of each weight.
SLACK_BYTES = 4 * 70 * 8 * 12


def written(place: Path, given: dict[str, Any]) -> str:
    """Write a new model into a directory, as a run does."""
    model = opened(given, in_parts=False)
    model.write(place, model.module.state_dict(), {})
    return str(place)


def check(found: list[dict[str, Any]], *, is_deep: bool) -> None:
    for one in found:
        assert one["differ"] == [] and one["buffers"]
        assert one["most"] <= one["part"] + one["unit"] + SLACK_BYTES, one
        assert one["most"] >= one["part"], "what is divided is counted"
        if is_deep:
            assert one["most"] < 0.8 * one["whole"], one


@pytest.mark.parametrize(("world_size", "plan"), PLANS)
def test_a_new_model_is_that_of_one_process_and_never_whole(world_size: int, plan: dict[str, Any]) -> None:
    check(on_ranks(filled, world_size, KINDS["llama"], plan), is_deep=True)


@pytest.mark.parametrize("kind", ["tied", "qwen2", "qwen3", "one layer"])
def test_a_new_model_of_each_kind_is_that_of_one_process(kind: str) -> None:
    check(on_ranks(filled, 2, KINDS[kind], {"zero_stage": 3}), is_deep=kind != "one layer")


@pytest.mark.parametrize(
    "given",
    [
        KINDS["llama"],
        KINDS["tied"],
        {"model_type": "mamba", "hidden_size": 32, "num_hidden_layers": 8, "state_size": 4},
    ],
)
def test_a_model_of_files_is_read_a_unit_at_a_time(tmp_path: Path, given: dict[str, Any]) -> None:
    place = written(tmp_path, given)
    check(on_ranks(filled, 2, place, {"zero_stage": 3}), is_deep=True)


def test_weights_are_drawn_in_any_order_as_if_in_theirs() -> None:
    known = opened(KINDS["qwen2"], in_parts=False).module
    config: Any = known.config
    with torch.device("meta"):
        model = TRAINABLE.build(config)
    names = [name for name, _ in known.named_parameters()]
    for order in (names, names[::-1], names[1::2] + names[::2]):
        assert TRAINABLE.draw is not None
        value_of = Drawing(model, TRAINABLE.draw, config, torch.Generator().manual_seed(SEED))
        drawn = {name: value_of(name) for name in order}
        assert all(torch.equal(drawn[name], p) for name, p in known.named_parameters())


def test_a_weight_of_two_units_is_refused() -> None:
    with torch.device("meta"):
        first, second = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)
    second.weight = first.weight
    fill = Filling(torch.nn.ModuleList([first, second]), lambda name: torch.zeros(2, 2))
    fill(first)
    with pytest.raises(ValueError, match=r"0\.weight belongs to two units"):
        fill(second)
