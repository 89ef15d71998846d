import json

import pytest
import torch

from whet.core.workload import examine
from whet.errors import InputsError, MissingExtra, TargetError
from whet.workloads import resolve

transformers = pytest.importorskip("transformers")

TEXT = {"vocab_size": 60, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}


def save(directory, name, config):
    torch.manual_seed(0)
    getattr(transformers, name)(config).save_pretrained(directory)
    return directory


@pytest.fixture
def bert(tmp_path):
    config = transformers.BertConfig(**TEXT, max_position_embeddings=200, num_labels=3)
    return save(tmp_path / "tiny-bert", "BertForSequenceClassification", config)


@pytest.fixture
def llama(tmp_path):
    config = transformers.LlamaConfig(**TEXT, num_key_value_heads=1, max_position_embeddings=64)
    return save(tmp_path / "tiny-llama", "LlamaForCausalLM", config)


def test_text_encoder(bert):
    workload = resolve(f"hf:{bert}")
    assert workload.name == "tiny-bert"
    assert type(workload.model).__name__ == "BertForSequenceClassification"
    batch = workload.inputs[0]
    assert {name: tuple(x.shape) for name, x in batch.items()} == {"input_ids": (1, 128), "attention_mask": (1, 128)}
    assert bool((batch["attention_mask"] == 1).all())
    assert not torch.equal(batch["input_ids"], workload.inputs[1]["input_ids"])
    assert torch.equal(batch["input_ids"], resolve(f"hf:{bert}").inputs[0]["input_ids"])
    examined = examine(workload)
    assert examined.outputs[0][0].shape == (1, 3)


def test_decoder(llama):
    workload = resolve(f"hf:{llama}")
    assert {name: tuple(x.shape) for name, x in workload.inputs[0].items()} == {"input_ids": (1, 64)}
    assert examine(workload).outputs[0][0].shape == (1, 64, 60)


@pytest.mark.parametrize(
    ("name", "config", "shape"),
    [
        (
            "ViTForImageClassification",
            lambda: transformers.ViTConfig(
                hidden_size=16,
                num_hidden_layers=1,
                num_attention_heads=2,
                intermediate_size=32,
                image_size=32,
                patch_size=8,
            ),
            (1, 3, 32, 32),
        ),
        (
            "ResNetForImageClassification",
            lambda: transformers.ResNetConfig(
                num_channels=1, embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic"
            ),
            (1, 1, 224, 224),
        ),
    ],
)
def test_images(tmp_path, name, config, shape):
    workload = resolve(f"hf:{save(tmp_path, name, config())}")
    assert {name: tuple(x.shape) for name, x in workload.inputs[0].items()} == {"pixel_values": shape}
    examine(workload)
    with pytest.raises(TargetError, match="seq does not apply"):
        resolve(f"hf:{tmp_path}?seq=8")


def test_encoder_and_decoder(tmp_path):
    config = transformers.T5Config(
        vocab_size=60, d_model=16, d_kv=8, d_ff=32, num_layers=1, num_heads=2, decoder_start_token_id=0
    )
    workload = resolve(f"hf:{save(tmp_path, 'T5ForConditionalGeneration', config)}?seq=8")
    assert set(workload.inputs[0]) == {"input_ids", "decoder_input_ids", "attention_mask"}
    examine(workload)


def test_text_and_images(tmp_path):
    text = {
        "vocab_size": 60,
        "hidden_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 32,
    }
    vision = {k: v for k, v in text.items() if k != "vocab_size"} | {"image_size": 16, "patch_size": 8}
    text |= {"max_position_embeddings": 20, "eos_token_id": 2}
    config = transformers.CLIPConfig(text_config=text, vision_config=vision, projection_dim=8)
    workload = resolve(f"hf:{save(tmp_path, 'CLIPModel', config)}?batch=2")
    shapes = {name: tuple(x.shape) for name, x in workload.inputs[0].items()}
    assert shapes == {"pixel_values": (2, 3, 16, 16), "input_ids": (2, 20), "attention_mask": (2, 20)}
    examine(workload)


def test_bare_model_where_no_class_is_named(bert):
    config = json.loads((bert / "config.json").read_text())
    config["architectures"] = None
    (bert / "config.json").write_text(json.dumps(config))
    assert type(resolve(f"hf:{bert}").model).__name__ == "BertModel"


@pytest.mark.parametrize("query", ["batch=8&seq=32", "batch=8&&seq=32&"])
def test_options(bert, query):
    workload = resolve(f"hf:{bert}?{query}")
    assert workload.inputs[0]["input_ids"].shape == (8, 32)
    assert workload.num_samples == 8


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("batch=0", "batch=0"),
        ("batch=two", "batch=two"),
        ("size=3", "size=3"),
        ("batch", "not of the form"),
        ("batch=", "batch="),
        ("seq=201", "more than the 200 tokens"),
    ],
)
def test_bad_options(bert, query, said):
    with pytest.raises(TargetError, match=said):
        resolve(f"hf:{bert}?{query}")


def test_no_directory(tmp_path):
    with pytest.raises(TargetError, match="hf: lacks a directory"):
        resolve("hf:?batch=2")
    with pytest.raises(TargetError, match="no directory"):
        resolve(f"hf:{tmp_path}/nothing")
    with pytest.raises(TargetError, match=r"no config\.json"):
        resolve(f"hf:{tmp_path}")


def test_no_weights(bert):
    (bert / "model.safetensors").rename(bert / "pytorch_model.bin")
    with pytest.raises(TargetError, match=r"only pytorch_model\.bin"):
        resolve(f"hf:{bert}")
    (bert / "pytorch_model.bin").unlink()
    with pytest.raises(TargetError, match=r"no \*\.safetensors weights: save the model"):
        resolve(f"hf:{bert}")


def test_weights_missing_or_damaged(bert):
    from safetensors.torch import load_file, save_file

    file = bert / "model.safetensors"
    weights = load_file(file)
    save_file({name: x for name, x in weights.items() if "classifier" not in name}, file, metadata={"format": "pt"})
    with pytest.raises(TargetError, match=r"lack classifier\.bias and 1 more .* random"):
        resolve(f"hf:{bert}")
    file.write_bytes(b"damaged")
    with pytest.raises(TargetError, match="cannot load"):
        resolve(f"hf:{bert}")


def test_config_damaged_or_unknown(bert):
    (bert / "config.json").write_text('{"model_type": "no-such-model"}')
    with pytest.raises(TargetError, match="cannot load"):
        resolve(f"hf:{bert}")
    (bert / "config.json").write_text("{")
    with pytest.raises(TargetError, match="cannot load"):
        resolve(f"hf:{bert}")


def test_nothing_is_printed(bert, capfd):
    resolve(f"hf:{bert}")
    assert capfd.readouterr() == ("", "")
    assert transformers.utils.logging.is_progress_bar_enabled()


def test_transformers_is_optional(bert, monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(MissingExtra, match=r"torch-whet\[hf\]"):
        resolve(f"hf:{bert}")


def test_wrong_inputs_are_said_so(bert):
    workload = resolve(f"hf:{bert}")
    workload.inputs[0]["input_ids"] = torch.full((1, 128), 1000)
    with pytest.raises(InputsError):
        examine(workload)
