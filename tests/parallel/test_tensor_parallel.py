"""Processes that share the matrices of a decoder make the steps of one process, by themselves and beside ZeRO."""

from typing import Any

import numpy as np
import pytest
import torch
from decoder_jobs import FAMILIES, all_divided, alone, decoder, exchanges
from many import on_ranks
from pydantic import ValidationError
from torch import nn

from whet.errors import OptionError
from whet.models.selective.config import SelectiveConfig
from whet.models.selective.reference import Selective
from whet.parallel.division import division_of
from whet.parallel.plan import ParallelPlan
from whet.parallel.ranks import Ranks
from whet.parallel.tensor_parallel import checked

TWO: dict[str, Any] = {"tensor_parallel_degree": 2}
COPIED: dict[str, Any] = {**TWO, "sequence_parallel": False}
# 19 tokens of the vocabulary, and 7 or 1 of a row, are divided into unequal parts, or leave a process without any.
OF_TWO = [
    *((TWO, {"family": family, "num_parts": 2}) for family in FAMILIES),
    (TWO, {"family": "mistral", "is_packed": True}),
    (TWO, {"family": "qwen2", "is_packed": True, "length": 6}),
    (TWO, {"family": "llama", "length": 1}),
    (TWO, {"family": "qwen3", "dropout": 0.25}),
    (TWO, {"family": "qwen3", "dtype": "float32"}),
    (COPIED, {"family": "llama", "is_packed": True, "num_parts": 2}),
    (COPIED, {"family": "qwen3", "dropout": 0.25}),
]
OF_FOUR = [
    ({"tensor_parallel_degree": 4}, {"family": "qwen2", "num_key_value_heads": 4}),
    (TWO, {"family": "qwen3", "num_parts": 2}),
    ({**TWO, "zero_stage": 3}, {"family": "qwen3"}),
]
MORE_OF_FOUR = [
    (COPIED, {"family": "llama"}),
    ({**TWO, "zero_stage": 2}, {"family": "mistral", "num_parts": 2}),
    ({**TWO, "zero_stage": 3}, {"family": "qwen3", "dtype": "float32"}),
    ({**COPIED, "zero_stage": 3}, {"family": "qwen2", "is_packed": True}),
]
OF_EIGHT = [
    ({**TWO, "zero_stage": 2, "data_parallel_shard_degree": 2}, {"family": "llama", "num_parts": 2}),
    ({**TWO, "zero_stage": 3, "data_parallel_replicate_degree": 2}, {"family": "qwen3"}),
]


@pytest.mark.parametrize(
    ("world_size", "cases"),
    [
        (2, OF_TWO),
        (4, OF_FOUR),
        pytest.param(4, MORE_OF_FOUR, marks=pytest.mark.slow),
        pytest.param(8, OF_EIGHT, marks=pytest.mark.slow),
    ],
)
def test_processes_that_share_matrices_make_the_steps_of_one(world_size: int, cases: list[Any]) -> None:
    for answers in on_ranks(all_divided, world_size, cases):
        for (plan, given), found in zip(cases, answers, strict=True):
            _check(f"{plan} {given}", found, alone(**{k: x for k, x in given.items() if k != "num_parts"}))
            assert found["is_tied"] == FAMILIES[given["family"]].get("tie_word_embeddings", False)


def _check(case: str, found: dict[str, Any], expected: dict[str, Any]) -> None:
    is_exact = expected["logits"].dtype == np.float64
    near, far = (1e-12, 1e-10) if is_exact else (1e-6, 1e-5)
    rows, logits = found["logits"]
    np.testing.assert_allclose(logits, expected["logits"][rows], rtol=far, atol=far, err_msg=case)
    np.testing.assert_allclose(found["losses"], expected["losses"], rtol=near, err_msg=case)
    np.testing.assert_allclose(found["norms"], expected["norms"], rtol=10 * near, err_msg=case)
    assert found["gradients"].keys() == expected["gradients"].keys(), case
    for name, gradient in expected["gradients"].items():
        np.testing.assert_allclose(found["gradients"][name], gradient, rtol=0, atol=far, err_msg=f"{case} {name}")
        if is_exact:  # Adam divides by gradients, so that float32 would say nothing of weights
            weight = expected["weights"][name]
            np.testing.assert_allclose(found["weights"][name], weight, rtol=0, atol=1e-10, err_msg=f"{case} {name}")


