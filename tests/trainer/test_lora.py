"""whet train with LoRA: equal logits in peft and transformers, what checkpoints hold, and conversations."""

import builtins
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tiny_run import base_model, config, gpt2, trained
from torch import Tensor

from whet.errors import MissingExtra, OptionError
from whet.models.decoder import load_decoder
from whet.trainer.lora import merged
from whet.trainer.result import TrainResult
from whet.trainer.setup import set_up

pytestmark = pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing. is deprecated:FutureWarning")  # peft's

KINDS = ["llama", "qwen2", "gpt2"]


def opened(place: Path, kind: str) -> Path:
    """Return the directory of a base model."""
    if kind != "gpt2":
        return base_model(place, model={"model_type": kind})
    return gpt2(place, base_model(place))


def with_lora(place: Path, base: Path, **changes: Any) -> Any:
    found = config(place, **{"lora": {"r": 4}, **changes})
    return found.model_copy(update={"model": found.model.model_validate({"directory": str(base)})})


def logits(model: Any) -> Tensor:
    ids = torch.arange(20)[None]
    with torch.no_grad():
        found: Tensor = model.eval()(input_ids=ids).logits
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_the_adapter_and_the_merged_model_have_equal_logits(tmp_path: Path, kind: str) -> None:
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    base = opened(tmp_path, kind)
    changes: dict[str, Any] = {"steps": 20, "data": {"tokenizer": None}}
    adapter = trained(with_lora(tmp_path, base, lora={"r": 4, "merge": False}, **changes))
    whole = trained(with_lora(tmp_path, base, out=str(tmp_path / "merged"), **changes))
    assert adapter.model is not None and whole.model is not None
    assert {"adapter_config.json", "adapter_model.safetensors"} <= {one.name for one in adapter.model.iterdir()}
    assert not (adapter.model / "model.safetensors").exists()
    bare = AutoModelForCausalLM.from_pretrained(base)
    before = logits(bare)
    theirs = PeftModel.from_pretrained(bare, adapter.model)
    after = logits(theirs)
    assert (before - after).abs().max() > 0.1, "twenty steps change the model"
    torch.testing.assert_close(logits(theirs.merge_and_unload()), after, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(logits(AutoModelForCausalLM.from_pretrained(whole.model)), after, rtol=1e-4, atol=1e-4)
    assert load_file(whole.model / "model.safetensors").keys() == load_file(base / "model.safetensors").keys()
    if kind != "gpt2":
        with torch.no_grad():
            ours = load_decoder(whole.model)(torch.arange(20)[None])
        torch.testing.assert_close(ours, after, rtol=1e-4, atol=1e-4)


def test_a_step_is_the_one_that_peft_and_transformers_make(tmp_path: Path) -> None:
    import torch.nn.functional as F
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    base = opened(tmp_path, "llama")
    setup = set_up(with_lora(tmp_path, base, lora={"r": 4, "alpha": 8}), lambda line: None)
    ours = {name: p for name, p in setup.model.module.named_parameters() if p.requires_grad}
    assert len(ours) == 2 * 7 * 2 and all(".lora_" in name for name in ours)
    targets = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    theirs = get_peft_model(
        AutoModelForCausalLM.from_pretrained(base), LoraConfig(r=4, lora_alpha=8, target_modules=targets)
    )
    with torch.no_grad():
        for name, p in theirs.named_parameters():
            if p.requires_grad:
                ours[name.removeprefix("base_model.model.model.")].normal_(std=0.1)
                p.copy_(ours[name.removeprefix("base_model.model.model.")])
    batch = next(iter(setup.workload().batches))
    loss = setup.model.loss(setup.model.module, batch)
    loss.backward()
    wanted = F.cross_entropy(theirs(batch["ids"]).logits.flatten(0, 1), batch["targets"].flatten())
    wanted.backward()
    torch.testing.assert_close(loss, wanted, rtol=1e-5, atol=1e-5)
    for name, p in theirs.named_parameters():
        if p.requires_grad:
            torch.testing.assert_close(
                ours[name.removeprefix("base_model.model.model.")].grad, p.grad, rtol=1e-3, atol=1e-6
            )


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_it_goes_on_bit_for_bit_with_dropout(tmp_path: Path, kind: str) -> None:
    base = opened(tmp_path, kind)
    lora = {"r": 4, "dropout": 0.2, "merge": False}
    changes: dict[str, Any] = {"lora": lora, "batch": {"micro_batch_size": 4}, "data": {"tokenizer": None}}

    def weights(result: TrainResult) -> dict[str, Tensor]:
        assert result.model is not None
        return dict(load_file(result.model / "adapter_model.safetensors"))

    whole = weights(trained(with_lora(tmp_path, base, out=str(tmp_path / "whole"), **changes)))
    made = with_lora(tmp_path, base, **changes)
    trained(made, stop_at=5)
    [saved] = (tmp_path / "run" / "checkpoints").glob("step-*5")
    for part in ("model", "optimizer"):
        names = list(load_file(saved / f"{part}.safetensors"))
        assert names and all(".lora_" in name for name in names), names
    resumed = weights(trained(made, resume=True))
    assert whole.keys() == resumed.keys()
    for name, value in whole.items():
        assert torch.equal(value, resumed[name]), name


def test_another_base_does_not_go_on(tmp_path: Path) -> None:
    base = opened(tmp_path, "llama")
    trained(with_lora(tmp_path, base), stop_at=4)
    ended = trained(with_lora(tmp_path, base, lora={"r": 4, "merge": False}), stop_at=6, resume=True)
    assert ended.step == 6, "how it is written is no part of the training"
    with pytest.raises(OptionError, match=r"\[lora\] changed"):
        trained(with_lora(tmp_path, base, lora={"r": 2}), resume=True)
    shutil.rmtree(base)
    base_model(tmp_path, seed=7)
    with pytest.raises(OptionError, match="the base model changed"):
        trained(with_lora(tmp_path, base), resume=True)


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (["q_porj"], "the model has no layer q_porj; did you mean q_proj"),
        (["mlp"], "mlp is no linear layer"),
        (["embed_tokens"], "embed_tokens is no linear layer"),
        (["lm_head"], "lm_head shares its weight with embed_tokens"),
        ([], "target_modules names no layer"),
    ],
)
def test_a_wrong_layer_is_named(tmp_path: Path, names: list[str], said: str) -> None:
    base = opened(tmp_path, "llama")
    with pytest.raises(OptionError, match=said):
        set_up(with_lora(tmp_path, base, lora={"target_modules": names}), lambda line: None)


