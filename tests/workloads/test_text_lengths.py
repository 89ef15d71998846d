"""Texts of random lengths, by which encoders of Hugging Face directories are calibrated and judged."""

import json
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from whet.core.workload import examine, unseen_inputs
from whet.errors import TargetError
from whet.workloads import resolve
from whet.workloads.text_lengths import padding_side, with_lengths

transformers = pytest.importorskip("transformers")

TINY = {
    "vocab_size": 60,
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "max_position_embeddings": 64,
}


def saved(directory: Path, *, num_labels: int = 3, side: str = "") -> Path:
    torch.manual_seed(0)
    config = transformers.BertConfig(**TINY, num_labels=num_labels, pad_token_id=7)
    transformers.BertForSequenceClassification(config).save_pretrained(directory)
    if side:
        (directory / "tokenizer_config.json").write_text(json.dumps({"padding_side": side}))
    return directory


@given(st.integers(0, 10**6), st.integers(1, 6), st.integers(1, 200), st.sampled_from(["left", "right"]))
def test_each_text_is_whole_from_one_end_to_its_padding(seed: int, rows: int, full: int, side: str) -> None:
    random = torch.Generator().manual_seed(seed)
    ids = torch.randint(1, 50, (rows, full), generator=random)
    batch = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "token_type_ids": torch.zeros_like(ids)}
    found = with_lengths(batch, random, side=side, pad_id=0, first=1)
    mask = found["attention_mask"].bool()
    assert mask[0].all()
    lengths = mask.sum(1)
    assert int(lengths.min()) >= min(3, full)
    ends = mask.flip(1) if side == "left" else mask
    assert torch.equal(ends, torch.arange(full) < lengths[:, None])
    assert torch.equal(found["input_ids"], ids.where(mask, 0))
    assert torch.equal(found["token_type_ids"].sum(1), lengths - lengths // 2)
    assert not (found["token_type_ids"].bool() & ~mask).any()
    assert (found["token_type_ids"][mask].bool()).any()


def test_half_of_the_lengths_are_short() -> None:
    ones = torch.ones(4000, 128, dtype=torch.long)
    random = torch.Generator().manual_seed(0)
    found = with_lengths({"input_ids": ones, "attention_mask": ones}, random, side="right", pad_id=0)
    lengths = found["attention_mask"].sum(1).double()
    assert (int(lengths.min()), int(lengths.max())) == (3, 128)
    assert float((lengths < 20).double().mean()) == pytest.approx(0.5, abs=0.05)  # the mean of 3 and 128 by logarithm


@pytest.mark.parametrize("side", ["", "left", "right"])
@pytest.mark.parametrize("batch", [1, 4])
def test_an_encoder_is_judged_on_padded_texts_and_timed_on_full_ones(tmp_path: Path, side: str, batch: int) -> None:
    workload = resolve(f"hf:{saved(tmp_path, side=side)}?batch={batch}&seq=32")
    assert all(bool((one["attention_mask"] == 1).all()) for one in workload.inputs)
    masks = torch.cat([one["attention_mask"] for one in workload.calibration]).bool()
    padded = masks[~masks.all(1)]
    assert len(padded) >= 6
    assert len(padded) < len(masks)
    assert not padded[:, 0 if side == "left" else -1].all()
    assert padded[:, -1 if side == "left" else 0].all()
    ids = torch.cat([one["input_ids"] for one in workload.calibration])
    assert (ids[~masks] == 7).all()
    assert (ids[masks] != 7).all()
    assert unseen_inputs(examine(workload)) == ()
    again = resolve(f"hf:{tmp_path}?batch={batch}&seq=32")
    assert all(
        torch.equal(a["attention_mask"], b["attention_mask"])
        for a, b in zip(again.calibration, workload.calibration, strict=True)
    )


def test_the_second_text_of_a_pair_is_within_its_length(tmp_path: Path) -> None:
    workload = resolve(f"hf:{saved(tmp_path, num_labels=1)}?batch=4&seq=32")
    for one in workload.calibration:
        assert not (one["token_type_ids"].bool() & ~one["attention_mask"].bool()).any()
        assert one["token_type_ids"].any(1).all()


def test_a_decoder_has_no_mask_and_no_padding(tmp_path: Path) -> None:
    config = transformers.LlamaConfig(**TINY, num_key_value_heads=1)
    transformers.LlamaForCausalLM(config).save_pretrained(tmp_path)
    workload = resolve(f"hf:{tmp_path}")
    assert list(workload.calibration) == list(workload.inputs)


def test_a_side_that_is_none_is_refused(tmp_path: Path) -> None:
    (tmp_path / "tokenizer_config.json").write_text('{"padding_side": "top"}')
    with pytest.raises(TargetError, match="padding_side must be left or right, not 'top'"):
        padding_side(tmp_path)
