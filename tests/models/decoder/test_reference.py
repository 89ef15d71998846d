import pytest
import torch

from native_steps import saved_by_transformers
from whet.models.decoder import Decoder, DecoderConfig, load_decoder
from whet.models.decoder.reference import visible
from whet.workloads import WEIGHTS

SMALL = {
    "vocab_size": 97,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10_000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
YARN = {"rope_type": "yarn", "rope_theta": 10_000.0, "factor": 4.0, "original_max_position_embeddings": 16}
WINDOW = {"use_sliding_window": True, "sliding_window": 7, "max_window_layers": 1}

VARIANTS = {
    "llama": ("Llama", {}),
    "llama one head a group, tied": ("Llama", {"tie_word_embeddings": True, "num_key_value_heads": 6}),
    "llama one key-value head, biases": (
        "Llama",
        {"num_key_value_heads": 1, "attention_bias": True, "mlp_bias": True, "head_dim": 16},
    ),
    "llama theta": ("Llama", {"rope_parameters": {"rope_type": "default", "rope_theta": 500.0}}),
    "llama linear": ("Llama", {"rope_parameters": {"rope_type": "linear", "rope_theta": 10_000.0, "factor": 3.0}}),
    "llama llama3": ("Llama", {"rope_parameters": LLAMA3}),
    "llama yarn": ("Llama", {"rope_parameters": YARN, "head_dim": 16}),
    "llama sliding window is not read": ("Llama", {"sliding_window": 7}),
    "mistral": ("Mistral", {"sliding_window": None}),
    "mistral window": ("Mistral", {"sliding_window": 7, "head_dim": 16, "rms_norm_eps": 1e-5}),
    "mistral window left out, tied": ("Mistral", {"tie_word_embeddings": True}),
    "qwen2": ("Qwen2", {}),
    "qwen2 tied, window not used": ("Qwen2", {"tie_word_embeddings": True, "sliding_window": 7}),
    "qwen2 window": ("Qwen2", WINDOW),
    "qwen2 yarn": ("Qwen2", {"rope_parameters": {**YARN, "beta_fast": 8.0, "truncate": False}}),
    "qwen3": ("Qwen3", {"head_dim": 12}),
    "qwen3 biases, tied": ("Qwen3", {"head_dim": 8, "attention_bias": True, "tie_word_embeddings": True}),
    "qwen3 layer types": (
        "Qwen3",
        {**WINDOW, "head_dim": 16, "layer_types": ["sliding_attention", "full_attention"]},
    ),
    "qwen3 yarn factors": (
        "Qwen3",
        {"head_dim": 16, "rope_parameters": {**YARN, "mscale": 0.8, "mscale_all_dim": 0.3}},
    ),
    "qwen3 yarn attention factor": ("Qwen3", {"head_dim": 16, "rope_parameters": {**YARN, "attention_factor": 1.3}}),
}


@pytest.mark.parametrize(("family", "changes"), VARIANTS.values(), ids=VARIANTS)
def test_equals_transformers(tmp_path, family, changes):
    shard_size = "40KB" if "tie_word_embeddings" in changes else "5GB"
    theirs = saved_by_transformers(tmp_path, family, SMALL | changes, shard_size)
    ours = load_decoder(tmp_path)
    ids = torch.randint(97, (3, 40))
    with torch.no_grad():
        wanted = theirs(ids, use_cache=False).logits
        assert wanted.std() > 0.5
        torch.testing.assert_close(ours(ids), wanted, rtol=0, atol=1e-4)


def test_trained_model_equals_transformers():
    transformers = pytest.importorskip("transformers")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(WEIGHTS / "docs-gpt", dtype=torch.float32).eval()
    ids = torch.randint(2048, (2, 300), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        wanted = theirs(ids, use_cache=False).logits
        torch.testing.assert_close(load_decoder(WEIGHTS / "docs-gpt")(ids), wanted, rtol=0, atol=1e-4)


def test_half_as_wide_numbers():
    model = load_decoder(WEIGHTS / "docs-gpt", dtype=torch.bfloat16)
    assert {weight.dtype for weight in model.parameters()} == {torch.bfloat16}
    assert model.inv_freq.dtype == torch.float32
    ids = torch.arange(40)[None]
    with torch.no_grad():
        wanted = load_decoder(WEIGHTS / "docs-gpt")(ids)
        error = model(ids).float() - wanted
    assert error.square().mean() < 1e-3 * wanted.square().mean()


def test_tied_heads_stay_tied():
    model = load_decoder(WEIGHTS / "docs-gpt")
    assert model.lm_head.weight is model.embed_tokens.weight


def test_later_tokens_do_not_change_earlier_logits():
    torch.manual_seed(0)
    model = Decoder(DecoderConfig(**SMALL, head_dim=8)).eval()
    ids = torch.randint(97, (1, 10))
    changed = ids.clone()
    changed[0, 6:] = torch.randint(97, (4,))
    torch.testing.assert_close(model(ids)[:, :6], model(changed)[:, :6])


def test_visible():
    seen = visible(torch.arange(2, 5), torch.arange(5), window=2)
    assert seen.int().tolist() == [[0, 1, 1, 0, 0], [0, 0, 1, 1, 0], [0, 0, 0, 1, 1]]
    seen = visible(torch.arange(2, 5), torch.arange(5), None)
    assert seen.int().tolist() == [[1, 1, 1, 0, 0], [1, 1, 1, 1, 0], [1, 1, 1, 1, 1]]


@pytest.mark.parametrize("changes", [{}, {"model_type": "mistral", "sliding_window": 5}], ids=["llama", "window"])
def test_export_with_a_free_length(changes):
    model = Decoder(DecoderConfig(**SMALL, **changes, head_dim=8)).eval()
    ids = torch.randint(97, (2, 12))
    program = torch.export.export(
        model, (ids,), strict=False, dynamic_shapes=({0: torch.export.Dim.AUTO, 1: torch.export.Dim.AUTO},)
    )
    longer = torch.randint(97, (3, 20))
    torch.testing.assert_close(program.module()(longer), model(longer))
