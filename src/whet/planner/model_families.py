"""Say how each family of Hugging Face's decoders names its sizes, and what transformers takes for those left out."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

Keys = Mapping[str, Any]

_PLAIN = {
    "hidden_size": "hidden_size",
    "intermediate_size": "intermediate_size",
    "num_layers": "num_hidden_layers",
    "num_heads": "num_attention_heads",
    "num_kv_heads": "num_key_value_heads",
    "head_size": "head_dim",
    "vocab_size": "vocab_size",
    "longest": "max_position_embeddings",
}
_GPT2 = {
    "hidden_size": "n_embd",
    "intermediate_size": "n_inner",
    "num_layers": "n_layer",
    "num_heads": "n_head",
    "vocab_size": "vocab_size",
    "longest": "n_positions",
}
_MPT = {
    "hidden_size": "d_model",
    "num_layers": "n_layers",
    "num_heads": "n_heads",
    "vocab_size": "vocab_size",
    "longest": "max_seq_len",
}
_BLOOM = {**_GPT2, "hidden_size": "hidden_size", "longest": "seq_length"}
_FALCON = {**_PLAIN, "num_kv_heads": "num_kv_heads", "intermediate_size": "ffn_hidden_size"}


def _experts_of_qwen(config: Keys) -> dict[str, Any]:
    """Return the experts of a Qwen. The shared expert counts by how many routed ones have its width."""
    width = config["moe_intermediate_size"]
    step, alone = config.get("decoder_sparse_step", 1), config.get("mlp_only_layers") or []
    if step != 1 or list(alone) != list(range(len(alone))):
        raise ValueError("experts that are in some layers only, after the first ones, are not planned yet")
    return {
        "number": config["num_experts"],
        "per_token": config["num_experts_per_tok"],
        "shared": round(config.get("shared_expert_intermediate_size", 0) / width),
        "intermediate_size": width,
        "num_dense_layers": len(alone),
    }


def _experts_of_mixtral(config: Keys) -> dict[str, Any]:
    return {
        "number": config["num_local_experts"],
        "per_token": config["num_experts_per_tok"],
        "intermediate_size": config["intermediate_size"],
    }


def _experts_of_deepseek(config: Keys) -> dict[str, Any]:
    if config.get("moe_layer_freq", 1) != 1:
        raise ValueError("moe_layer_freq: experts that are in some layers only, after the first ones, are not planned")
    return {
        "number": config["n_routed_experts"],
        "per_token": config["num_experts_per_tok"],
        "shared": config.get("n_shared_experts") or 0,
        "intermediate_size": config["moe_intermediate_size"],
        "groups": config.get("n_group") or 1,
        "groups_per_token": config.get("topk_group") or config.get("n_group") or 1,
        "num_dense_layers": min(config["first_k_dense_replace"], config["num_hidden_layers"]),
    }


def _latent(config: Keys) -> dict[str, Any]:
    return {
        "query_rank": config.get("q_lora_rank") or 0,
        "rank": config["kv_lora_rank"],
        "rotary_size": config["qk_rope_head_dim"],
        "plain_size": config["qk_nope_head_dim"],
        "value_size": config["v_head_dim"],
    }


def _kv_heads_of_falcon(config: Keys) -> int | None:
    """Return the key-value heads; num_kv_heads is read by the newer architecture alone."""
    if config.get("new_decoder_architecture"):
        return config.get("num_kv_heads")
    return 1 if config.get("multi_query", True) else config.get("num_attention_heads")


def _slides(config: Keys) -> bool:
    return True


def _slides_if_used(config: Keys) -> bool:
    return bool(config.get("use_sliding_window"))


@dataclass(frozen=True, kw_only=True)
class Family:
    """Describe a family of decoders.

    Attributes:
        keys: The key of each size in config.json.
        left_out: What transformers takes for keys that config.json leaves out.
        fixed: Fields of ModelShape that are the same for all models of the family.
        is_tied: Whether the head has the weights of the embedding, where config.json does not say.
        biases: The key that says whether matrices have biases; "" where none does.
        learned: Whether positions have learned embeddings, as many as `longest` and `extra_positions`.
        window: Returns whether the key sliding_window holds; None where the family has no window.
        drops: The keys of the shares that dropout takes.
        experts: Returns the fields of Experts.
        latent: Returns the fields of LatentAttention.
        kv_heads: Returns the key-value heads, where no single key holds them.
    """

    keys: Mapping[str, str] = field(default_factory=lambda: _PLAIN)
    left_out: Mapping[str, Any] = field(default_factory=dict)
    fixed: Mapping[str, Any] = field(default_factory=dict)
    is_tied: bool = False
    biases: str = ""
    learned: bool = False
    extra_positions: int = 0
    window: Callable[[Keys], bool] | None = None
    drops: tuple[str, ...] = ()
    experts: Callable[[Keys], dict[str, Any]] | None = None
    latent: Callable[[Keys], dict[str, Any]] | None = None
    kv_heads: Callable[[Keys], int | None] | None = None


def _sizes(**given: Any) -> dict[str, Any]:
    """Return the sizes that transformers' configs of many families share, with some in their place."""
    shared = {"hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32, "num_attention_heads": 32}
    return shared | {"max_position_embeddings": 2048} | given


_GPT2_SIZES = {"vocab_size": 50257, "n_embd": 768, "n_layer": 12, "n_head": 12, "n_positions": 1024}
_GPT2_LEFT_OUT = {**_GPT2_SIZES, "resid_pdrop": 0.1, "attn_pdrop": 0.1}
_OLD = {"is_gated": False, "norm": "layer"}
_OLD_BIASED = {**_OLD, "has_biases": True}
_QWEN = _sizes(vocab_size=151_936, intermediate_size=22016, num_key_value_heads=32, max_position_embeddings=32_768)
_QWEN_MOE = {
    **_sizes(vocab_size=151_936, hidden_size=2048, num_hidden_layers=24, max_position_embeddings=32_768),
    "decoder_sparse_step": 1,
}
_DEEPSEEK = {"q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64}
_DEEPSEEK |= {"v_head_dim": 128}
_GEMMA2 = _sizes(hidden_size=2304, intermediate_size=9216, num_hidden_layers=26, num_attention_heads=8, head_dim=256)
_GEMMA2 |= {"num_key_value_heads": 4}


FAMILIES: Mapping[str, Family] = MappingProxyType(
    {
        "llama": Family(left_out=_sizes(vocab_size=32000), biases="attention_bias"),
        "mistral": Family(
            left_out=_sizes(
                vocab_size=32000, intermediate_size=14336, num_key_value_heads=8, max_position_embeddings=131_072,
                sliding_window=4096,
            ),
            window=_slides,
        ),
        "mixtral": Family(
            left_out=_sizes(
                vocab_size=32000, intermediate_size=14336, num_key_value_heads=8, max_position_embeddings=131_072,
                num_local_experts=8, num_experts_per_tok=2,
            ),
            window=_slides,
            experts=_experts_of_mixtral,
        ),
        "qwen2": Family(left_out=_QWEN, window=_slides_if_used),
        "qwen3": Family(left_out={**_QWEN, "head_dim": 128}, biases="attention_bias", window=_slides_if_used),
        "qwen2_moe": Family(
            left_out={
                **_QWEN_MOE, "intermediate_size": 5632, "num_attention_heads": 16, "num_key_value_heads": 16,
                "num_experts": 60, "num_experts_per_tok": 4, "moe_intermediate_size": 1408,
                "shared_expert_intermediate_size": 5632,
            },
            window=_slides_if_used,
            experts=_experts_of_qwen,
        ),
        "qwen3_moe": Family(
            left_out={
                **_QWEN_MOE, "intermediate_size": 6144, "num_attention_heads": 32, "num_key_value_heads": 4,
                "num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 768,
            },
            biases="attention_bias",
            window=_slides_if_used,
            experts=_experts_of_qwen,
        ),
        "deepseek_v2": Family(
            left_out={
                **_sizes(vocab_size=102_400), **_DEEPSEEK, "n_routed_experts": 64, "n_shared_experts": 2,
                "moe_intermediate_size": 1407, "first_k_dense_replace": 0,
            },
            biases="attention_bias",
            experts=_experts_of_deepseek,
            latent=_latent,
        ),
        "deepseek_v3": Family(
            left_out={
                **_sizes(
                    vocab_size=129_280, hidden_size=7168, intermediate_size=18432, num_hidden_layers=61,
                    num_attention_heads=128, max_position_embeddings=4096,
                ),
                **_DEEPSEEK, "n_routed_experts": 256, "n_shared_experts": 1, "num_experts_per_tok": 8,
                "moe_intermediate_size": 2048, "first_k_dense_replace": 3, "n_group": 8, "topk_group": 4,
            },
            biases="attention_bias",
            experts=_experts_of_deepseek,
            latent=_latent,
        ),
        "gpt2": Family(
            keys=_GPT2,
            left_out=_GPT2_LEFT_OUT,
            fixed=_OLD_BIASED,
            is_tied=True,
            learned=True,
            drops=("resid_pdrop", "attn_pdrop", "embd_pdrop"),
        ),
        "gpt_bigcode": Family(
            keys=_GPT2,
            left_out=_GPT2_LEFT_OUT,
            fixed=_OLD_BIASED,
            is_tied=True,
            learned=True,
            drops=("resid_pdrop", "attn_pdrop", "embd_pdrop"),
            kv_heads=lambda config: 1 if config.get("multi_query", True) else config.get("n_head"),
        ),
        "gpt_neox": Family(
            left_out=_sizes(
                vocab_size=50432, hidden_size=6144, intermediate_size=24576, num_hidden_layers=44,
                num_attention_heads=64,
            ),
            fixed=_OLD_BIASED,
            drops=("attention_dropout", "hidden_dropout"),
        ),
        "opt": Family(
            keys={**_PLAIN, "intermediate_size": "ffn_dim"},
            left_out={"vocab_size": 50272, "hidden_size": 768, "ffn_dim": 3072, "num_hidden_layers": 12,
                      "num_attention_heads": 12, "max_position_embeddings": 2048, "dropout": 0.1},
            fixed=_OLD_BIASED,
            is_tied=True,
            learned=True,
            extra_positions=2,
            drops=("dropout", "attention_dropout"),
        ),
        "bloom": Family(
            keys=_BLOOM,
            left_out={"vocab_size": 250_880, "hidden_size": 64, "n_layer": 2, "n_head": 8},
            fixed=_OLD_BIASED,
            is_tied=True,
            drops=("attention_dropout", "hidden_dropout"),
        ),
        "mpt": Family(
            keys=_MPT,
            left_out={"vocab_size": 50368, "d_model": 2048, "n_heads": 16, "n_layers": 24, "max_seq_len": 2048},
            fixed=_OLD,
            is_tied=True,
            drops=("resid_pdrop", "emb_pdrop"),
        ),
        "falcon": Family(
            keys=_FALCON,
            left_out={"vocab_size": 65024, "hidden_size": 4544, "num_hidden_layers": 32, "num_attention_heads": 71,
                      "max_position_embeddings": 2048},
            fixed=_OLD,
            is_tied=True,
            biases="bias",
            drops=("attention_dropout", "hidden_dropout"),
            kv_heads=_kv_heads_of_falcon,
        ),
        "phi": Family(
            left_out=_sizes(vocab_size=51200, hidden_size=2048, intermediate_size=8192, num_hidden_layers=24),
            fixed=_OLD_BIASED,
            drops=("resid_pdrop", "embd_pdrop", "attention_dropout"),
        ),
        "phi3": Family(
            left_out=_sizes(
                vocab_size=32064, hidden_size=3072, intermediate_size=8192, max_position_embeddings=4096
            ),
            window=_slides,
            drops=("resid_pdrop", "embd_pdrop", "attention_dropout"),
        ),
        "gemma": Family(
            left_out=_sizes(
                vocab_size=256_000, hidden_size=3072, intermediate_size=24576, num_hidden_layers=28,
                num_attention_heads=16, num_key_value_heads=16, head_dim=256, max_position_embeddings=8192,
            ),
            is_tied=True,
        ),
        "gemma2": Family(
            left_out={**_GEMMA2, "vocab_size": 256_000, "max_position_embeddings": 8192}, is_tied=True
        ),
        "gemma3_text": Family(
            left_out={**_GEMMA2, "vocab_size": 262_208, "max_position_embeddings": 131_072}, is_tied=True
        ),
        "olmo": Family(left_out=_sizes(vocab_size=50304), biases="attention_bias"),
        "olmo2": Family(left_out=_sizes(vocab_size=50304), biases="attention_bias"),
        "granite": Family(left_out=_sizes(vocab_size=32000), biases="attention_bias"),
        "smollm3": Family(
            left_out=_sizes(
                vocab_size=128_256, hidden_size=2048, num_hidden_layers=36, num_attention_heads=16,
                num_key_value_heads=4, max_position_embeddings=32_768,
            ),
            is_tied=True,
            window=_slides_if_used,
        ),
        "starcoder2": Family(
            left_out=_sizes(
                vocab_size=49152, hidden_size=3072, intermediate_size=12288, num_hidden_layers=30,
                num_attention_heads=24, num_key_value_heads=2, max_position_embeddings=4096, use_bias=True,
            ),
            fixed=_OLD,
            is_tied=True,
            biases="use_bias",
            window=_slides,
            drops=("residual_dropout", "attention_dropout"),
        ),
    }
)  # fmt: skip
"""The family of each `model_type`. Add a line here for a new one."""

WITHOUT_LAYERS = {
    "an encoder with a decoder": "t5 mt5 umt5 bart mbart pegasus marian m2m_100 whisper longt5 led blenderbot",
    "an encoder": "bert roberta distilbert albert electra deberta deberta-v2 xlm-roberta modernbert vit clip dinov2",
    "a state-space model": "mamba mamba2 falcon_mamba rwkv xlstm",
    "a hybrid of attention and states": "jamba bamba zamba zamba2 falcon_h1 nemotron_h granitemoehybrid lfm2 ltm "
    "qwen3_next recurrent_gemma",
    "a model of images and text": "llava gemma3 qwen2_vl qwen2_5_vl qwen3_vl mllama idefics3 paligemma llama4 mistral3",
}
"""Kinds of models that are no decoders of attention and MLPs -> the model types of each."""
