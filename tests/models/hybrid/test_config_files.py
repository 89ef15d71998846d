import json
import math

import pytest
import torch
from safetensors.torch import save_file

from hybrid_models import FIRST, VARIANTS, config_of
from whet.errors import TargetError
from whet.models.families import open_model
from whet.models.hybrid import load_hybrid, read_config
from whet.models.hybrid.files import file_name, weight_shapes


def read(directory, name, **changes):
    (directory / "config.json").write_text(json.dumps(config_of(name) | changes))
    return read_config(directory)


@pytest.mark.parametrize("name", FIRST)
def test_defaults_are_those_of_transformers(tmp_path, name):
    transformers = pytest.importorskip("transformers")
    family = VARIANTS[name][0]
    dense = {
        "GraniteMoeHybrid": {"num_local_experts": 0},
        "NemotronH": {"layers_block_type": ["linear_attention", "mlp", "full_attention", "mlp"]},
    }.get(family, {})
    theirs = getattr(transformers, f"{family}Config")(**dense)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": theirs.model_type, **dense}))
    ours = read_config(tmp_path)
    names = ("vocab_size", "hidden_size", "num_hidden_layers", "max_position_embeddings", "tie_word_embeddings")
    for field in names:
        assert getattr(ours, field) == getattr(theirs, field), field
    decoder = ours.decoder
    assert decoder.num_key_value_heads == theirs.num_key_value_heads
    if ours.has_rotary or family == "Lfm2":
        assert decoder.rope_parameters.rope_theta == theirs.rope_parameters["rope_theta"]
    eps = [getattr(theirs, name, None) for name in ("rms_norm_eps", "norm_eps", "layer_norm_epsilon")]
    assert decoder.rms_norm_eps in eps
    if ours.mamba is not None:
        found = (ours.mamba.num_heads, ours.mamba.head_dim, ours.mamba.state_size, ours.mamba.n_groups)
        names = ("mamba_n_heads", "mamba_d_head", "mamba_d_state", "mamba_n_groups")
        if family == "NemotronH":
            names = ("mamba_num_heads", "mamba_head_dim", "ssm_state_size", "n_groups")
        assert found == tuple(getattr(theirs, field) for field in names)
        assert ours.mamba.time_step_limit == theirs.time_step_limit == (0.0, math.inf)
    kinds = {
        "conv": ("conv",),
        "linear_attention": ("mamba",),
        "full_attention": ("attention",),
        "hybrid": ("attention", "mamba"),
        "mlp": (),
    }
    assert list(ours.mixers) == [kinds[kind] for kind in theirs.layer_types]


def test_patterns_of_published_nemotron_files(tmp_path):
    """Layers by letters, and names of sizes that only this family has."""
    config = read(tmp_path, "nemotron_h", layers_block_type=None, hybrid_override_pattern="M-*-M", expand=2)
    assert config.mixers == (("mamba",), (), ("attention",), (), ("mamba",))
    assert config.mlp_layers == {1, 3}
    assert (config.mamba.intermediate_size, config.mamba.state_size, config.mamba.n_groups) == (96, 12, 2)
    assert config.mamba.time_step_limit == (0.0, math.inf)  # whatever time_step_min is


def test_a_width_of_none_is_that_of_the_expansion(tmp_path):
    config = read(tmp_path, "falcon_h1", mamba_d_ssm=None)
    assert config.mamba.intermediate_size == 96
    assert read(tmp_path, "bamba", num_key_value_heads=None).decoder.num_key_value_heads == 3


def test_infinity_as_transformers_writes_it(tmp_path):
    config = read(tmp_path, "bamba", time_step_limit=[0.0, {"__float__": "Infinity"}])
    assert config.mamba.time_step_limit == (0.0, math.inf)


def test_published_files_of_lfm2(tmp_path):
    """The MLP's width follows from three fields, as in LFM2-350M's file."""
    config = read(
        tmp_path,
        "lfm2",
        hidden_size=1024,
        num_attention_heads=16,
        num_key_value_heads=8,
        block_ff_dim=6656,
        block_multiple_of=256,
        block_ffn_dim_multiplier=1.0,
        block_auto_adjust_ff_dim=True,
        norm_eps=1e-5,
    )
    assert config.decoder.intermediate_size == 4608
    assert config.decoder.qk_norm


