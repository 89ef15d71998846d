"""What a Hugging Face directory says of its text encoder, and what of it whet cannot do."""

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transformers")

from tiny_encoders import tuned, write_embedder, write_object, write_reranker

from whet.core.artefact.text_use import read_text_use
from whet.workloads import resolve
from whet.workloads.text_encoder import identity_of, save_text_use, text_use_of


def edit(path: Path, **fields: Any) -> None:
    write_object(path, json.loads(path.read_text()) | fields)


def test_a_sentence_transformers_directory(tmp_path: Path) -> None:
    directory = write_embedder(tmp_path / "model", pooling="cls")
    use = text_use_of(directory)
    assert (use.task, use.output, use.pooling, use.normalize) == ("embed", "last_hidden_state", "cls", True)
    assert (use.max_tokens, use.pad_id, use.dimensions) == (48, 0, ())
    edit(directory / "sentence_bert_config.json", max_seq_length=None, do_lower_case=True)
    edit(directory / "config.json", matryoshka_dimensions=[8, 16])
    prompts = {"prompts": {"query": "Find: "}, "default_prompt_name": "query"}
    write_object(directory / "config_sentence_transformers.json", prompts)
    write_object(directory / "tokenizer_config.json", {"model_max_length": 10**30})
    use = text_use_of(directory)
    assert (use.max_tokens, use.lower_case, use.dimensions, use.prompt) == (64, True, (8, 16), "Find: ")
    edit(directory / "config.json", model_type="roberta", pad_token_id=1)
    assert (text_use_of(directory).max_tokens, text_use_of(directory).pad_id) == (62, 1)


@pytest.mark.parametrize(
    ("fields", "activation"),
    [
        ({}, "sigmoid"),
        ({"sentence_transformers": {"activation_fn": "torch.nn.modules.linear.Identity"}}, "identity"),
        ({"sbert_ce_default_activation_function": "torch.nn.modules.activation.Sigmoid"}, "sigmoid"),
    ],
)
def test_a_cross_encoder(tmp_path: Path, fields: dict[str, Any], activation: str) -> None:
    directory = write_reranker(tmp_path / "model")
    edit(directory / "config.json", **fields)
    use = text_use_of(directory)
    assert (use.task, use.output, use.activation, use.max_tokens) == ("rerank", "logits", activation, 64)


def test_a_cross_encoder_is_tuned_with_type_ids_and_others_as_before(tmp_path: Path) -> None:
    reranker, embedder = write_reranker(tmp_path / "r"), write_embedder(tmp_path / "e")
    batch = resolve(f"hf:{reranker}?seq=6").inputs[0]
    assert batch["token_type_ids"].tolist() == [[0, 0, 0, 1, 1, 1]]
    assert resolve(f"hf:{embedder}?seq=6").inputs[0].keys() == {"input_ids", "attention_mask"}
    three = write_reranker(tmp_path / "three", num_labels=3)
    assert resolve(f"hf:{three}?seq=6").inputs[0].keys() == {"input_ids", "attention_mask"}


@pytest.mark.parametrize(
    ("name", "content", "why"),
    [
        ("modules.json", None, "put the modules.json and 1_Pooling/config.json"),
        (
            "modules.json",
            [{"type": "x.Transformer", "path": ""}, {"type": "x.Dense", "path": ""}],
            "Transformer, Dense",
        ),
        ("modules.json", [{"path": ""}], "type"),
        ("1_Pooling/config.json", {}, "its pooling is none"),
        ("1_Pooling/config.json", {"pooling_mode_weightedmean_tokens": True}, "pooling_mode_weightedmean_tokens"),
        ("1_Pooling/config.json", {"pooling_mode_cls_token": True, "pooling_mode_max_tokens": True}, "one of"),
        ("1_Pooling/config.json", [], "holds no JSON object"),
        ("sentence_bert_config.json", "text", "holds no JSON object"),
    ],
)
def test_directories_that_whet_has_no_use_for(tmp_path: Path, name: str, content: Any, why: str) -> None:
    directory = write_embedder(tmp_path / "model")
    if content is None:
        (directory / name).unlink()
    else:
        write_object(directory / name, content)
    use = text_use_of(directory)
    assert use.task is None
    assert why in use.why_not


def test_what_is_saved_beside_an_artefact(tmp_path: Path) -> None:
    directory = write_embedder(tmp_path / "model")
    artefact = tuned(directory, tmp_path / "tuned")
    assert read_text_use(artefact) == text_use_of(directory)
    assert (artefact / "tokenizer.json").read_bytes() == (directory / "tokenizer.json").read_bytes()
    assert identity_of(f"hf:{directory}?seq=8") == (str(directory), "bert")
    assert identity_of("digits-cnn") == ("", "")
    (directory / "tokenizer.json").unlink()
    empty = tmp_path / "empty"
    empty.mkdir()
    for target in (f"hf:{directory}", "digits-cnn", "models.py:build"):
        save_text_use(target, empty)
    assert list(empty.iterdir()) == []
