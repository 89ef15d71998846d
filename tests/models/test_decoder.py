import json

import pytest
import torch

from whet.errors import TargetError
from whet.models.decoder import Decoder, DecoderConfig, inverse_frequencies, load_decoder

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


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"tie_word_embeddings": True, "num_key_value_heads": 6},
        {"attention_bias": True, "mlp_bias": True, "head_dim": 16},
        {"rope_parameters": {"rope_type": "default", "rope_theta": 500.0}},
        {"rope_parameters": LLAMA3},
    ],
    ids=["plain", "tied", "biases", "theta", "llama3"],
)
def test_equals_transformers(tmp_path, changes):
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    theirs = transformers.LlamaForCausalLM(transformers.LlamaConfig(**SMALL | changes)).eval()
    with torch.no_grad():
        for weight in theirs.parameters():  # norms and biases too
            weight.add_(torch.randn_like(weight) * 0.1)
    theirs.save_pretrained(tmp_path)
    ours = load_decoder(tmp_path)
    ids = torch.randint(97, (3, 40))
    with torch.no_grad():
        torch.testing.assert_close(ours(ids), theirs(ids, use_cache=False).logits, rtol=1e-4, atol=1e-4)


def test_older_configs_leave_sizes_out():
    old = {key: value for key, value in SMALL.items() if key != "num_key_value_heads"}
    config = DecoderConfig.model_validate({**old, "rope_theta": 500.0, "rope_scaling": None, "head_dim": None})
    assert (config.num_key_value_heads, config.head_dim) == (6, 8)
    assert config.rope_parameters.rope_theta == 500.0
    scaled = DecoderConfig.model_validate({**old, "rope_theta": 10_000.0, "rope_scaling": LLAMA3})
    new = DecoderConfig.model_validate({**old, "rope_parameters": LLAMA3})
    torch.testing.assert_close(inverse_frequencies(scaled), inverse_frequencies(new))


def test_later_tokens_do_not_change_earlier_logits():
    torch.manual_seed(0)
    model = Decoder(DecoderConfig(**SMALL, head_dim=8)).eval()
    ids = torch.randint(97, (1, 10))
    changed = ids.clone()
    changed[0, 6:] = torch.randint(97, (4,))
    torch.testing.assert_close(model(ids)[:, :6], model(changed)[:, :6])


def test_export_with_a_free_length():
    model = Decoder(DecoderConfig(**SMALL, head_dim=8)).eval()
    ids = torch.randint(97, (2, 12))
    program = torch.export.export(
        model, (ids,), strict=False, dynamic_shapes=({0: torch.export.Dim.AUTO, 1: torch.export.Dim.AUTO},)
    )
    longer = torch.randint(97, (3, 20))
    torch.testing.assert_close(program.module()(longer), model(longer))


def write(directory, config):
    (directory / "config.json").write_text(json.dumps(config))
    return directory


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({**SMALL, "model_type": "mamba"}, "model_type"),
        ({**SMALL, "hidden_size": -1}, "hidden_size"),
        ({**SMALL, "num_key_value_heads": 4}, "not a multiple"),
        ({**SMALL, "rope_scaling": {"rope_type": "yarn"}}, "rope_type"),
        ({"vocab_size": 3}, "hidden_size"),
        ([], "config"),
    ],
)
def test_config_that_is_no_llama(tmp_path, config, said):
    with pytest.raises(TargetError, match=said):
        load_decoder(write(tmp_path, config))


def test_files_missing_or_damaged(tmp_path):
    with pytest.raises(TargetError, match=r"config\.json"):
        load_decoder(tmp_path)
    write(tmp_path, SMALL)
    with pytest.raises(TargetError, match=r"no \*\.safetensors"):
        load_decoder(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"not one")
    with pytest.raises(TargetError, match="cannot be read"):
        load_decoder(tmp_path)


def test_weights_that_do_not_fit(tmp_path):
    from safetensors.torch import save_file

    save_file({"model.norm.weight": torch.ones(48)}, write(tmp_path, SMALL) / "model.safetensors")
    with pytest.raises(TargetError, match="do not fit"):
        load_decoder(tmp_path)