REFUSED = {
    "MoE": (
        "granitemoehybrid",
        {"num_local_experts": 8},
        "num_local_experts is 8: mixtures of experts are not supported",
    ),
    "MoE by default": ("granitemoehybrid", {"num_local_experts": None}, "mixtures of experts are not supported"),
    "positions": ("granitemoehybrid", {"position_embedding_type": "alibi"}, "'alibi' is neither nope nor rope"),
    "layer type": ("lfm2", {"layer_types": ["conv", "mamba", "conv"]}, "'mamba', which is none of full_attention"),
    "unknown type": ("granitemoehybrid", {"layer_types": ["mamba", "moe", "mamba"]}, "'moe', which is none of"),
    "number of types": ("lfm2", {"layer_types": ["conv"]}, "layer_types names 1 layers of 3"),
    "activation": ("bamba", {"hidden_act": "gelu"}, "hidden_act"),
    "size": ("bamba", {"mamba_d_state": 0}, "mamba_d_state"),
    "text": ("bamba", {"hidden_size": "wide"}, "hidden_size"),
    "heads": ("bamba", {"num_key_value_heads": 2}, "not a multiple of num_key_value_heads"),
    "Mamba's heads": ("bamba", {"mamba_d_head": 10}, "mamba_n_heads 6 times mamba_d_head 10 is not"),
    "Mamba's width": ("falcon_h1", {"mamba_d_ssm": 95}, "mamba_n_heads 6 does not divide"),
    "groups": ("falcon_h1", {"mamba_n_groups": 4}, "not a multiple of n_groups"),
    "quantised": ("falcon_h1", {"quantization_config": {}}, "quantization_config: whet reads only unquantised weights"),
    "multipliers": ("falcon_h1", {"ssm_multipliers": [1.0, 1.0]}, "ssm_multipliers"),
    "infinite": ("falcon_h1", {"key_multiplier": {"__float__": "Infinity"}}, "key_multiplier"),
    "rotary": ("lfm2", {"rope_parameters": {"rope_type": "dynamic"}}, "rope_type"),
    "partly": ("falcon_h1", {"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
    "MoE of a pattern": (
        "nemotron_h",
        {"layers_block_type": None, "hybrid_override_pattern": "ME*"},
        "layer_types has 'moe': mixtures of experts are not",
    ),
    "letter": ("nemotron_h", {"layers_block_type": None, "hybrid_override_pattern": "MX"}, "'X', which is none of"),
    "squared": ("nemotron_h", {"mlp_hidden_act": "silu"}, "mlp_hidden_act"),
    "no expansion": ("falcon_h1", {"mamba_d_ssm": None, "mamba_expand": None}, "mamba_expand and hidden_size are no"),
    "one tap": ("lfm2", {"conv_L_cache": 1}, "conv_L_cache"),
    "family": ("lfm2", {"model_type": "mamba"}, "'mamba'; the families of hybrid models are lfm2, granitemoehybrid"),
}


@pytest.mark.parametrize(("name", "changes", "said"), REFUSED.values(), ids=REFUSED)
def test_what_the_model_does_not_support_is_refused(tmp_path, name, changes, said):
    with pytest.raises(TargetError) as raised:
        read(tmp_path, name, **changes)
    assert said in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda w: w.pop("model.norm.weight"), "missing: model.norm.weight"),
        (lambda w: w.update(extra=torch.ones(1)), "unexpected: extra"),
        (
            lambda w: w.update({"model.layers.0.shared_mlp.input_linear.weight": torch.ones(100, 48)}),
            "input_linear.weight is [100, 48] where [112, 48] is wanted",
        ),
        (lambda w: w.update({"lm_head.weight": torch.ones(97, 48)}), "set tie_word_embeddings to false"),
    ],
)
def test_tensors_that_do_not_fit(tmp_path, change, said):
    config = read(tmp_path, "granitemoehybrid", tie_word_embeddings=True)
    weights = {file_name(config.model_type, name): torch.randn(shape) for name, shape in weight_shapes(config).items()}
    for index in range(3):  # gate and up are one tensor of the file
        weights[f"model.layers.{index}.shared_mlp.input_linear.weight"] = torch.randn(112, 48)
    weights["model.layers.1.self_attn.rotary_emb.inv_freq"] = torch.ones(8)  # computed, and ignored
    save_file(weights, tmp_path / "model.safetensors")
    load_hybrid(tmp_path)
    change(weights)
    save_file(weights, tmp_path / "model.safetensors")
    for load in (load_hybrid, open_model):
        with pytest.raises(TargetError) as raised:
            load(tmp_path)
        assert said in str(raised.value)


def test_missing_weights(tmp_path):
    read(tmp_path, "bamba")
    with pytest.raises(TargetError, match=r"has no model\.safetensors"):
        open_model(tmp_path)
