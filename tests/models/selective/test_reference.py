"""Mamba, Falcon-Mamba and Mamba-2 against transformers, whose full forward passes and single steps are right."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from native_steps import saved_by_transformers
from whet.errors import InputsError
from whet.models.selective import Selective, SelectiveConfig, SelectiveState, load_selective

SMALL = {"vocab_size": 97, "hidden_size": 40, "state_size": 12, "num_hidden_layers": 3}
HEADS = {"num_heads": 5, "head_dim": 16, "n_groups": 1}

VARIANTS = {
    "mamba": ("Mamba", {}),
    "mamba untied, biases": ("Mamba", {"tie_word_embeddings": False, "use_bias": True, "time_step_rank": 5}),
    "mamba no conv bias": ("Mamba", {"use_conv_bias": False, "conv_kernel": 3, "expand": 3, "state_size": 16}),
    "falcon_mamba": ("FalconMamba", {"mixer_rms_eps": 1e-3}),
    "falcon_mamba untied": ("FalconMamba", {"tie_word_embeddings": False, "layer_norm_epsilon": 1e-3}),
    "mamba2": ("Mamba2", HEADS),
    "mamba2 groups, tied": ("Mamba2", {"num_heads": 8, "head_dim": 10, "n_groups": 4, "tie_word_embeddings": True}),
    "mamba2 limits, biases": ("Mamba2", {**HEADS, "time_step_limit": (0.01, 0.05), "use_bias": True}),
}
CONFIGS = {
    "mamba": {**SMALL, "model_type": "mamba"},
    "falcon_mamba": {**SMALL, "model_type": "falcon_mamba"},
    "mamba2": {**SMALL, **HEADS, "model_type": "mamba2"},
}


def model_of(name, dtype=torch.float32):
    torch.manual_seed(0)
    model = Selective(SelectiveConfig.model_validate(CONFIGS[name])).eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(torch.randn_like(weight) * 0.05)
    return model.to(dtype)


@pytest.mark.parametrize(("family", "changes"), VARIANTS.values(), ids=VARIANTS)
def test_equals_transformers(tmp_path, family, changes):
    shard_size = "20KB" if "tie_word_embeddings" in changes else "5GB"
    theirs = saved_by_transformers(tmp_path, family, SMALL | changes, shard_size)
    ours = load_selective(tmp_path)
    ids = torch.randint(97, (3, 50))
    with torch.no_grad():
        wanted = theirs(ids, use_cache=False).logits
        assert wanted.std() > 0.5
        torch.testing.assert_close(ours(ids), wanted, rtol=0, atol=1e-4)
        state = ours.new_state(3)
        steps = torch.stack([ours.step(ids[:, t : t + 1], state) for t in range(50)], 1)
        torch.testing.assert_close(steps, wanted, rtol=0, atol=1e-4)


def test_single_steps_equal_those_of_transformers(tmp_path):
    """Greedy tokens, with both caches; transformers' limits of step sizes count in its prefill alone."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    theirs = transformers.Mamba2ForCausalLM(transformers.Mamba2Config(**SMALL | HEADS)).eval()
    theirs.save_pretrained(tmp_path)
    ours, ids = load_selective(tmp_path), torch.randint(97, (2, 9))
    with torch.no_grad():
        state, cache = ours.new_state(2), None
        tokens = ids
        for _ in range(20):
            logits = ours.step(tokens, state)
            output = theirs(tokens, cache=cache, use_cache=True)
            cache = output.cache
            torch.testing.assert_close(logits, output.logits[:, -1], rtol=0, atol=1e-4)
            tokens = logits.argmax(-1, keepdim=True)
    assert state.num_tokens == 28


@pytest.mark.parametrize("name", CONFIGS)
def test_prefill_and_steps_are_one_forward(name):
    model, ids = model_of(name), torch.randint(97, (2, 70))
    with torch.no_grad():
        wanted, state = model(ids), model.new_state(2)
        first = model(ids[:, :33], state)
        rest = [model.step(part, state) for part in ids[:, 33:].split([1, 2, 1, 33], 1)]
    torch.testing.assert_close(first, wanted[:, :33], rtol=0, atol=2e-5)
    for end, logits in zip((34, 36, 37, 70), rest, strict=True):
        torch.testing.assert_close(logits, wanted[:, end - 1], rtol=0, atol=2e-5)


@pytest.mark.parametrize("name", CONFIGS)
def test_a_saved_state_goes_on(tmp_path, name):
    model, ids = model_of(name), torch.randint(97, (2, 20))
    state = model.new_state(2)
    model.step(ids[:, :12], state)
    state.save(tmp_path / "state.safetensors")
    kept, row = state.clone(), state.rows([1])
    wanted = model.step(ids[:, 12:], state)
    loaded = SelectiveState.load(tmp_path / "state.safetensors")
    assert loaded.num_tokens == 12
    assert torch.equal(model.step(ids[:, 12:], loaded), wanted)
    assert torch.equal(model.step(ids[:, 12:], kept), wanted)
    torch.testing.assert_close(model.step(ids[1:, 12:], row), wanted[1:], rtol=0, atol=1e-5)
    assert all(torch.equal(a.scan, b.scan) for a, b in zip(loaded.layers, state.layers, strict=True))


