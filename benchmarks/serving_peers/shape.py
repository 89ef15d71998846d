"""The shape of the benchmark's model, apart from how it is made: whoever measures needs no torch for it."""

import math
from typing import Any

CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 32_000,
    "hidden_size": 1024,
    "intermediate_size": 2816,
    "num_hidden_layers": 16,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "head_dim": 64,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10_000.0,
    "rope_scaling": None,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "attention_bias": False,
    "mlp_bias": False,
    "initializer_range": 0.02,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "torch_dtype": "bfloat16",
    "use_cache": True,
}


def bytes_per_token(weight_bits: float) -> float:
    """Bytes of weights that one decoded token reads: all matrices but the embedding, of which it reads one row."""
    matrices = [shape for name, shape in shapes().items() if len(shape) == 2 and "embed" not in name]
    return sum(math.prod(shape) for shape in matrices) * weight_bits / 8


def shapes() -> dict[str, tuple[int, ...]]:
    width, ffn, vocab = CONFIG["hidden_size"], CONFIG["intermediate_size"], CONFIG["vocab_size"]
    q = CONFIG["num_attention_heads"] * CONFIG["head_dim"]
    kv = CONFIG["num_key_value_heads"] * CONFIG["head_dim"]
    result: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (vocab, width)}
    for layer in range(CONFIG["num_hidden_layers"]):
        prefix = f"model.layers.{layer}"
        result |= {
            f"{prefix}.input_layernorm.weight": (width,),
            f"{prefix}.self_attn.q_proj.weight": (q, width),
            f"{prefix}.self_attn.k_proj.weight": (kv, width),
            f"{prefix}.self_attn.v_proj.weight": (kv, width),
            f"{prefix}.self_attn.o_proj.weight": (width, q),
            f"{prefix}.post_attention_layernorm.weight": (width,),
            f"{prefix}.mlp.gate_proj.weight": (ffn, width),
            f"{prefix}.mlp.up_proj.weight": (ffn, width),
            f"{prefix}.mlp.down_proj.weight": (width, ffn),
        }
    return result | {"model.norm.weight": (width,), "lm_head.weight": (vocab, width)}
