"""[prune] of whet train: what is gone stays gone over a resume, and a smaller model is loaded by others."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from test_loop import trained, weights
from tiny_run import config

from whet.errors import OptionError
from whet.models.decoder import load_decoder
from whet.trainer.result import TrainResult
from whet.trainer.setup import set_up

GRADUAL = {"kind": "unstructured", "amount": 0.6, "begin_step": 2, "end_step": 9, "interval": 3}


def share_of_zeros(result: TrainResult) -> float:
    found = [x for name, x in weights(result).items() if x.dim() == 2 and "proj" in name]
    return 1 - sum(int(x.count_nonzero()) for x in found) / sum(x.numel() for x in found)


@pytest.mark.parametrize("scope", ["global", "layer"])
def test_gradual_pruning_ends_with_its_amount(tmp_path: Path, scope: str) -> None:
    found = trained(config(tmp_path, prune={**GRADUAL, "scope": scope}))
    assert share_of_zeros(found) == pytest.approx(0.6, abs=0.005)
    assert any("60.0% of the matrices' weights are zero" in note for note in found.notes)
    plain = trained(config(tmp_path, out=str(tmp_path / "plain")))
    assert share_of_zeros(plain) == 0


@pytest.mark.parametrize("stop_at", [4, 10])
def test_a_pruned_run_goes_on_bit_for_bit(tmp_path: Path, stop_at: int) -> None:
    optimizer = {"name": "sgd", "lr": 1e-1}  # momentum would revive what is zero
    whole = trained(config(tmp_path, out=str(tmp_path / "whole"), prune=GRADUAL, optimizer=optimizer))
    made = config(tmp_path, prune=GRADUAL, optimizer=optimizer)
    trained(made, stop_at=stop_at)
    other = config(tmp_path, prune={**GRADUAL, "amount": 0.5}, optimizer=optimizer)
    with pytest.raises(OptionError, match=r"\[prune\] changed"):
        trained(other, resume=True)
    with pytest.raises(OptionError, match=r"\[prune\] changed"):
        trained(config(tmp_path, optimizer=optimizer), resume=True)
    resumed = trained(made, resume=True)
    for name, value in weights(whole).items():
        assert torch.equal(value, weights(resumed)[name]), name
    assert share_of_zeros(resumed) == pytest.approx(0.6, abs=0.005)


def continued(place: Path, **changes: Any) -> dict[str, Any]:
    """Return the changes by which a run goes on from a model that was trained here."""
    sizes = {"num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 3}
    first = trained(config(place, out=str(place / "first"), model=sizes))
    return {"model": {"directory": str(first.model)}, "data": {"tokenizer": None}, **changes}


def only_directory(made: Any) -> Any:
    return made.model_copy(update={"model": type(made.model)(directory=made.model.directory)})


@pytest.mark.parametrize("what", [["mlp", "heads"], "layers", "width"])
def test_parts_are_gone_in_the_model_that_others_load(tmp_path: Path, what: Any) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    changes = continued(tmp_path, prune={"kind": "structured", "what": what, "amount": 0.5})
    found = trained(only_directory(config(tmp_path, **changes)))
    assert found.model is not None
    ours, theirs = load_decoder(found.model), AutoModelForCausalLM.from_pretrained(found.model).eval()
    ids = AutoTokenizer.from_pretrained(found.model)("the sharp stone", return_tensors="pt").input_ids
    with torch.no_grad():
        torch.testing.assert_close(ours(ids), theirs(ids).logits, rtol=1e-4, atol=1e-4)
    sizes = [(tmp_path / run / "model" / "model.safetensors").stat().st_size for run in ("first", "run")]
    assert sizes[1] < 0.8 * sizes[0]
    written = json.loads((found.model / "config.json").read_text())
    if what == "layers":
        assert written["num_hidden_layers"] == 2
    elif what == "width":
        assert written["hidden_size"] == 16 and written["head_dim"] == 8
    else:
        assert (written["num_key_value_heads"], written["num_attention_heads"], written["intermediate_size"]) == (
            1,
            2,
            32,
        )
    assert any("of the operations are left" in note for note in found.notes)


def test_a_smaller_model_goes_on_bit_for_bit(tmp_path: Path) -> None:
    changes = continued(tmp_path, prune={"kind": "structured", "amount": 0.5})
    whole = trained(only_directory(config(tmp_path, **changes, out=str(tmp_path / "whole"))))
    made = only_directory(config(tmp_path, **changes))
    trained(made, stop_at=5)
    resumed = trained(made, resume=True)
    for name, value in weights(whole).items():
        assert torch.equal(value, weights(resumed)[name]), name


@pytest.mark.parametrize(
    ("prune", "said"),
    [
        ({"kind": "structured", "amount": 0.5}, "a new model has learnt nothing"),
        ({"kind": "structured", "amount": 0.5, "begin_step": 3}, "begin_step changes nothing, since structured"),
        ({"amount": 0.5, "what": "mlp"}, "what changes nothing, since unstructured"),
        ({"amount": 0.5, "end_step": 99}, "within the 12 steps"),
        ({"amount": 1.5}, "prune.amount"),
        ({"amount": 0.5, "what": "cells", "kind": "structured"}, "prune.what"),
        ({}, "the key prune.amount is missing"),
        ({"amount": 0.5, "intervall": 3}, "did you mean interval"),
    ],
)
def test_what_cannot_be_is_refused(tmp_path: Path, prune: dict[str, Any], said: str) -> None:
    with pytest.raises(OptionError, match=said):
        set_up(config(tmp_path, prune=prune), lambda line: None)
    assert not (tmp_path / "run").exists()
