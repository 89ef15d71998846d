"""Text encoders of artefacts: pooling as sentence-transformers has it, and models that are not fit for texts."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from functions_served import artefact_of
from tiny_encoders import WORDS, tuned, vector, write_embedder
from torch import Tensor

from whet.core.artefact import load
from whet.core.artefact.text_use import FILE, TextUse, read_text_use, write_text_use
from whet.errors import ArtefactError, RequestError
from whet.server.artefacts.served_artefact import ServedArtefact
from whet.server.artefacts.text_encoder import TextEncoder, text_encoder

TEXTS = ["a cat", "the dog runs under the tree"]


def embed(encoder: TextEncoder, texts: list[str]) -> Tensor:
    return asyncio.run(encoder.embed([encoder.tokens(text) for text in texts]))


@pytest.mark.parametrize("pooling", ["mean", "cls", "max", "lasttoken"])
def test_poolings(tmp_path: Path, pooling: str) -> None:
    is_normalised = pooling != "max"
    original = write_embedder(tmp_path / "model", pooling=pooling, normalize=is_normalised)
    directory = tuned(original, tmp_path / "tuned")
    served = ServedArtefact("emb", load(directory))
    encoder = text_encoder(served, directory)
    assert isinstance(encoder, TextEncoder)
    expected = torch.stack([vector(original, text, pooling, normalize=is_normalised) for text in TEXTS])
    torch.testing.assert_close(embed(encoder, TEXTS), expected, rtol=1e-5, atol=1e-5)
    served.close()


def encoder_of(function: Any, tmp_path: Path, *, length: int | None, **use: Any) -> TextEncoder | str:
    """The encoder of a function of ids and mask, whose batches are of one length or of any."""
    shapes = [(2, length or 8), (3, length or 11)]
    batches = [
        {"input_ids": torch.ones(shape, dtype=torch.int64), "attention_mask": torch.ones(shape, dtype=torch.int64)}
        for shape in shapes
    ]
    write_embedder(tmp_path / "model")
    fields = {"task": "embed", "output": "last_hidden_state", "max_tokens": 40, **use}
    write_text_use(TextUse(**fields), tmp_path / "model" / "tokenizer.json", tmp_path)

    def named(*tensors: Tensor, **given: Tensor) -> dict[str, Tensor]:
        return {"last_hidden_state": function(*tensors, *given.values())}

    artefact = artefact_of_dicts(named, batches)
    return text_encoder(ServedArtefact("made", artefact), tmp_path)


def artefact_of_dicts(function: Any, batches: list[dict[str, Tensor]]) -> Any:
    from whet.core.signature import output_tensors, read_signature

    made = artefact_of(lambda x: x, torch.zeros(1, 1))
    made.signature = read_signature(batches, function(**batches[0]))
    made.run = lambda *tensors: output_tensors(function(*tensors))
    return made


def masked(ids: Tensor, mask: Tensor) -> Tensor:
    """Each token's vector depends on all tokens of its text that the mask has."""
    values = torch.nn.functional.one_hot(ids.clamp(0, 30), 31).float() * mask[..., None]
    return values + values.sum(1, keepdim=True)


def unmasked(ids: Tensor, mask: Tensor) -> Tensor:
    return masked(ids, torch.ones_like(mask))


@pytest.mark.parametrize("length", [None, 24])
def test_what_fills_up_changes_nothing(tmp_path: Path, length: int | None) -> None:
    encoder = encoder_of(masked, tmp_path, length=length)
    assert isinstance(encoder, TextEncoder)
    assert encoder.max_tokens == (length or 40)
    sizes = {encoder._sample(encoder.tokens("cat " * count))[0].shape for count in (1, 5, 9)}
    assert sizes == {(length or 16,)}
    alone = embed(encoder, ["cat dog"])
    expected = masked(torch.tensor([[2, 7, 8, 3]]), torch.ones(1, 4)).mean(1)
    torch.testing.assert_close(alone, expected)


def masked_but_for_a_rare_token(ids: Tensor, mask: Tensor) -> Tensor:
    return masked(ids, mask | (ids == len(WORDS) - 1).long())


def test_rare_tokens_are_tried_as_what_fills_up(tmp_path: Path) -> None:
    encoder = encoder_of(masked_but_for_a_rare_token, tmp_path, length=24)
    assert isinstance(encoder, str)
    assert "what fills up a shorter text changes its answer" in encoder


def test_nothing_is_filled_up_where_that_changes_answers(tmp_path: Path) -> None:
    encoder = encoder_of(unmasked, tmp_path, length=None)
    assert isinstance(encoder, TextEncoder)
    assert encoder._sample(encoder.tokens("cat dog"))[0].shape == (4,)
    fixed = encoder_of(unmasked, tmp_path, length=24)
    assert isinstance(fixed, str)
    assert "takes exactly 24 tokens" in fixed


def test_texts_too_long_for_the_model_are_refused_before_they_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder = encoder_of(masked, tmp_path, length=None)
    assert isinstance(encoder, TextEncoder)
    tokenizer = encoder._tokenizer
    monkeypatch.setattr(tokenizer, "most_bytes", lambda num_tokens: 5 * num_tokens)  # WordLevel has no bound
    long = "cat " * 51
    cut = encoder.tokens(long, cut_to=6)
    assert list(cut.ids) == [2, 7, 7, 7, 7, 3]
    query = encoder.query("a dog")
    assert [len(one.ids) for one in encoder.pairs(query, [long, "cat"], cut_to=9)] == [9, 6]
    monkeypatch.setattr(tokenizer, "_tokenizer", None)  # whoever reads a text fails
    for refuse, param in (
        (lambda: encoder.tokens(long), "input"),
        (lambda: encoder.query(long), "query"),
        (lambda: encoder.pairs(query, ["cat", long]), "input"),
    ):
        with pytest.raises(RequestError, match="at most 200 bytes of text; this has 204") as caught:
            refuse()
        assert (caught.value.param, caught.value.code) == (param, "context_length_exceeded")


def test_token_ids_that_the_tokenizer_lacks(tmp_path: Path) -> None:
    encoder = encoder_of(masked, tmp_path, length=None)
    assert isinstance(encoder, TextEncoder)
    assert list(encoder.tokens([2, 18, 3]).ids) == [2, 18, 3]
    for ids in ([19], [2**31 - 1], [2, -1]):
        with pytest.raises(RequestError, match=f"the model has no token {ids[-1]}: give tokens from 0 to 18"):
            encoder.tokens(ids)


def test_what_an_artefact_lacks(tmp_path: Path) -> None:
    assert "has no output 'pooled'" in str(encoder_of(masked, tmp_path, length=None, output="pooled"))
    assert encoder_of(masked, tmp_path, length=None, task=None, why_not="it is so") == "it is so"
    (tmp_path / FILE).unlink()
    assert read_text_use(tmp_path) is None


@pytest.mark.parametrize(
    "content", ["", "[]", "{", '{"task": "sing"}', '{"task": null, "more": 1}', '{"task": "embed", "max_tokens": -1}']
)
def test_a_damaged_text_json(tmp_path: Path, content: str) -> None:
    (tmp_path / FILE).write_text(content)
    with pytest.raises(ArtefactError, match="is damaged"):
        read_text_use(tmp_path)
    (tmp_path / FILE).write_text(json.dumps({"format": 2, "task": None}))
    with pytest.raises(ArtefactError, match="has format 2"):
        read_text_use(tmp_path)
    (tmp_path / FILE).write_text(TextUse(task="embed").model_dump_json())
    with pytest.raises(ArtefactError, match=r"no tokenizer\.json"):
        read_text_use(tmp_path)
