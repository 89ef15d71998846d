"""State-space models of 130 million parameters: their shapes, weights at random as Hugging Face has them, and GGUF."""

import json
from pathlib import Path
from typing import Any

import numpy as np

SHAPES: dict[str, dict[str, Any]] = {
    "mamba-130m": {
        "architectures": ["MambaForCausalLM"],
        "model_type": "mamba",
        "hidden_size": 768,
        "num_hidden_layers": 24,
        "vocab_size": 50280,
        "state_size": 16,
        "tie_word_embeddings": True,
    },
    "mamba2-130m": {
        "architectures": ["Mamba2ForCausalLM"],
        "model_type": "mamba2",
        "hidden_size": 768,
        "num_hidden_layers": 24,
        "vocab_size": 50288,
        "state_size": 128,
        "num_heads": 24,
        "head_dim": 64,
        "n_groups": 1,
        "tie_word_embeddings": True,
    },
}
_TAPS, _EPS = 4, 1e-5
_NAMES = {  # Hugging Face's names in a layer -> llama.cpp's
    "norm.weight": "attn_norm.weight",
    "mixer.in_proj.weight": "ssm_in.weight",
    "mixer.conv1d.weight": "ssm_conv1d.weight",
    "mixer.conv1d.bias": "ssm_conv1d.bias",
    "mixer.x_proj.weight": "ssm_x.weight",
    "mixer.dt_proj.weight": "ssm_dt.weight",
    "mixer.dt_proj.bias": "ssm_dt.bias",
    "mixer.dt_bias": "ssm_dt.bias",
    "mixer.A_log": "ssm_a",
    "mixer.D": "ssm_d",
    "mixer.norm.weight": "ssm_norm.weight",
    "mixer.out_proj.weight": "ssm_out.weight",
}
_TOP = {"embeddings.weight": "token_embd.weight", "norm_f.weight": "output_norm.weight"}


def make_selective(name: str, directory: Path) -> None:
    """Write a model with weights at random unless it is there; its config.json, written last, says that it is whole."""
    if (directory / "config.json").exists():
        return
    import torch
    from safetensors.torch import save_file

    from whet.models.selective import Selective, SelectiveConfig

    torch.manual_seed(0)
    model = Selective(SelectiveConfig.model_validate(SHAPES[name]))
    weights = {f"backbone.{key}": x for key, x in model.state_dict().items() if key != "lm_head.weight"}
    directory.mkdir(parents=True, exist_ok=True)
    save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})
    fixed = {"conv_kernel": _TAPS, "layer_norm_epsilon": _EPS, "expand": 2, "bos_token_id": 0, "eos_token_id": 0}
    (directory / "config.json").write_text(json.dumps(SHAPES[name] | fixed, indent=1) + "\n")


def write_selective_gguf(directory: Path, path: Path) -> None:
    """All weights in float32, no vocabulary. What each tensor is called and holds: llama.cpp's conversion/mamba.py."""
    import gguf
    from safetensors.numpy import load_file

    config = json.loads((directory / "config.json").read_text())
    inner, is_second = 2 * config["hidden_size"], config["model_type"] == "mamba2"
    writer = gguf.GGUFWriter(str(path), config["model_type"])
    writer.add_vocab_size(config["vocab_size"])
    writer.add_context_length(2**20)
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(0)
    writer.add_head_count(0)
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_ssm_conv_kernel(config["conv_kernel"])
    writer.add_ssm_inner_size(inner)
    writer.add_ssm_state_size(config["state_size"])
    writer.add_ssm_time_step_rank(config["num_heads"] if is_second else -(-config["hidden_size"] // 16))
    if is_second:
        writer.add_ssm_group_count(config["n_groups"])
    writer.add_layer_norm_rms_eps(config["layer_norm_epsilon"])
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    writer.add_tokenizer_model("no_vocab")
    for name, array in load_file(directory / "model.safetensors").items():
        writer.add_tensor(*_as_llama_cpp_has_it(name.removeprefix("backbone."), array, config))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _as_llama_cpp_has_it(name: str, array: np.ndarray, config: dict[str, Any]) -> tuple[str, np.ndarray]:
    if name in _TOP:
        return _TOP[name], array
    layer, role = name.removeprefix("layers.").split(".", 1)
    if role == "mixer.A_log":
        array = -np.exp(array)
    if role == "mixer.conv1d.weight":
        array = array[:, 0]
    elif array.ndim == 1 and role in ("mixer.A_log", "mixer.D") and config["model_type"] == "mamba2":
        array = array[:, None]
    elif role == "mixer.norm.weight":
        array = array.reshape(config["n_groups"], -1)
    return f"blk.{layer}.{_NAMES[role]}", np.ascontiguousarray(array)