def test_chosen_layers_alone_are_trained(tmp_path: Path) -> None:
    base = opened(tmp_path, "llama")
    names = ["q_proj", "model.layers.1.mlp.up_proj"]
    setup = set_up(with_lora(tmp_path, base, lora={"target_modules": names}), lambda line: None)
    found = {name.partition(".lora_")[0] for name, p in setup.model.module.named_parameters() if p.requires_grad}
    assert found == {"layers.0.self_attn.q_proj", "layers.1.self_attn.q_proj", "layers.1.mlp.up_proj"}


def test_it_needs_a_directory_and_peft(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(OptionError, match=r"\[lora\] goes on from a trained model"):
        set_up(config(tmp_path, lora={"r": 2}), lambda line: None)
    base, real = opened(tmp_path, "llama"), builtins.__import__

    def missing(name: str, *args: Any, **kwargs: Any) -> Any:
        if name == "peft":
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", missing)
    with pytest.raises(MissingExtra, match=r"torch-whet\[lora\]"):
        set_up(with_lora(tmp_path, base), lambda line: None)


def test_products_are_added_once() -> None:
    a, b, w = torch.randn(2, 5), torch.randn(3, 2), torch.randn(3, 5)
    weights = {"x.base_layer.weight": w, "x.base_layer.bias": w[:, 0], "x.lora_A.default.weight": a}
    weights |= {"x.lora_B.default.weight": b, "y.weight": w}
    found = merged(weights, 0.5)
    assert found.keys() == {"x.weight", "x.bias", "y.weight"}
    torch.testing.assert_close(found["x.weight"].double(), w.double() + 0.5 * b.double() @ a.double())


def test_answers_of_conversations_alone_are_learnt(tmp_path: Path) -> None:
    """Instruction data: the loss with LoRA is the mean over the tokens of answers."""
    lines = [
        {"messages": [{"role": "user", "content": f"the {one}"}, {"role": "assistant", "content": f"{one} falls"}]}
        for one in ("stone", "blade", "edge", "night") * 40
    ]
    file = tmp_path / "chat.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    data = {"train": [str(file)], "tokenizer": "bytes", "pack": True, "sequence_length": 48}
    plain = {"tokenizer": "bytes", "sequence_length": 48}
    base = trained(config(tmp_path, out=str(tmp_path / "base"), steps=60, data=plain)).model
    assert base is not None
    setup = set_up(with_lora(tmp_path, base, data={**data, "tokenizer": None}), lambda line: None)
    batch = next(iter(setup.workload().batches))
    assert setup.data.tokenizer is not None
    for ids, targets, documents in zip(batch["ids"], batch["targets"], batch["documents"], strict=True):
        learnt = bytes(int(one) for one in targets[targets >= 0] if one < 256).decode()
        assert all(word in (*"stone blade edge night falls".split(), "") for word in learnt.split()), learnt
        assert 0 < int((targets >= 0).sum()) < int((documents >= 0).sum()), ids
    before = setup.model.loss(setup.model.module, batch).item()
    ended = trained(
        with_lora(tmp_path, base, steps=60, optimizer={"lr": 3e-2}, lora={"r": 8}, data={**data, "tokenizer": None})
    )
    assert ended.loss is not None and ended.loss < 0.7 * before
    assert ended.model is not None and (ended.model / "tokenizer.json").is_file()
