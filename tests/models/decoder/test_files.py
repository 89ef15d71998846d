import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from whet.errors import TargetError
from whet.models.decoder import load_decoder
from whet.models.decoder.config import read_config
from whet.models.decoder.files import read_weights, weight_shapes

MAPS = Path("/proc/self/maps")
SMALL = {
    "model_type": "llama",
    "vocab_size": 31,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
}


def write_config(directory, **changes):
    (directory / "config.json").write_text(json.dumps(SMALL | changes))
    return read_config(directory)


def random_weights(config, dtype=torch.bfloat16):
    torch.manual_seed(0)
    shapes = weight_shapes(config).items()
    return {(name if name.startswith("lm_head") else f"model.{name}"): torch.randn(s).to(dtype) for name, s in shapes}


def write_shards(directory, weights):
    """Every third tensor in the same one of three files."""
    where = {}
    for shard in range(3):
        file = f"model-0000{shard + 1}-of-00003.safetensors"
        names = sorted(weights)[shard::3]
        save_file({name: weights[name] for name in names}, directory / file)
        where |= dict.fromkeys(names, file)
    index = directory / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {"total_size": 1}, "weight_map": where}))
    return index


def refused(directory):
    with pytest.raises(TargetError) as raised:
        load_decoder(directory)
    message = str(raised.value)
    assert "\n" not in message
    return message


@pytest.mark.parametrize("write", [lambda d, w: save_file(w, d / "model.safetensors"), write_shards])
def test_as_stored(tmp_path, write):
    config = write_config(tmp_path)
    weights = random_weights(config)
    write(tmp_path, weights)
    got = read_weights(tmp_path, config)
    assert set(got) == set(weight_shapes(config))
    for name, tensor in weights.items():
        assert got[name.removeprefix("model.")].dtype == torch.bfloat16
        assert torch.equal(got[name.removeprefix("model.")], tensor)
    model = load_decoder(tmp_path)
    torch.testing.assert_close(model.lm_head.weight, weights["lm_head.weight"].float())


@pytest.mark.skipif(not MAPS.exists(), reason="this system does not list what is mapped")
def test_mapped_not_copied(tmp_path):
    config = write_config(tmp_path)
    save_file(random_weights(config), tmp_path / "model.safetensors")
    weights = read_weights(tmp_path, config)
    assert str(tmp_path / "model.safetensors") in MAPS.read_text()
    model = load_decoder(tmp_path, dtype=torch.bfloat16)
    del weights
    assert str(tmp_path / "model.safetensors") not in MAPS.read_text()
    assert model.norm.weight.dtype == torch.bfloat16


def test_what_old_files_hold_besides(tmp_path):
    config = write_config(tmp_path, tie_word_embeddings=True)
    weights = random_weights(config)
    weights["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.ones(4)
    weights["lm_head.weight"] = weights["model.embed_tokens.weight"].clone()
    save_file(weights, tmp_path / "model.safetensors")
    assert set(read_weights(tmp_path, config)) == set(weight_shapes(config))
    weights["lm_head.weight"] += 1
    save_file(weights, tmp_path / "model.safetensors")
    assert "set tie_word_embeddings to false" in refused(tmp_path)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda w: w.pop("model.norm.weight"), "missing: norm.weight"),
        (lambda w: [w.pop(name) for name in list(w) if "mlp" in name], "(and 5 more)"),
        (lambda w: w.update(extra=torch.ones(1)), "unexpected: extra"),
        (lambda w: w.update({"model.norm.weight": torch.ones(17)}), "norm.weight is [17] where [16] is wanted"),
        (lambda w: w.update({"model.norm.weight": torch.ones(16, dtype=torch.int8)}), "stored as I8"),
        (lambda w: w.update({"norm.weight": torch.ones(16)}), "norm.weight twice"),
    ],
)
def test_tensors_that_do_not_fit(tmp_path, change, said):
    weights = random_weights(write_config(tmp_path))
    change(weights)
    save_file(weights, tmp_path / "model.safetensors")
    assert said in refused(tmp_path)


def test_more_layers_than_tensors_are_refused_before_a_model_is_built(tmp_path):
    save_file(random_weights(write_config(tmp_path)), tmp_path / "model.safetensors")
    write_config(tmp_path, num_hidden_layers=10_000)
    assert "asks for 10,000 layers, and there are 21 tensors" in refused(tmp_path)


@pytest.mark.parametrize("sizes", [{"head_dim": 2**31 - 2}, {"hidden_size": 2**31 - 2, "num_attention_heads": 1}])
def test_a_head_too_large_for_its_angles_is_refused_with_the_config(tmp_path, sizes):
    with pytest.raises(TargetError, match="head_dim: Input should be less than or equal to 65536"):
        write_config(tmp_path, **sizes)


def test_file_damaged_or_missing(tmp_path):
    config = write_config(tmp_path)
    assert "has no model.safetensors" in refused(tmp_path)
    file = tmp_path / "model.safetensors"
    save_file(random_weights(config), file)
    whole = file.read_bytes()
    for damaged in (b"", b"not one", whole[:100], whole[:-1], b"\xff" * 8 + whole[8:]):
        file.write_bytes(damaged)
        assert "cannot be read" in refused(tmp_path)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "consolidated.00.pth"])
def test_a_pickle_is_not_read(tmp_path, name):
    write_config(tmp_path)
    (tmp_path / name).write_bytes(b"anything")
    message = refused(tmp_path)
    assert name in message
    assert "save_pretrained" in message


def test_other_safetensors(tmp_path):
    config = write_config(tmp_path)
    save_file(random_weights(config), tmp_path / "weights.safetensors")
    assert "rename weights.safetensors if" in refused(tmp_path)


def test_shards_that_do_not_fit_their_index(tmp_path):
    index = write_shards(tmp_path, random_weights(write_config(tmp_path)))
    content = json.loads(index.read_text())
    shard = tmp_path / "model-00002-of-00003.safetensors"
    kept = shard.read_bytes()
    shard.unlink()
    assert "lacks model-00002-of-00003.safetensors" in refused(tmp_path)
    shard.write_bytes(kept[:-10])
    assert "cannot be read" in refused(tmp_path)
    shard.write_bytes((tmp_path / "model-00001-of-00003.safetensors").read_bytes())
    assert "contrary to model.safetensors.index.json" in refused(tmp_path)
    shard.write_bytes(kept)
    load_decoder(tmp_path)
    fewer = {name: file for name, file in content["weight_map"].items() if name != "model.norm.weight"}
    index.write_text(json.dumps({"weight_map": fewer}))
    assert "also has model.norm.weight" in refused(tmp_path)
    for name in ("../model.safetensors", "/etc/passwd", "model.bin"):
        index.write_text(json.dumps({"weight_map": content["weight_map"] | {"model.norm.weight": name}}))
        assert repr(name) in refused(tmp_path)
    for damaged in ("", "{}", '{"weight_map": []}', '{"weight_map": {"a": 1}}'):
        index.write_text(damaged)
        assert "is damaged or lacks weight_map" in refused(tmp_path)
