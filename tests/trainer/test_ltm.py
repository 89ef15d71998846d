"""whet train of long-term-memory decoders: what is written, how a run goes on, what the TOML reaches."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tiny_run import tables, trained

from whet.errors import OptionError
from whet.models.memory_bank import load_ltm
from whet.trainer.config import checked_config
from whet.trainer.model import add_dropout
from whet.trainer.setup import set_up

BANK = {"memory_slots": 4, "attention_block_size": 8}
RECOMPUTED = {"gradient_checkpointing_granularity": "block", "checkpoint_segments": 2}


def made(place: Path, recipe: Path | None = None, data: dict[str, Any] | None = None, **model: Any) -> Any:
    """Return a configuration of a tiny model."""
    found = tables(place, data=data or {})
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2}
    found["model"] = {"model_type": "ltm", **sizes, **BANK, **model}
    if recipe is not None:
        found["recipe"] = str(recipe)
    return checked_config(found, "test")


def weights_of(result: Any) -> dict[str, Any]:
    return load_file(result.model / "model.safetensors")


def test_a_model_is_trained_written_and_opened_again(tmp_path: Path) -> None:
    found = trained(made(tmp_path, test_time_memory="linear"))
    assert found.held_out_loss is not None and found.held_out_loss < 3.1
    model, ids = load_ltm(found.model), torch.arange(20)[None]  # type: ignore[arg-type]
    assert model.config.test_time_memory == "linear"
    assert model(ids).isfinite().all()
    further = tables(tmp_path, out=str(tmp_path / "further"))
    further["model"] = {"directory": str(found.model)}
    further["data"].pop("tokenizer")
    again = trained(checked_config(further, "test"))
    assert again.held_out_loss is not None and again.held_out_loss < found.held_out_loss
    assert weights_of(again).keys() == weights_of(found).keys()
    assert (again.model / "config.json").read_bytes() == (found.model / "config.json").read_bytes()  # type: ignore[operator]


def test_a_run_goes_on_bit_for_bit(tmp_path: Path) -> None:
    (tmp_path / "whole").mkdir()
    whole = trained(made(tmp_path / "whole", **RECOMPUTED))
    assert trained(made(tmp_path, **RECOMPUTED), stop_at=5).step == 5
    resumed = weights_of(trained(made(tmp_path, **RECOMPUTED), resume=True))
    assert all(torch.equal(value, resumed[name]) for name, value in weights_of(whole).items())


def gradients(place: Path, **model: Any) -> list[torch.Tensor]:
    setup = set_up(made(place, **model), lambda line: None)
    batch = setup.data.batches(0).read(0)
    loss = setup.model.loss(setup.model.module, batch)  # type: ignore[arg-type]
    return list(torch.autograd.grad(loss, list(setup.model.module.parameters())))


def test_recomputation_and_truncation_come_from_the_configuration(tmp_path: Path) -> None:
    plain, recomputed = gradients(tmp_path), gradients(tmp_path, **RECOMPUTED)
    for one, other in zip(plain, recomputed, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-7)
    truncated = gradients(tmp_path, backpropagation_segments=2)
    assert any(not torch.allclose(one, other, rtol=1e-2) for one, other in zip(plain, truncated, strict=True))


def test_dropout_is_the_same_when_computed_again(tmp_path: Path) -> None:
    found = []
    for changes in ({}, RECOMPUTED, {"gradient_checkpointing_granularity": "layer"}):
        setup = set_up(made(tmp_path, **changes), lambda line: None)
        add_dropout(setup.model, 0.5)
        module, batch = setup.model.module.train(), setup.data.batches(0).read(0)  # type: ignore[union-attr]
        torch.manual_seed(0)
        loss = setup.model.loss(module, batch)
        found.append((loss.detach(), torch.autograd.grad(loss, list(module.parameters()))))
        assert float(loss.detach()) != float(setup.model.loss(module.eval(), batch).detach())
    (plain, wanted), _, (again, same) = found  # blocks draw other numbers, in another order
    torch.testing.assert_close(again, plain)
    for one, other in zip(same, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"memory_slot": 3}, "there is no key model.memory_slot in the config.json of ltm"),
        ({"min_memory_slots": 9}, "model: memory_slots 4 is not within min_memory_slots 9"),
        ({"data": {"pack": True, "separator": "\n"}}, "pack"),
    ],
)
def test_what_does_not_apply_is_refused(tmp_path: Path, changes: dict[str, Any], said: str) -> None:
    with pytest.raises(OptionError) as raised:
        set_up(made(tmp_path, **changes), lambda line: None)
    assert said in str(raised.value)


def test_an_engine_serves_what_was_trained(tmp_path: Path) -> None:
    import whet

    found = trained(made(tmp_path))
    model, ids = load_ltm(found.model), torch.tensor([[3, 1, 4, 1, 5]])  # type: ignore[arg-type]
    with torch.no_grad():
        for _ in range(20):
            ids = torch.cat((ids, model(ids)[:, -1:].argmax(-1)), 1)
    with whet.Engine(found.model, whet.EngineOptions(dtype="fp32")) as engine:  # type: ignore[arg-type]
        completion = engine.generate([3, 1, 4, 1, 5], whet.SamplingParams(max_tokens=20, temperature=0.0))
    assert completion.token_ids == ids[0, 5:].tolist()
