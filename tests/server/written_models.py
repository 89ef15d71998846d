"""Write small models of each family into directories, with random weights."""

from pathlib import Path
from typing import Any

import torch

from whet.models.families import FAMILIES

SMALL = {
    "vocab_size": 97,
    "hidden_size": 48,
    "num_hidden_layers": 2,
}
_HEADS = {"intermediate_size": 80, "num_attention_heads": 3, "num_key_value_heads": 1, "max_position_embeddings": 128}
_MAMBA = {"mamba_n_heads": 6, "mamba_d_head": 16, "mamba_d_state": 12, "mamba_chunk_size": 32}
MODELS: dict[str, dict[str, Any]] = {
    "llama": {**_HEADS, "head_dim": 16, "attention_bias": True, "mlp_bias": True},
    "qwen3": {**_HEADS, "head_dim": 16, "tie_word_embeddings": True},
    "mamba": {},
    "mamba2": {"num_heads": 6, "head_dim": 16, "n_groups": 2, "state_size": 12},
    "lfm2": {**_HEADS, "layer_types": ["conv", "full_attention"], "block_multiple_of": 16},
    "falcon_h1": {**_HEADS, **_MAMBA, "mamba_d_ssm": 96, "ssm_multipliers": [0.9, 0.8, 0.7, 1.1, 0.6]},
    "ltm": {
        **{name: value for name, value in _HEADS.items() if name != "max_position_embeddings"},
        "head_dim": 16,
        "attention_block_size": 8,
        "memory_slots": 6,
        "test_time_memory": "mlp",
    },
}


def write_model(directory: Path, model_type: str, seed: int = 0, **changes: Any) -> Path:
    """Write a model into a new directory, and return it."""
    trains = FAMILIES[model_type].trains
    assert trains is not None
    given = {"model_type": model_type, **SMALL, **MODELS[model_type], **changes}
    config: Any = trains.config.model_validate(given)
    model = trains.fresh(config, torch.Generator().manual_seed(seed))
    with torch.no_grad(), torch.random.fork_rng():
        torch.manual_seed(seed)
        for weight in model.parameters():
            weight.add_(torch.randn_like(weight) * 0.1)
    directory.mkdir()
    trains.write(
        config.plan() if hasattr(config, "plan") else config, directory, given, model.state_dict(), {"eos_token_id": 0}
    )
    return directory
