"""A Llama-family decoder (Touvron et al., 2023, arXiv:2302.13971), read from and written to Hugging Face directories.

RMSNorm, rotary positions (Su et al., 2021, arXiv:2104.09864), grouped-query attention (Ainslie et al., 2023,
arXiv:2305.13245) and a SwiGLU MLP. Modules carry the names that transformers gives them, so that its weights load
without a table of names.

Shape suffixes: B batch, T tokens, D model width, N query heads, K key-value heads, H head width, V vocabulary.
"""

import math
from pathlib import Path
from typing import Annotated, Literal

import torch
import torch.nn.functional as F
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from whet.errors import TargetError

Size = Annotated[int, Field(gt=0)]


class Rope(BaseModel):
    """How positions turn into angles; type llama3 stretches the slow ones (Llama 3.1's longer context)."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    rope_type: Literal["default", "llama3"] = "default"
    rope_theta: float = 10_000.0
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position_embeddings: Size = 8192


class DecoderConfig(BaseModel):
    """The part of a Llama config.json that decides what is computed; other keys are ignored."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    model_type: Literal["llama"] = "llama"
    hidden_act: Literal["silu"] = "silu"
    vocab_size: Size
    hidden_size: Size
    intermediate_size: Size
    num_hidden_layers: Size
    num_attention_heads: Size
    num_key_value_heads: Size
    head_dim: Size
    max_position_embeddings: Size = 2048
    rms_norm_eps: float = 1e-6
    tie_word_embeddings: bool = False
    attention_bias: bool = False
    mlp_bias: bool = False
    rope_parameters: Rope = Rope()

    @model_validator(mode="before")
    @classmethod
    def _fill_in(cls, config: object) -> object:
        """Older files leave sizes out, and write the rotary parameters as rope_theta and rope_scaling."""
        if not isinstance(config, dict):
            return config
        config = {key: value for key, value in config.items() if value is not None}
        heads = config.get("num_attention_heads")
        config.setdefault("num_key_value_heads", heads)
        if isinstance(heads, int) and heads > 0 and isinstance(config.get("hidden_size"), int):
            config.setdefault("head_dim", config["hidden_size"] // heads)
        if "rope_parameters" not in config:
            rope = dict(config.get("rope_scaling") or {})
            rope.setdefault("rope_theta", config.get("rope_theta", 10_000.0))
            config["rope_parameters"] = rope
        return config

    @model_validator(mode="after")
    def _check_heads(self) -> "DecoderConfig":
        if self.num_attention_heads % self.num_key_value_heads:
            raise ValueError("num_attention_heads is not a multiple of num_key_value_heads")
        return self


class Attention(nn.Module):
    """Causal self-attention in which groups of query heads share a key-value head: [B, T, D] -> [B, T, D]."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.num_heads = config.num_attention_heads
        self.num_kv_heads = config.num_key_value_heads
        self.head_dim = config.head_dim
        D, bias = config.hidden_size, config.attention_bias
        self.q_proj = nn.Linear(D, self.num_heads * self.head_dim, bias=bias)
        self.k_proj = nn.Linear(D, self.num_kv_heads * self.head_dim, bias=bias)
        self.v_proj = nn.Linear(D, self.num_kv_heads * self.head_dim, bias=bias)
        self.o_proj = nn.Linear(self.num_heads * self.head_dim, D, bias=bias)

    def forward(self, x_BTD: Tensor, cos_TH: Tensor, sin_TH: Tensor) -> Tensor:
        B, T, _ = x_BTD.shape
        q_BNTH = self.q_proj(x_BTD).view(B, T, self.num_heads, self.head_dim).transpose(1, 2)
        k_BKTH = self.k_proj(x_BTD).view(B, T, self.num_kv_heads, self.head_dim).transpose(1, 2)
        v_BKTH = self.v_proj(x_BTD).view(B, T, self.num_kv_heads, self.head_dim).transpose(1, 2)
        q_BNTH = rotate(q_BNTH, cos_TH, sin_TH)
        k_BKTH = rotate(k_BKTH, cos_TH, sin_TH)
        group = self.num_heads // self.num_kv_heads
        k_BNTH = k_BKTH.repeat_interleave(group, dim=1)
        v_BNTH = v_BKTH.repeat_interleave(group, dim=1)
        mixed_BNTH = F.scaled_dot_product_attention(q_BNTH, k_BNTH, v_BNTH, is_causal=True)
        mixed_BTD = mixed_BNTH.transpose(1, 2).reshape(B, T, self.num_heads * self.head_dim)
        output_BTD: Tensor = self.o_proj(mixed_BTD)
        return output_BTD


class GatedMLP(nn.Module):
    """SwiGLU (Shazeer, 2020, arXiv:2002.05202): [B, T, D] -> [B, T, D]."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        D, wide, bias = config.hidden_size, config.intermediate_size, config.mlp_bias
        self.gate_proj = nn.Linear(D, wide, bias=bias)
        self.up_proj = nn.Linear(D, wide, bias=bias)
        self.down_proj = nn.Linear(wide, D, bias=bias)

    def forward(self, x_BTD: Tensor) -> Tensor:
        output_BTD: Tensor = self.down_proj(F.silu(self.gate_proj(x_BTD)) * self.up_proj(x_BTD))
        return output_BTD


class DecoderLayer(nn.Module):
    """Attention, then the MLP; each takes the normalised stream and adds to it: [B, T, D] -> [B, T, D]."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.input_layernorm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.self_attn = Attention(config)
        self.post_attention_layernorm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.mlp = GatedMLP(config)

    def forward(self, x_BTD: Tensor, cos_TH: Tensor, sin_TH: Tensor) -> Tensor:
        x_BTD = x_BTD + self.self_attn(self.input_layernorm(x_BTD), cos_TH, sin_TH)
        mlp_BTD: Tensor = self.mlp(self.post_attention_layernorm(x_BTD))
        return x_BTD + mlp_BTD


class Decoder(nn.Module):
    """Token ids, int64 [B, T] without padding -> logits of the token after each [B, T, V]."""

    inv_freq: Tensor

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.config = config
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(DecoderLayer(config) for _ in range(config.num_hidden_layers))
        self.norm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        if config.tie_word_embeddings:
            self.lm_head.weight = self.embed_tokens.weight
        self.register_buffer("inv_freq", inverse_frequencies(config), persistent=False)

    def forward(self, input_ids_BT: Tensor) -> Tensor:
        positions_T = torch.arange(input_ids_BT.shape[1], device=input_ids_BT.device)
        angles_TH = torch.outer(positions_T.float(), self.inv_freq).repeat(1, 2)
        x_BTD = self.embed_tokens(input_ids_BT)
        cos_TH, sin_TH = angles_TH.cos().to(x_BTD.dtype), angles_TH.sin().to(x_BTD.dtype)
        for layer in self.layers:
            x_BTD = layer(x_BTD, cos_TH, sin_TH)
        logits_BTV: Tensor = self.lm_head(self.norm(x_BTD))
        return logits_BTV


def rotate(x_BNTH: Tensor, cos_TH: Tensor, sin_TH: Tensor) -> Tensor:
    """Turn each pair (i, i + H/2) of a head by its position's angle: [B, N, T, H] -> [B, N, T, H]."""
    first, second = x_BNTH.chunk(2, dim=-1)
    return x_BNTH * cos_TH + torch.cat((-second, first), dim=-1) * sin_TH


def inverse_frequencies(config: DecoderConfig) -> Tensor:
    """Radians per position of each rotary pair, [H/2]."""
    rope = config.rope_parameters
    inv_freq = 1.0 / rope.rope_theta ** (torch.arange(0, config.head_dim, 2).float() / config.head_dim)
    if rope.rope_type == "default":
        return inv_freq
    # Llama 3.1: pairs that turn often within the original context stay, those that don't get slower by `factor`,
    # and between the two the change is blended.
    turns = rope.original_max_position_embeddings * inv_freq / (2 * math.pi)
    keep = (turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)
    keep = keep.clamp(0, 1)
    return keep * inv_freq + (1 - keep) * inv_freq / rope.factor


def load_decoder(directory: Path | str) -> Decoder:
    """The decoder in a Hugging Face directory (config.json and *.safetensors), in fp32 and eval mode.

    Raises TargetError where a file is missing or damaged, or the model is not of the Llama family.
    """
    directory = Path(directory)
    try:
        config = DecoderConfig.model_validate_json((directory / "config.json").read_bytes())
    except OSError as error:
        raise TargetError(f"{directory} has no readable config.json: {error.strerror}") from error
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "config"
        raise TargetError(f"{directory}/config.json is no Llama config: {where}: {first['msg']}") from error
    files = sorted(directory.glob("*.safetensors"))
    if not files:
        raise TargetError(f"{directory} has no *.safetensors file")
    weights: dict[str, Tensor] = {}
    for file in files:
        try:
            weights |= load_file(file)
        except (OSError, SafetensorError) as error:
            raise TargetError(f"{file} cannot be read: {error}") from error
    model = Decoder(config)
    weights = {name.removeprefix("model."): tensor.float() for name, tensor in weights.items()}
    weights = {name: tensor for name, tensor in weights.items() if not name.endswith("rotary_emb.inv_freq")}
    if config.tie_word_embeddings and "embed_tokens.weight" in weights:
        weights["lm_head.weight"] = weights["embed_tokens.weight"]
    try:
        model.load_state_dict(weights)
    except RuntimeError as error:
        raise TargetError(f"the weights in {directory} do not fit its config.json: {error}") from error
    return model.eval()
