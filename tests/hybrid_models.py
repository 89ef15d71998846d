"""Small hybrid models of all families, for tests: names and configs of transformers."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from native_steps import Read, saved_by_transformers
from whet.models.hybrid import Hybrid, read_config
from whet.models.step import ServedModel, StepBatch

SIZES: dict[str, Any] = {
    "vocab_size": 97,
    "hidden_size": 48,
    "intermediate_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 3,
    "num_key_value_heads": 1,
    "max_position_embeddings": 600,
}
MAMBA = {"mamba_n_heads": 6, "mamba_d_head": 16, "mamba_d_state": 12, "mamba_chunk_size": 32}
GRANITE = {
    **MAMBA,
    "num_local_experts": 0,
    "shared_intermediate_size": 56,
    "layer_types": ["mamba", "attention", "mamba"],
    "embedding_multiplier": 6.0,
    "logits_scaling": 3.0,
    "residual_multiplier": 0.3,
    "attention_multiplier": 0.1,
}
BAMBA = {**MAMBA, "attn_layer_indices": [1], "mamba_n_groups": 2}
FALCON = {
    **MAMBA,
    "mamba_d_ssm": 96,
    "key_multiplier": 0.5,
    "attention_in_multiplier": 0.7,
    "attention_out_multiplier": 0.9,
    "ssm_in_multiplier": 1.25,
    "ssm_out_multiplier": 0.8,
    "ssm_multipliers": [0.9, 0.8, 0.7, 1.1, 0.6],
    "mlp_multipliers": [0.8, 0.6],
    "embedding_multiplier": 2.0,
    "lm_head_multiplier": 0.5,
}
LFM2 = {"layer_types": ["conv", "full_attention", "conv"], "block_multiple_of": 16}

NEMOTRON = {
    "layers_block_type": ["mamba", "mlp", "attention", "mlp", "mamba"],
    "head_dim": 16,
    "mamba_num_heads": 6,
    "mamba_head_dim": 16,
    "ssm_state_size": 12,
    "n_groups": 2,
    "chunk_size": 32,
    "time_step_min": 1e-9,  # transformers takes it as the least step in prefill
}

VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "lfm2": ("Lfm2", LFM2),
    "lfm2 biases, untied": (
        "Lfm2",
        {
            "full_attn_idxs": [0, 2],
            "conv_bias": True,
            "conv_L_cache": 4,
            "tie_word_embeddings": False,
            "block_auto_adjust_ff_dim": False,
            "norm_eps": 1e-3,
            "rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 500.0},
        },
    ),
    "granitemoehybrid": ("GraniteMoeHybrid", GRANITE),
    "granitemoehybrid rope, biases": (
        "GraniteMoeHybrid",
        {
            **GRANITE,
            "position_embedding_type": "rope",
            "attention_bias": True,
            "mamba_proj_bias": True,
            "tie_word_embeddings": True,
            "time_step_limit": (0.01, 0.05),
        },
    ),
    "bamba": ("Bamba", BAMBA),
    "bamba biases": ("Bamba", {**BAMBA, "attention_bias": True, "mlp_bias": True, "mamba_conv_bias": False}),
    "falcon_h1": ("FalconH1", FALCON),
    "falcon_h1 norm, biases": (
        "FalconH1",
        {**FALCON, "mamba_rms_norm": True, "mamba_n_groups": 2, "projectors_bias": True, "attention_bias": True},
    ),
    "falcon_h1 gate first": ("FalconH1", {**FALCON, "mamba_rms_norm": True, "mamba_norm_before_gate": False}),
    "nemotron_h": ("NemotronH", NEMOTRON),
    "nemotron_h biases": ("NemotronH", {**NEMOTRON, "use_bias": True, "mlp_bias": True, "layer_norm_epsilon": 1e-3}),
}
FIRST = ("lfm2", "granitemoehybrid", "bamba", "falcon_h1", "nemotron_h")
"""One variant of each family."""


def saved(directory: Path, name: str, shard_size: str = "5GB") -> Any:
    """Return a model of transformers with random weights, after saving it."""
    family, changes = VARIANTS[name]
    return saved_by_transformers(directory, family, SIZES | changes, shard_size)


def config_of(name: str) -> dict[str, Any]:
    """Return the content of a config.json."""
    family, changes = VARIANTS[name]
    types = dict(zip(("Lfm2", "GraniteMoeHybrid", "Bamba", "FalconH1", "NemotronH"), FIRST, strict=True))
    return {"model_type": types[family], **SIZES, **changes}


def readable(directory: Path, name: str) -> Hybrid:
    """Return a readable model with random weights, norms and biases too, after writing its config.json."""
    (directory / "config.json").write_text(json.dumps(config_of(name)))
    torch.manual_seed(0)
    model = Hybrid(read_config(directory)).eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(torch.randn_like(weight) * 0.1)
    return model


def read_tokens(model: ServedModel, reads: list[Read], num_blocks: int = 38) -> list[Tensor]:
    """Make a step, in which the sequence of row r has the blocks from r * num_blocks on: the logits of all tokens."""
    news = [len(one.ids) for one in reads]
    starts = np.concatenate([[0], np.cumsum(news)]).astype(np.int32)
    batch = StepBatch(
        token_ids=torch.cat([one.ids for one in reads]).numpy().astype(np.int32),
        positions=np.concatenate([np.arange(len(one.ids)) + one.begin for one in reads]).astype(np.int32),
        query_start=starts,
        context_len=np.array([one.begin + len(one.ids) for one in reads], np.int32),
        settled_len=np.array([one.settled for one in reads], np.int32),
        block_tables=np.array([[one.row * num_blocks + i for i in range(num_blocks)] for one in reads], np.int32),
        state_rows=np.array([one.row for one in reads], np.int32),
        logit_rows=np.arange(starts[-1], dtype=np.int32),
    )
    return [part.clone() for part in model.step(batch).split(news)]


def loss_gradients(model: nn.Module, logits: Any, ids: Any) -> dict[str, Any]:
    """Return the gradients of the mean loss over the next tokens, by the names of parameters."""
    loss = nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
    model.zero_grad()
    loss.backward()
    return {name: weight.grad for name, weight in model.named_parameters()}