@pytest.mark.parametrize("name", CONFIGS)
def test_gradients_go_through_all_parameters(name):
    """The model's own gradients, by kernels, are those of the same model in float64, in torch."""
    ids = torch.randint(97, (2, 40))
    found = {}
    for dtype in (torch.float32, torch.float64):
        model = model_of(name, dtype)
        logits = model(ids[:, :-1])
        assert logits.dtype is dtype
        torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten()).backward()
        found[dtype] = {key: weight.grad for key, weight in model.named_parameters()}
    for key, gradient in found[torch.float32].items():
        right = found[torch.float64][key]
        assert float((gradient.double() - right).norm()) < 2e-4 * float(right.norm()), key


@pytest.mark.parametrize("name", CONFIGS)
def test_half_as_wide_matrices(tmp_path, name):
    wide = model_of(name)
    write(tmp_path, CONFIGS[name], wide)
    model = load_selective(tmp_path, torch.bfloat16)
    types = {key: weight.dtype for key, weight in model.named_parameters()}
    assert types["layers.0.mixer.in_proj.weight"] is torch.bfloat16
    assert types["layers.0.mixer.A_log"] is types["layers.0.norm.weight"] is torch.float32
    ids = torch.randint(97, (2, 30))
    with torch.no_grad():
        wanted, state = wide(ids), model.new_state(2)
        error = model(ids).float() - wanted
        assert error.square().mean() < 1e-3 * wanted.square().mean()
        assert (model.step(ids, state).float() - wanted[:, -1]).square().mean() < 2e-3 * wanted.square().mean()
    assert {layer.conv_BSC.dtype for layer in state.layers} == {torch.bfloat16}
    assert {layer.scan.dtype for layer in state.layers} == {torch.float32}


def write(directory, config, model):
    (directory / "config.json").write_text(json.dumps(config))
    tensors = {f"backbone.{key}": value.detach().clone() for key, value in model.state_dict().items()}
    if model.config.tie_word_embeddings:
        del tensors["backbone.lm_head.weight"]
    else:
        tensors["lm_head.weight"] = tensors.pop("backbone.lm_head.weight")
    save_file(tensors, directory / "model.safetensors")


@pytest.mark.parametrize(
    ("name", "original"),
    [
        ("mamba", {"ssm_cfg": {"d_state": 12}, "vocab_size": 97, "pad_vocab_size_multiple": 1}),
        (
            "mamba2",
            {
                "ssm_cfg": {"layer": "Mamba2", "d_state": 12, "headdim": 16},
                "vocab_size": 90,
                "pad_vocab_size_multiple": 97,
                "tie_embeddings": False,
            },
        ),
    ],
)
def test_the_original_layout_is_the_same_model(tmp_path, name, original):
    model = model_of(name)
    write(tmp_path, {"d_model": 40, "n_layer": 3, "rms_norm": True, "fused_add_norm": True, **original}, model)
    tensors = load_file(tmp_path / "model.safetensors")
    tensors["backbone.embedding.weight"] = tensors.pop("backbone.embeddings.weight")
    tensors.setdefault("lm_head.weight", tensors["backbone.embedding.weight"].clone())  # tied heads are stored twice
    save_file(tensors, tmp_path / "model.safetensors")
    ids = torch.randint(97, (2, 9))
    with torch.no_grad():
        assert torch.equal(load_selective(tmp_path)(ids), model(ids))


def test_tied_heads_stay_tied(tmp_path):
    write(tmp_path, CONFIGS["mamba"], model_of("mamba"))
    model = load_selective(tmp_path)
    assert model.lm_head.weight is model.embeddings.weight


def test_later_tokens_do_not_change_earlier_logits():
    for name in CONFIGS:
        model, ids = model_of(name), torch.randint(97, (1, 40))
        changed = ids.clone()
        changed[0, 20:] = torch.randint(97, (20,))
        assert torch.equal(model(ids)[:, :20], model(changed)[:, :20])


@pytest.mark.parametrize("name", CONFIGS)
def test_new_weights_begin_with_step_sizes_in_range(name):
    config = SelectiveConfig.model_validate(CONFIGS[name])
    mixer = Selective(config).layers[0].mixer
    step = torch.nn.functional.softplus(mixer.dt_bias if name == "mamba2" else mixer.dt_proj.bias)
    assert config.time_step_min * 0.99 < step.min() < step.max() < config.time_step_max * 1.01
    assert mixer.A_log.exp().min() >= 1


def test_a_state_that_does_not_fit_is_refused():
    model, other = model_of("mamba"), model_of("mamba2")
    ids = torch.zeros(2, 3, dtype=torch.int64)
    state = model.new_state(2)
    for wrong, use in ((other.new_state(2), model), (model.new_state(1), model), (state, other)):
        with pytest.raises(InputsError, match=r"the state is not one of 2 sequences .*new_state\(batch_size=2\)"):
            use.step(ids, wrong)
    assert state.num_tokens == 0


def test_torch_compiles_it():
    """The operators are opaque to a graph, and have shapes without values."""
    program = torch.export.export(model_of("mamba2"), (torch.randint(97, (2, 12)),), strict=False)
    ids = torch.randint(97, (2, 12))
    torch.testing.assert_close(program.module()(ids), model_of("mamba2")(ids))
