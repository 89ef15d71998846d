"""whet train of state-space models: what others read of them, how a run goes on, and what does not apply to them."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tiny_run import base_model, config, gpt2, tables, trained

from whet.errors import OptionError, TargetError
from whet.models.selective import load_selective
from whet.techniques.mechanisms.pruning.masks import prunable
from whet.trainer.config import checked_config
from whet.trainer.setup import set_up

pytestmark = pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing. is deprecated:FutureWarning")  # peft's

HEADS = {"num_heads": 4, "head_dim": 16, "n_groups": 2, "state_size": 8}
KINDS: dict[str, dict[str, Any]] = {
    "mamba": {"state_size": 4},
    "falcon_mamba": {"state_size": 4, "mixer_rms_eps": 1e-3, "use_bias": True},
    "mamba2": {**HEADS, "tie_word_embeddings": False, "time_step_limit": [0.01, 0.2]},
}
PACKED = {"data": {"pack": True, "separator": "\n", "sequence_length": 64}}


def made(place: Path, kind: str, **changes: Any) -> Any:
    """Return a configuration of a tiny model."""
    found = tables(place, **changes)
    found["model"] = {"model_type": kind, "hidden_size": 32, "num_hidden_layers": 2, **KINDS[kind]}
    if "directory" in changes:
        found["model"] = {"directory": str(found.pop("directory"))}
        found["data"].pop("tokenizer")
    return checked_config(found, "test")


@pytest.mark.parametrize("kind", KINDS)
def test_others_load_what_was_trained(tmp_path: Path, kind: str) -> None:
    from transformers import AutoModelForCausalLM

    found = trained(made(tmp_path, kind, steps=40, checkpoints={"save_interval": 40}, log={"log_interval": 20}))
    assert found.model is not None and found.held_out_loss is not None
    assert found.held_out_loss < 2.6, "characters of known words: below ln 27"
    theirs, ours = AutoModelForCausalLM.from_pretrained(found.model).eval(), load_selective(found.model)
    ids = torch.arange(20)[None]
    with torch.no_grad():
        torch.testing.assert_close(ours(ids), theirs(ids, use_cache=False).logits, rtol=0, atol=1e-4)
    further = trained(made(tmp_path, kind, out=str(tmp_path / "further"), directory=found.model))
    assert further.model is not None and further.held_out_loss is not None
    assert further.held_out_loss < found.held_out_loss + 0.3
    assert (further.model / "config.json").read_bytes() == (found.model / "config.json").read_bytes()
    assert load_file(further.model / "model.safetensors").keys() == load_file(found.model / "model.safetensors").keys()


def test_an_engine_serves_and_whet_tune_opens_what_was_trained(tmp_path: Path) -> None:
    import whet
    from whet.workloads.target import resolve

    found = trained(made(tmp_path, "mamba"))
    assert found.model is not None
    model = load_selective(found.model)
    ids = torch.tensor([[3, 1, 4, 1, 5]])
    with torch.no_grad():
        for _ in range(6):
            ids = torch.cat((ids, model(ids)[:, -1:].argmax(-1)), 1)
        with whet.Engine(found.model, whet.EngineOptions(dtype="fp32")) as engine:
            completion = engine.generate([3, 1, 4, 1, 5], whet.SamplingParams(max_tokens=6, temperature=0.0))
        assert completion.token_ids == ids[0, 5:].tolist()
        workload = resolve(f"hf:{found.model}?seq=16")
        batch: Any = workload.inputs[0]
        torch.testing.assert_close(workload.model(**batch).logits, model(batch["input_ids"]), rtol=0, atol=1e-4)


@pytest.mark.parametrize("kind", ["mamba", "mamba2"])
@pytest.mark.parametrize("changes", [{}, {**PACKED, "batch": {"micro_batch_size": 4}}], ids=["stream", "packed"])
def test_a_run_goes_on_bit_for_bit(tmp_path: Path, kind: str, changes: dict[str, Any]) -> None:
    whole = trained(made(tmp_path, kind, out=str(tmp_path / "whole"), **changes))
    assert trained(made(tmp_path, kind, **changes), stop_at=5).step == 5
    resumed = trained(made(tmp_path, kind, **changes), resume=True)
    assert whole.model is not None and resumed.model is not None
    one, other = (load_file(found.model / "model.safetensors") for found in (whole, resumed))  # type: ignore[operator]
    assert one.keys() == other.keys()
    assert all(torch.equal(value, other[name]) for name, value in one.items())


def test_documents_that_share_a_row_are_learnt_as_if_each_were_alone(tmp_path: Path) -> None:
    setup = set_up(made(tmp_path, "mamba", **PACKED), lambda line: None)
    model, batch = setup.model, setup.data.batches(0).read(0)  # type: ignore[union-attr]
    module = model.module
    loss = model.loss(module, batch)
    loss.backward()
    found = {name: p.grad for name, p in module.named_parameters()}
    module.zero_grad()
    total, count = torch.zeros(()), 0
    for ids, targets, documents in zip(batch["ids"], batch["targets"], batch["documents"], strict=True):
        for number in range(int(documents.max()) + 1):
            of = documents == number
            logits = module(ids[None, of])
            total = total + torch.nn.functional.cross_entropy(
                logits[0], targets[of], ignore_index=-100, reduction="sum"
            )
            count += int((targets[of] >= 0).sum())
    assert count == int((batch["targets"] >= 0).sum())
    alone = total / count
    alone.backward()
    torch.testing.assert_close(loss, alone, rtol=1e-5, atol=1e-6)
    for name, p in module.named_parameters():
        torch.testing.assert_close(found[name], p.grad, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_only_what_products_multiply_decays_and_is_pruned(tmp_path: Path, kind: str) -> None:
    setup = set_up(made(tmp_path, kind, optimizer={"weight_decay": 0.5}), lambda line: None)
    module = setup.model.module
    optimizer = setup.workload().optimizer(module.parameters())
    decay = {id(p): group["weight_decay"] for group in optimizer.param_groups for p in group["params"]}
    decayed = {name.rpartition("mixer.")[2] for name, p in module.named_parameters() if decay[id(p)]}
    products = {"in_proj.weight", "out_proj.weight", "conv1d.weight", "embeddings.weight"}
    assert decayed == products | ({"lm_head.weight"} if kind == "mamba2" else {"x_proj.weight", "dt_proj.weight"})
    assert not any(name.endswith(("A_log", ".D")) for name in prunable(module))


def test_rates_stay_in_float32_beside_matrices_in_bfloat16(tmp_path: Path) -> None:
    from whet.core.recipe import Recipe, Step
    from whet.techniques.prepared_trainer import PreparedTrainer

    Recipe(kind="training", steps=(Step(technique="bf16_parameters"),)).write(tmp_path / "recipe.toml")
    setup = set_up(made(tmp_path, "mamba", recipe=str(tmp_path / "recipe.toml")), lambda line: None)
    workload = setup.workload()
    trainer = PreparedTrainer(workload, list(setup.steps)).trainer
    before = trainer.model.state_dict()["layers.0.mixer.A_log"].clone()
    trainer.step_on([next(iter(workload.batches))])
    kinds = {name: p.dtype for name, p in trainer.model.named_parameters()}
    assert kinds["layers.0.mixer.in_proj.weight"] is torch.bfloat16
    assert kinds["layers.0.mixer.A_log"] is torch.float32
    assert not torch.equal(trainer.model.state_dict()["layers.0.mixer.A_log"], before)


def test_lora_trains_the_layers_that_peft_takes(tmp_path: Path) -> None:
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    base = trained(made(tmp_path, "mamba", out=str(tmp_path / "base"))).model
    assert base is not None
    changes: dict[str, Any] = {"directory": base, "steps": 20}
    adapter = trained(made(tmp_path, "mamba", lora={"r": 2, "merge": False}, **changes)).model
    merged = trained(made(tmp_path, "mamba", lora={"r": 2}, out=str(tmp_path / "merged"), **changes)).model
    assert adapter is not None and merged is not None
    ids = torch.arange(20)[None]
    with torch.no_grad():
        bare = AutoModelForCausalLM.from_pretrained(base).eval()
        before = bare(ids, use_cache=False).logits
        after = PeftModel.from_pretrained(bare, adapter).eval()(input_ids=ids, use_cache=False).logits
        assert (before - after).abs().max() > 0.01, "twenty steps change the model"
        torch.testing.assert_close(load_selective(merged)(ids), after, rtol=0, atol=1e-4)
    for name, why in (("dt_proj", "the layer is never called"), ("out_proj", "peft refuses it")):
        with pytest.raises(OptionError, match=f"lora.target_modules: {name} cannot get matrices, since .*{why}"):
            set_up(made(tmp_path, "mamba", lora={"target_modules": [name]}, **changes), lambda line: None)


def test_what_does_not_apply_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    base = trained(made(tmp_path, "mamba", steps=3, out=str(tmp_path / "base"))).model
    for changes, said in (
        ({"prune": {"kind": "structured", "amount": 0.5}, "directory": base}, "this model cannot be cut: Selective is"),
        ({"model": {"expand": 1.5}}, "model.intermediate_size: 48 is no multiple of hidden_size 32"),
        (
            {"model": {"num_attention_heads": 2}},
            "no key model.num_attention_heads in the config.json of mamba",
        ),
        ({"model": {"hidden_act": "gelu"}}, "model.hidden_act"),
    ):
        raw = made(tmp_path, "mamba", **{k: v for k, v in changes.items() if k != "model"})
        if "model" in changes:
            more = {**raw.model.config, **changes["model"]}  # type: ignore[dict-item]
            raw = raw.model_copy(update={"model": raw.model.model_validate(more)})
        with pytest.raises(OptionError, match=said):
            set_up(raw, lambda line: None)
    monkeypatch.setattr("whet.trainer.model.free_bytes", lambda with_swap: 1000)
    with pytest.raises(TargetError, match=r"make model.hidden_size or model.num_hidden_layers smaller"):
        set_up(made(tmp_path, "mamba"), lambda line: None)


def test_recurrent_models_of_transformers_do_not_pack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers import GPT2LMHeadModel

    monkeypatch.setattr(GPT2LMHeadModel, "_is_stateful", True)
    raw = config(tmp_path, **PACKED, model={})
    directory = gpt2(tmp_path, base_model(tmp_path))
    raw = raw.model_copy(update={"model": raw.model.model_validate({"directory": str(directory)})})
    with pytest.raises(OptionError, match=r"another document in the row changes its outputs for this one"):
        set_up(raw, lambda line: None)


@pytest.mark.parametrize("kind", ["llama", "mamba"])
def test_dropout_is_for_training_alone_and_goes_on_bit_for_bit(tmp_path: Path, kind: str) -> None:
    changes: dict[str, Any] = {"optimizer": {"dropout": 0.3}}
    make = made if kind == "mamba" else lambda place, kind, **more: config(place, **more)
    setup = set_up(make(tmp_path, kind, **changes), lambda line: None)
    module, batch = setup.model.module.train(), setup.data.one_row()
    assert setup.model.loss(module, batch) != setup.model.loss(module, batch)
    module.eval()
    assert setup.model.loss(module, batch) == setup.model.loss(module, batch)
    bare = set_up(make(tmp_path, kind), lambda line: None).model
    assert setup.model.loss(module, batch) == bare.loss(bare.module.eval(), batch)
    whole = trained(make(tmp_path, kind, out=str(tmp_path / "whole"), **changes))
    trained(make(tmp_path, kind, **changes), stop_at=5)
    resumed = trained(make(tmp_path, kind, **changes), resume=True)
    one, other = (load_file(found.model / "model.safetensors") for found in (whole, resumed))  # type: ignore[operator]
    assert all(torch.equal(value, other[name]) for name, value in one.items())


def test_dropout_of_models_of_transformers_is_their_own(tmp_path: Path) -> None:
    raw = config(tmp_path, optimizer={"dropout": 0.1})
    directory = gpt2(tmp_path, base_model(tmp_path))
    raw = raw.model_copy(update={"model": raw.model.model_validate({"directory": str(directory)})})
    with pytest.raises(OptionError, match=r"adds no dropout to models of this family; leave optimizer.dropout out"):
        set_up(raw, lambda line: None)
