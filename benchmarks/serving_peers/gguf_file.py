"""The model as llama.cpp reads it: a GGUF file."""

import json
from pathlib import Path

import gguf
import numpy as np

from serving_peers.selective import write_selective_gguf

_NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
_TOP = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}


def write_gguf(directory: Path, path: Path) -> None:
    """All weights in float32, no vocabulary: prompts are token ids."""
    config = json.loads((directory / "config.json").read_text())
    if config["model_type"] != "llama":
        write_selective_gguf(directory, path)
        return
    from safetensors.torch import load_file

    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_vocab_size(config["vocab_size"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_dimension_count(config["head_dim"])
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    writer.add_tokenizer_model("no_vocab")
    heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
    for name, weight in load_file(directory / "model.safetensors").items():
        new_name = _gguf_name(name)
        array = weight.float().numpy()
        role = new_name.split(".")[-2]
        if role in heads:
            array = _interleaved(array, heads[role])
        writer.add_tensor(new_name, np.ascontiguousarray(array))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _gguf_name(name: str) -> str:
    stem = name.removesuffix(".weight")
    if stem in _TOP:
        return f"{_TOP[stem]}.weight"
    layer, role = stem.removeprefix("model.layers.").split(".", 1)
    return f"blk.{layer}.{_NAMES[role]}.weight"


def _interleaved(weight: np.ndarray, num_heads: int) -> np.ndarray:
    """Rows for llama.cpp's rotary positions: it turns neighbours, Hugging Face's layout turns the two halves."""
    halves = weight.reshape(num_heads, 2, -1, weight.shape[1])
    return halves.swapaxes(1, 2).reshape(weight.shape)
