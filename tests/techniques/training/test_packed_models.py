"""Models of transformers keep the documents of a row apart, by positions or by a mask, or are refused."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from whet.errors import OptionError
from whet.techniques.mechanisms.packing import packed_models
from whet.techniques.mechanisms.packing.packed_models import Way, way_of, why_not
from whet.techniques.mechanisms.packing.packing import LengthBatches, PackedBatches, TokenBatch

VOCAB = 50
_GPT = {"n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 64}
_BERT = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}
_LONG = {**_BERT, "max_position_embeddings": 66}
FAMILIES: dict[str, tuple[Way, dict[str, Any]]] = {
    "gpt2": (Way.POSITIONS, _GPT),
    "falcon": (Way.POSITIONS, {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "alibi": True}),
    "gemma": (Way.POSITIONS, {**_LONG, "num_key_value_heads": 1, "head_dim": 8}),
    "opt": (Way.MASK, {**_LONG, "ffn_dim": 24, "word_embed_proj_dim": 16}),
    "mpt": (Way.MASK, {"d_model": 16, "n_layers": 2, "n_heads": 2, "max_seq_len": 64}),
    "xglm": (Way.MASK, {"d_model": 16, "num_layers": 2, "attention_heads": 2, "ffn_dim": 24}),
    "biogpt": (Way.MASK, _LONG),
    "bert": (Way.MASK, {**_LONG, "is_decoder": True}),
    "bloom": (Way.NONE, {"hidden_size": 16, "n_layer": 2, "n_head": 2}),
    "openai-gpt": (Way.NONE, _GPT),
    "roberta": (Way.NONE, {**_LONG, "is_decoder": True}),
}


def model_of(name: str, **changes: Any) -> Any:
    transformers: Any = pytest.importorskip("transformers")
    torch.manual_seed(0)
    # Without dropout, so that a model in training mode can be compared with itself.
    none = dict.fromkeys(
        (
            "dropout",
            "attention_dropout",
            "hidden_dropout",
            "resid_pdrop",
            "embd_pdrop",
            "attn_pdrop",
            "activation_dropout",
        ),
        0.0,
    )
    none |= {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, "layerdrop": 0.0}
    config = transformers.AutoConfig.for_model(name, vocab_size=VOCAB, **{**none, **FAMILIES[name][1], **changes})
    return transformers.AutoModelForCausalLM.from_config(config)


def documents() -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randint(5, VOCAB, (length,), generator=generator) for length in (9, 6, 5, 7)]


def gradients(model: Any, batches: Sequence[TokenBatch]) -> dict[str, Tensor]:
    model.zero_grad()
    total = sum(batch.num_valid for batch in batches)
    for batch in batches:
        logits = model(**{k: v for k, v in batch.for_transformers(model).items() if k != "labels"}).logits
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), batch.targets.flatten(), reduction="sum")
        (loss / total).backward()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("name", FAMILIES)
def test_packed_rows_have_the_gradients_of_the_documents_alone_or_are_refused(name: str) -> None:
    model, way = model_of(name).train(), FAMILIES[name][0]
    assert way_of(model) is way
    assert all(module.training for module in model.modules())
    packed = list(PackedBatches(documents(), 16, 2))
    assert any(int(batch.documents.max()) for batch in packed), "documents share rows"
    if way is Way.NONE:
        assert "cannot keep them apart" in why_not(model)
        with pytest.raises(OptionError, match=r"documents share rows, and .* cannot keep them apart"):
            gradients(model, packed)
        alone = list(LengthBatches(documents(), batch_size=1))
        assert "position_ids" not in alone[0].for_transformers(model), "one document a row is any model's own case"
        return
    wanted = gradients(model, [batch for one in documents() for batch in PackedBatches([one], len(one), 1)])
    found = gradients(model, packed)
    size = max(float(one.abs().max()) for one in wanted.values())
    for parameter, gradient in wanted.items():
        torch.testing.assert_close(found[parameter], gradient, rtol=1e-4, atol=1e-5 * size, msg=parameter)


def test_a_model_is_asked_once_and_through_its_wrappers(monkeypatch: pytest.MonkeyPatch) -> None:
    model = model_of("gpt2")

    class Wrapper(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.module = model

    before = torch.random.get_rng_state()
    with torch.autocast("cpu", torch.bfloat16):
        assert way_of(Wrapper()) is Way.POSITIONS
    assert torch.equal(torch.random.get_rng_state(), before)
    monkeypatch.setattr(packed_models, "keeps_apart", lambda *_: pytest.fail("it was asked before"))
    assert way_of(model) is Way.POSITIONS


def test_narrow_weights_are_judged_by_their_own_rounding() -> None:
    assert way_of(model_of("gpt2").bfloat16()) is Way.POSITIONS
    assert way_of(model_of("bert").bfloat16()) is Way.MASK
    assert way_of(model_of("bloom").bfloat16()) is Way.NONE