def test_a_block_exchanges_twice_in_each_direction_and_a_process_holds_half_of_the_matrices() -> None:
    layers = 2
    [shared, _] = on_ranks(exchanges, 2, "mistral", True)
    [copied, _] = on_ranks(exchanges, 2, "mistral", False)
    once = 2 * layers + 1  # each attention and each MLP, and the embedding or the head
    assert shared["forward"] == {"all_gather_into_tensor": once + 1, "reduce_scatter_tensor": once}  # 1: the logits
    assert copied["forward"] == {"all_gather_into_tensor": 1, "all_reduce": once}
    assert copied["backward"] == {"all_reduce": once}
    # The gradients of norms, which each process computes of its own tokens, are summed too.
    assert shared["backward"] == {
        "all_gather_into_tensor": once,
        "reduce_scatter_tensor": once,
        "all_reduce": 2 * layers + 1,
    }
    for found in (shared, copied):
        assert found["held"] == pytest.approx(0.5, abs=0.02)
        assert found["gradients"] == pytest.approx(0.5, abs=0.02)


@pytest.mark.parametrize(
    ("degree", "sizes", "said"),
    [
        (2, {"num_attention_heads": 3, "num_key_value_heads": 1}, "2 does not divide model.num_attention_heads 3"),
        (4, {}, "4 does not divide model.num_key_value_heads 2"),
        (2, {"intermediate_size": 21}, "2 does not divide model.intermediate_size 21"),
    ],
)
def test_a_degree_that_does_not_divide_the_model_is_refused_by_name(
    degree: int, sizes: dict[str, int], said: str
) -> None:
    with pytest.raises(OptionError, match=f"parallel.tensor_parallel_degree {said}; choose"):
        checked(decoder("qwen3", **sizes), degree)


def test_other_models_and_added_parameters_are_refused_by_name() -> None:
    sizes = {"vocab_size": 8, "hidden_size": 8, "num_hidden_layers": 1, "state_size": 4}
    selective = Selective(SelectiveConfig.model_validate({"model_type": "mamba", **sizes}))
    with pytest.raises(OptionError, match=r"its own decoders alone .* this model is a Selective"):
        checked(selective, 2)
    model = decoder("llama")
    model.layers[0].self_attn.adapter = nn.Linear(2, 2)  # type: ignore[assignment]
    with pytest.raises(OptionError, match=r"the model has layers.0.self_attn.adapter.weight, which whet does not"):
        checked(model, 2)
    changed = decoder("llama")
    changed.layers[1].mlp.down_proj = nn.Sequential(changed.layers[1].mlp.down_proj)  # type: ignore[assignment]
    with pytest.raises(OptionError, match=r"the model has layers.1.mlp.down_proj.0.weight"):
        checked(changed, 2)


def test_what_does_not_run_here_is_refused_by_name() -> None:
    two, cpu = Ranks(world_size=2), torch.device("cpu")
    with pytest.raises(OptionError, match=r"parallel.context_parallel_degree is 2, and whet does not divide rows"):
        division_of(ParallelPlan(context_parallel_degree=2), two, cpu)
    with pytest.raises(OptionError, match=r"parallel.async_tensor_parallel .* GPUs, and device is cpu"):
        division_of(ParallelPlan(**TWO, async_tensor_parallel=True), two, cpu)
    for option in ("static_graph", "find_unused_parameters", "hierarchical_all_reduce"):
        with pytest.raises(ValidationError, match=f"{option} changes nothing without .*a tensor_parallel_degree of 1"):
            ParallelPlan(**TWO, **{option: True})
