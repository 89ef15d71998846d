"""Small hybrid models of all families, for tests: names and configs of transformers."""

from pathlib import Path
from typing import Any

from torch import nn

from native_steps import saved_by_transformers

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
}
FIRST = ("lfm2", "granitemoehybrid", "bamba", "falcon_h1")
"""One variant of each family."""


def saved(directory: Path, name: str, shard_size: str = "5GB") -> Any:
    """Return a model of transformers with random weights, after saving it."""
    family, changes = VARIANTS[name]
    return saved_by_transformers(directory, family, SIZES | changes, shard_size)


def loss_gradients(model: nn.Module, logits: Any, ids: Any) -> dict[str, Any]:
    """Return the gradients of the mean loss over the next tokens, by the names of parameters."""
    loss = nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
    model.zero_grad()
    loss.backward()
    return {name: weight.grad for name, weight in model.named_parameters()}
