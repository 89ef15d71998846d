import json
import math

import pytest
import torch
from safetensors.torch import save_file

from whet.errors import TargetError
from whet.models.selective import SelectiveState, load_selective, read_config
from whet.models.selective.files import weight_shapes

SMALL = {"model_type": "mamba", "vocab_size": 97, "hidden_size": 40, "state_size": 12, "num_hidden_layers": 2}


def read(directory, **changes):
    (directory / "config.json").write_text(json.dumps(SMALL | changes))
    return read_config(directory)


def test_defaults_are_those_of_transformers(tmp_path):
    transformers = pytest.importorskip("transformers")
    names = ("vocab_size", "hidden_size", "state_size", "num_hidden_layers", "layer_norm_epsilon", "conv_kernel")
    names += ("use_bias", "use_conv_bias", "tie_word_embeddings", "time_step_min", "time_step_max", "time_step_floor")
    for family, more in (
        ("Mamba", ("time_step_rank", "intermediate_size")),
        ("FalconMamba", ("time_step_rank", "mixer_rms_eps")),
        ("Mamba2", ("num_heads", "head_dim", "n_groups", "time_step_limit")),
    ):
        theirs = getattr(transformers, f"{family}Config")()
        (tmp_path / "config.json").write_text(json.dumps({"model_type": theirs.model_type}))
        ours = read_config(tmp_path)
        for name in names + more:
            assert getattr(ours, name) == getattr(theirs, name), (family, name)


def test_the_inner_width_in_a_file_counts(tmp_path):
    """Falcon-Mamba's files say expand 16, and an inner width of twice the hidden size."""
    config = read(tmp_path, model_type="falcon_mamba", expand=16, intermediate_size=80)
    assert (config.intermediate_size, config.time_step_rank) == (80, 3)


@pytest.mark.parametrize("limit", [math.inf, {"__float__": "Infinity"}])
def test_step_sizes_without_a_limit(tmp_path, limit):
    config = read(tmp_path, model_type="mamba2", num_heads=5, head_dim=16, n_groups=1, time_step_limit=[0.0, limit])
    assert config.time_step_limit == (0.0, math.inf)


def test_the_original_defaults(tmp_path):
    original = {"d_model": 768, "n_layer": 24, "vocab_size": 50277, "ssm_cfg": {"layer": "Mamba2"}}
    (tmp_path / "config.json").write_text(json.dumps({**original, "pad_vocab_size_multiple": 16}))
    config = read_config(tmp_path)
    assert (config.vocab_size, config.num_heads, config.n_groups, config.state_size) == (50288, 24, 1, 128)
    (tmp_path / "config.json").write_text(json.dumps(original | {"ssm_cfg": {}}))
    config = read_config(tmp_path)
    assert (config.model_type, config.vocab_size, config.state_size, config.time_step_rank) == ("mamba", 50280, 16, 48)
    assert config.tie_word_embeddings


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"model_type": "llama"}, "model_type is 'llama'; the selective state-space families are mamba, mamba2"),
        ({"hidden_act": "gelu"}, "hidden_act"),
        ({"state_size": 0}, "state_size"),
        ({"expand": 1e400}, "cannot be used: cannot convert float infinity to integer"),
        ({"quantization_config": {}}, "quantization_config: whet reads only unquantised weights"),
        ({"model_type": "mamba2", "num_heads": 3, "head_dim": 16}, "is not intermediate_size"),
        ({"model_type": "mamba2", "num_heads": 5, "head_dim": 16, "n_groups": 2}, "not a multiple of n_groups"),
        (
            {"model_type": "mamba2", "num_heads": 5, "head_dim": 16, "n_groups": 1, "time_step_limit": [1, 0]},
            "time_step_limit is not two numbers in order",
        ),
    ],
)
def test_what_the_model_does_not_support_is_refused(tmp_path, changes, said):
    with pytest.raises(TargetError) as raised:
        read(tmp_path, **changes)
    assert said in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"rms_norm": False}, "rms_norm is False, and whet takes True"),
        ({"attn_layer_idx": [3]}, "attn_layer_idx is [3]"),
        ({"ssm_cfg": {"D_has_hdim": True}}, "ssm_cfg has D_has_hdim"),
        ({"ssm_cfg": [1]}, "ssm_cfg is no object"),
        ({"ssm_cfg": {"layer": "Mamba2", "headdim": 0}}, "headdim is 0, not a number above 0"),
        ({"ssm_cfg": {"layer": "Mamba2", "expand": "2"}}, "expand is no number"),
        ({"d_model": "wide"}, "d_model is 'wide', not a number above 0"),
        ({"pad_vocab_size_multiple": 0}, "pad_vocab_size_multiple is 0"),
    ],
)
def test_originals_that_compute_otherwise_are_refused(tmp_path, changes, said):
    (tmp_path / "config.json").write_text(json.dumps({"d_model": 40, "n_layer": 2} | changes))
    with pytest.raises(TargetError) as raised:
        read_config(tmp_path)
    assert said in str(raised.value)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda w: w.pop("backbone.norm_f.weight"), "missing: norm_f.weight"),
        (lambda w: w.update(extra=torch.ones(1)), "unexpected: extra"),
        (lambda w: w.update({"backbone.norm_f.weight": torch.ones(41)}), "norm_f.weight is [41] where [40] is wanted"),
        (lambda w: w.update({"backbone.embedding.weight": torch.ones(97, 40)}), "embeddings.weight twice"),
        (lambda w: w.update({"lm_head.weight": torch.ones(97, 40)}), "set tie_word_embeddings"),
    ],
)
def test_tensors_that_do_not_fit(tmp_path, change, said):
    config = read(tmp_path)
    weights = {f"backbone.{name}": torch.randn(shape) for name, shape in weight_shapes(config).items()}
    change(weights)
    save_file(weights, tmp_path / "model.safetensors")
    with pytest.raises(TargetError) as raised:
        load_selective(tmp_path)
    assert said in str(raised.value)


def test_a_pickle_is_not_read(tmp_path):
    read(tmp_path)
    (tmp_path / "pytorch_model.bin").write_bytes(b"anything")
    with pytest.raises(TargetError, match=r"only pytorch_model\.bin, and whet reads no pickles: save its tensors"):
        load_selective(tmp_path)


def test_files_that_are_no_states(tmp_path):
    path = tmp_path / "state.safetensors"
    for content in (None, b"", b"not one"):
        if content is not None:
            path.write_bytes(content)
        with pytest.raises(TargetError, match="cannot be read as a state"):
            SelectiveState.load(path)
    save_file({"a": torch.zeros(1)}, path)
    with pytest.raises(TargetError, match="is not a state that whet saved"):
        SelectiveState.load(path)


@pytest.mark.parametrize(
    ("layers", "num_tokens", "names"),
    [("1", "-5", "0 0"), ("1", str(2**31), "0 0"), ("9" * 12, "5", "0 0"), ("1", "5", "0 -1"), ("2", "5", "0 0")],
)
def test_numbers_of_a_state_that_are_out_of_range(tmp_path, layers, num_tokens, names):
    path, metadata = tmp_path / "state.safetensors", {"layers": layers, "num_tokens": num_tokens}
    tensors = {f"layers.{i}.{key}": torch.zeros(1) for i, key in zip(names.split(), ("conv", "scan"), strict=True)}
    save_file(tensors, path, {"format": "whet selective state 1"} | metadata)
    with pytest.raises(TargetError, match="cannot be read as a state"):
        SelectiveState.load(path)
