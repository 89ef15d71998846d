"""Sizes are read from config.json as transformers reads them, and what is no decoder is refused by its name."""

import json
from pathlib import Path
from typing import Any

import pytest

from whet.errors import TargetError
from whet.planner.model_families import FAMILIES
from whet.planner.model_files import read_model
from whet.trainer.sections import BatchSection, DataSection

LLAMA = {"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}


def written(tmp_path: Path, config: dict[str, Any]) -> Path:
    (tmp_path / "config.json").write_text(json.dumps(config))
    return tmp_path


def test_a_llama_with_transformers_defaults_for_what_is_left_out(tmp_path: Path) -> None:
    found = read_model(written(tmp_path, {**LLAMA, "num_key_value_heads": 2, "head_dim": None}))
    shape = found.shape
    assert (shape.head_size, shape.num_kv_heads, shape.intermediate_size) == (16, 2, 11008)
    assert (shape.vocab_size, shape.is_tied, shape.has_biases, found.longest) == (32000, False, False, 2048)
    assert shape.name == tmp_path.name
    assert read_model(tmp_path / "config.json") == found


def test_gpt2_has_four_times_the_width_learned_positions_and_dropout(tmp_path: Path) -> None:
    shape = read_model(written(tmp_path, {"model_type": "gpt2", "n_embd": 128, "n_head": 4})).shape
    assert (shape.intermediate_size, shape.num_positions, shape.drops) == (512, 1024, True)
    assert (shape.is_gated, shape.norm, shape.is_tied, shape.has_biases) == (False, "layer", True, True)


def test_heads_of_a_gemma_are_wider_than_the_model_divided(tmp_path: Path) -> None:
    shape = read_model(written(tmp_path, {"model_type": "gemma"})).shape
    assert (shape.head_size, shape.num_heads * shape.head_size, shape.hidden_size) == (256, 4096, 3072)
    assert shape.is_tied


@pytest.mark.parametrize(
    ("given", "heads"),
    [({}, 1), ({"multi_query": False}, 71), ({"new_decoder_architecture": True, "num_kv_heads": 8}, 8)],
)
def test_key_value_heads_of_falcons(tmp_path: Path, given: dict[str, Any], heads: int) -> None:
    config = {"model_type": "falcon", "num_attention_heads": 8 if heads == 8 else 71, **given}
    assert read_model(written(tmp_path, config)).shape.num_kv_heads == heads


def test_experts_and_latent_attention_of_deepseek(tmp_path: Path) -> None:
    shape = read_model(written(tmp_path, {"model_type": "deepseek_v3"})).shape
    assert shape.experts is not None and shape.latent is not None
    assert (shape.experts.number, shape.experts.per_token, shape.experts.shared) == (256, 8, 1)
    assert (shape.experts.num_dense_layers, shape.latent.rank, shape.latent.rotary_size) == (3, 512, 64)


def test_a_window_counts_where_the_family_uses_it(tmp_path: Path) -> None:
    assert read_model(written(tmp_path, {"model_type": "mistral"})).shape.window == 4096
    assert read_model(written(tmp_path, {**LLAMA, "sliding_window": 128})).shape.window is None
    qwen = {"model_type": "qwen2", "sliding_window": 128}
    assert read_model(written(tmp_path, qwen)).shape.window is None
    assert read_model(written(tmp_path, {**qwen, "use_sliding_window": True})).shape.window == 128


def test_a_configuration_of_whet_train(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text(
        "[model]\nhidden_size = 64\nnum_hidden_layers = 2\nnum_attention_heads = 4\nintermediate_size = 96\n"
        '[data]\ntrain = "x.txt"\ntokenizer = "bytes"\nsequence_length = 128\n[batch]\nglobal_batch_size = 24\n'
    )
    found = read_model(path)
    assert (found.shape.vocab_size, found.sequence_length, found.global_batch_size) == (256, 128, 24)
    (tmp_path / "model").mkdir()
    written(tmp_path / "model", LLAMA)
    path.write_text('[model]\ndirectory = "model"\n')
    found = read_model(path)
    assert (found.shape.hidden_size, found.sequence_length, found.global_batch_size) == (64, 256, 32)


def test_what_a_configuration_leaves_out_is_as_in_whet_train(tmp_path: Path) -> None:
    written(tmp_path, LLAMA)
    path = tmp_path / "run.toml"
    path.write_text('[model]\ndirectory = "."\n')
    found = read_model(path)
    assert found.sequence_length == DataSection.model_fields["sequence_length"].default
    assert found.global_batch_size == BatchSection.model_fields["global_batch_size"].default


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"model_type": "lama"}, "did you mean llama\\?"),
        ({"model_type": "t5"}, "an encoder with a decoder; whet plans decoders: llama"),
        ({"model_type": "llama", "is_encoder_decoder": True}, "an encoder with a decoder"),
        ({"model_type": "bert"}, "which is an encoder"),
        ({"model_type": "mamba2"}, "a state-space model"),
        ({"model_type": "gemma3", "text_config": {}}, "write its text_config to a file of its own"),
        ({}, "model_type is None"),
        ({**LLAMA, "num_attention_heads": "x"}, "num_attention_heads is 'x'; it must be a whole number above 0"),
        ({**LLAMA, "num_hidden_layers": 0}, "num_hidden_layers is 0; it must be a whole number above 0"),
        ({**LLAMA, "num_key_value_heads": 3}, "4 heads are no multiple of 3 key-value heads"),
        ({"model_type": "deepseek_v2"}, "the key 'num_experts_per_tok' is missing|per_token"),
    ],
)
def test_what_cannot_be_planned_is_said(tmp_path: Path, config: dict[str, Any], said: str) -> None:
    with pytest.raises(TargetError, match=said) as raised:
        read_model(written(tmp_path, config))
    assert "\n" not in str(raised.value)


def test_what_is_no_model_is_said(tmp_path: Path) -> None:
    with pytest.raises(TargetError, match="there is no model"):
        read_model(tmp_path / "none")
    with pytest.raises(TargetError, match=r"has no readable config\.json"):
        read_model(tmp_path)
    path = tmp_path / "run.toml"
    path.write_text("steps = 3\n")
    with pytest.raises(TargetError, match=r"it has no table \[model\]"):
        read_model(path)
    path.write_text("[model]\nhidden_size = 64\n")
    with pytest.raises(TargetError, match="has no vocab_size"):
        read_model(path)


NEEDS = {"deepseek_v2": {"num_experts_per_tok": 6, "num_attention_heads": 16, "hidden_size": 2048}, "mpt": {}}
NEEDS |= {"falcon": {}, "qwen2_moe": {}, "bloom": {"n_layer": 4, "n_head": 8, "hidden_size": 512}}


@pytest.mark.thorough
@pytest.mark.parametrize("model_type", FAMILIES)
def test_parameters_are_those_that_transformers_makes(tmp_path: Path, model_type: str) -> None:
    """Its own default model of each family, made on the meta device."""
    transformers = pytest.importorskip("transformers")
    import torch

    from whet.planner.parameters import model_count

    config = transformers.AutoConfig.for_model(model_type, **NEEDS.get(model_type, {}))
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config)
    theirs = sum(one.numel() for one in model.parameters())
    written(tmp_path, {"model_type": model_type, **NEEDS.get(model_type, {})})
    assert model_count(read_model(tmp_path).shape).total == pytest.approx(theirs, rel=2e-3)
    written(tmp_path, json.loads(config.to_json_string()))
    assert model_count(read_model(tmp_path).shape).total == pytest.approx(theirs, rel=2e-3)
