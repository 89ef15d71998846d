"""whet train of hybrid models: what others read of them, and documents that share rows."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tiny_run import tables, trained

from whet.errors import OptionError
from whet.models.hybrid import load_hybrid
from whet.trainer.config import checked_config
from whet.trainer.setup import set_up

SIZES = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
}
MAMBA = {"mamba_n_heads": 4, "mamba_d_state": 8}
KINDS: dict[str, dict[str, Any]] = {
    "lfm2": {"layer_types": ["conv", "full_attention"], "block_auto_adjust_ff_dim": False, "norm_eps": 1e-4},
    "granitemoehybrid": {
        **MAMBA,
        "num_local_experts": 0,
        "shared_intermediate_size": 48,
        "layer_types": ["mamba", "attention"],
        "residual_multiplier": 0.5,
        "embedding_multiplier": 4.0,
    },
    "bamba": {**MAMBA, "attn_layer_indices": [1]},
    "falcon_h1": {**MAMBA, "mamba_d_ssm": 64, "key_multiplier": 0.5},
    "nemotron_h": {
        "layers_block_type": ["mamba", "mlp", "attention", "mlp"],
        "head_dim": 16,
        "mamba_num_heads": 4,
        "mamba_head_dim": 16,
        "ssm_state_size": 8,
        "n_groups": 2,
        "time_step_min": 1e-9,  # transformers takes it as the least step in prefill
    },
}


def made(place: Path, kind: str, **changes: Any) -> Any:
    """Return a configuration of a tiny model."""
    found = tables(place, **changes)
    found["model"] = {"model_type": kind, **SIZES, **KINDS[kind]}
    if "directory" in changes:
        found["model"] = {"directory": str(found.pop("directory"))}
        found["data"].pop("tokenizer")
    return checked_config(found, "test")


@pytest.mark.parametrize("kind", KINDS)
def test_others_load_what_was_trained(tmp_path: Path, kind: str) -> None:
    from transformers import AutoModelForCausalLM

    found = trained(made(tmp_path, kind))
    assert found.model is not None and found.held_out_loss is not None
    theirs, ours = AutoModelForCausalLM.from_pretrained(found.model).eval(), load_hybrid(found.model)
    ids = torch.arange(1, 20)[None]
    with torch.no_grad():
        torch.testing.assert_close(ours(ids), theirs(ids, use_cache=False).logits, rtol=0, atol=1e-4)
    further = trained(made(tmp_path, kind, out=str(tmp_path / "further"), directory=found.model))
    assert further.model is not None and further.held_out_loss is not None
    assert further.held_out_loss < found.held_out_loss + 0.3
    assert load_file(further.model / "model.safetensors").keys() == load_file(found.model / "model.safetensors").keys()


@pytest.mark.parametrize("kind", ["lfm2", "falcon_h1"])
def test_documents_that_share_a_row_are_learnt_as_if_each_were_alone(tmp_path: Path, kind: str) -> None:
    packed = {"data": {"pack": True, "separator": "\n", "sequence_length": 64}}
    setup = set_up(made(tmp_path, kind, **packed), lambda line: None)
    module, batch = setup.model.module, setup.data.batches(0).read(0)  # type: ignore[union-attr]
    with torch.no_grad():
        found = setup.model.loss(module, batch)
        total, count = torch.zeros(()), 0
        for ids, targets, documents in zip(batch["ids"], batch["targets"], batch["documents"], strict=True):
            for number in range(int(documents.max()) + 1):
                of = documents == number
                logits = module(ids[None, of])[0]
                total += torch.nn.functional.cross_entropy(logits, targets[of], ignore_index=-100, reduction="sum")
                count += int((targets[of] >= 0).sum())
    torch.testing.assert_close(found, total / count, rtol=1e-5, atol=1e-6)


def test_keys_of_another_family_are_refused(tmp_path: Path) -> None:
    for key, said in (("conv_L_cache", "no key model.conv_L_cache"), ("num_local_experts", "no key model.num_local")):
        given = tables(tmp_path)
        given["model"] = {"model_type": "bamba", **SIZES, **KINDS["bamba"], key: 4}
        with pytest.raises(OptionError, match=said):
            set_up(checked_config(given, "test"), lambda line: None)
