"""A seed decides all weights of a new model of any family, whatever was drawn before."""

from typing import Any

import pytest
import test_hybrid
import test_selective
import torch

from whet.models.families import FAMILIES

SIZES = {"hidden_size": 32, "num_hidden_layers": 2}
WIDE = {**SIZES, "intermediate_size": 48, "num_attention_heads": 2}
CASES: list[dict[str, Any]] = [
    *({**test_hybrid.SIZES, "model_type": kind, **keys} for kind, keys in test_hybrid.KINDS.items()),
    *({**SIZES, "model_type": kind, **keys} for kind, keys in test_selective.KINDS.items()),
    {**WIDE, "model_type": "ltm", "memory_slots": 4, "attention_block_size": 8, "test_time_memory": "linear"},
    *({**WIDE, "model_type": kind, "head_dim": 16} for kind in ("llama", "mistral", "qwen2", "qwen3")),
]


@pytest.mark.parametrize("keys", CASES, ids=lambda keys: keys["model_type"])
def test_a_seed_decides_all_weights(keys: dict[str, Any]) -> None:
    family = FAMILIES[keys["model_type"]].trains
    assert family is not None
    config = family.config.model_validate({**keys, "vocab_size": 27})
    one, other = (family.fresh(config, torch.Generator().manual_seed(0)).state_dict() for _ in range(2))
    assert [name for name, value in one.items() if not torch.equal(value, other[name])] == []


def test_every_family_that_is_trained_is_tried() -> None:
    assert {keys["model_type"] for keys in CASES} == {name for name, one in FAMILIES.items() if one.trains is not None}
