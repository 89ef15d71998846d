import json

import pytest
import torch

from whet.errors import TargetError
from whet.models.decoder.config import DecoderConfig, read_config
from whet.models.decoder.rope import inverse_frequencies, rotary_scale

SMALL = {
    "model_type": "llama",
    "vocab_size": 97,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 4,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
}


def read(directory, **changes):
    (directory / "config.json").write_text(json.dumps(SMALL | changes))
    return read_config(directory)


def test_older_configs_leave_sizes_out():
    old = {key: value for key, value in SMALL.items() if key != "num_key_value_heads"}
    config = DecoderConfig.model_validate({**old, "rope_theta": 500.0, "rope_scaling": None, "head_dim": None})
    assert (config.num_key_value_heads, config.head_dim, config.max_position_embeddings) == (6, 8, 2048)
    assert config.rope_parameters.rope_theta == 500.0


LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 16}


@pytest.mark.parametrize(
    "rope",
    [{"rope_type": "llama3", **LLAMA3}, {"rope_type": "linear", "factor": 2.0}, {"rope_type": "yarn", "factor": 4.0}],
    ids=lambda rope: rope["rope_type"],
)
def test_rotary_parameters_of_older_files(tmp_path, rope):
    older = {**rope, "type": rope["rope_type"]}
    del older["rope_type"]
    scaled = read(tmp_path, rope_theta=500.0, rope_scaling=older)
    new = read(tmp_path, rope_parameters={**rope, "rope_theta": 500.0})
    assert scaled == new
    plain = read(tmp_path, rope_theta=500.0)
    assert not torch.equal(inverse_frequencies(scaled), inverse_frequencies(plain))
    assert rotary_scale(plain) == 1.0


def test_original_context_where_the_file_names_none(tmp_path):
    yarn = {"rope_type": "yarn", "factor": 4.0}
    assert read(tmp_path, rope_scaling=yarn).rope_parameters.original_max_position_embeddings == 2048
    config = read(tmp_path, rope_scaling=yarn, max_position_embeddings=100)
    assert config.rope_parameters.original_max_position_embeddings == 100
    config = read(tmp_path, rope_scaling=yarn, original_max_position_embeddings=50)
    assert config.rope_parameters.original_max_position_embeddings == 50


@pytest.mark.parametrize(
    ("changes", "windows"),
    [
        ({"model_type": "llama", "sliding_window": 9}, [None] * 4),
        ({"model_type": "mistral"}, [4096] * 4),
        ({"model_type": "mistral", "sliding_window": None}, [None] * 4),
        ({"model_type": "qwen2", "sliding_window": 9}, [None] * 4),
        ({"model_type": "qwen2", "sliding_window": 9, "use_sliding_window": True}, [None] * 4),
        (
            {"model_type": "qwen2", "sliding_window": 9, "use_sliding_window": True, "max_window_layers": 3},
            [None, None, None, 9],
        ),
        (
            {
                "model_type": "qwen3",
                "sliding_window": 9,
                "use_sliding_window": True,
                "layer_types": ["sliding_attention", "full_attention"] * 2,
            },
            [9, None, 9, None],
        ),
    ],
)
def test_windows(tmp_path, changes, windows):
    config = read(tmp_path, **changes)
    assert [config.window_of(layer) for layer in range(4)] == windows


@pytest.mark.parametrize(
    ("changes", "biases"),
    [
        ({"model_type": "llama"}, (False, False, False)),
        ({"model_type": "llama", "attention_bias": True, "mlp_bias": True}, (True, True, True)),
        ({"model_type": "mistral", "attention_bias": True}, (False, False, False)),
        ({"model_type": "qwen2"}, (True, False, False)),
        ({"model_type": "qwen3", "attention_bias": True}, (True, True, False)),
    ],
)
def test_biases(tmp_path, changes, biases):
    config = read(tmp_path, **changes)
    assert (config.qkv_bias, config.o_bias, config.mlp_bias) == biases
    assert config.qk_norm == (config.model_type == "qwen3")


def test_head_dim_that_qwen3_leaves_out(tmp_path):
    assert read(tmp_path, model_type="qwen3").head_dim == 128


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"model_type": "mamba"}, "'mamba'; whet's decoder runs the families llama"),
        ({"model_type": None}, "model_type is None"),
        ({"model_type": ["llama"]}, "model_type is"),
        ({"hidden_size": -1}, "hidden_size"),
        ({"hidden_size": "wide"}, "hidden_size"),
        ({"hidden_size": None}, "hidden_size"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers"),
        ({"num_key_value_heads": 4}, "not a multiple"),
        ({"num_attention_heads": 0}, "num_attention_heads"),
        ({"head_dim": 9}, "head_dim is odd"),
        ({"hidden_act": "gelu"}, "hidden_act"),
        ({"rms_norm_eps": 0}, "rms_norm_eps"),
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps"),
        ({"quantization_config": {"quant_method": "gptq"}}, "quantization_config"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "rope_type: Input should be 'default', 'linear'"),
        ({"rope_scaling": {"rope_type": "longrope"}}, "rope_type"),
        ({"rope_scaling": "linear"}, "rope_parameters"),
        ({"rope_scaling": {"type": "yarn"}}, "rope_type yarn needs factor"),
        ({"rope_scaling": {"type": "llama3", "factor": 2.0}}, "needs low_freq_factor, high_freq_factor"),
        ({"rope_scaling": {**LLAMA3, "type": "llama3", "low_freq_factor": 4.0}}, "less than high_freq_factor"),
        ({"rope_parameters": {"full_attention": {"rope_theta": 1e4}}}, "differ from layer to layer"),
        ({"rope_theta": 0.5}, "rope_theta"),
        ({"model_type": "qwen3", "layer_types": ["full_attention"]}, "names 1 layers of 4"),
        ({"model_type": "qwen3", "layer_types": ["sliding_attention"] * 4}, "no sliding_window"),
        ({"model_type": "qwen3", "layer_types": ["chunked_attention"] * 4}, "layer_types"),
    ],
)
def test_what_the_decoder_does_not_do(tmp_path, changes, said):
    with pytest.raises(TargetError) as raised:
        read(tmp_path, **changes)
    assert said in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"3", b"\xff\xfe", b"[" * 100_000])
def test_damaged(tmp_path, content):
    (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(TargetError, match=r"config\.json"):
        read_config(tmp_path)


def test_missing(tmp_path):
    with pytest.raises(TargetError, match=r"no readable config\.json"):
        read_config(tmp_path)
    with pytest.raises(TargetError, match=r"no readable config\.json"):
        read_config(tmp_path / "nowhere")
