"""Make a decoder of the Llama family with new weights, and write one as a Hugging Face directory."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from whet.models.config_file import FILE
from whet.models.decoder.config import DecoderConfig
from whet.models.decoder.reference import Decoder
from whet.models.tensor_files import WEIGHTS

_ARCHITECTURES = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}


def fresh_decoder(config: DecoderConfig, generator: torch.Generator) -> Decoder:
    """Return a decoder whose weights are drawn from a generator."""
    model = Decoder(config)
    initialise(model, generator)
    return model


def initialise(model: Decoder, generator: torch.Generator) -> None:
    """Draw normal weights with a standard deviation of 0.02, as GPT-2; less for layers that add to the stream.

    Biases are zero and norms are one. Source: Radford et al., 2019, section 2.3.
    """
    for name, weight in model.named_parameters():
        if weight.dim() == 2:
            into_stream = name.endswith(("o_proj.weight", "down_proj.weight"))
            std = 0.02 / math.sqrt(2 * len(model.layers)) if into_stream else 0.02
            nn.init.normal_(weight, std=std, generator=generator)
        elif name.endswith(".bias"):
            nn.init.zeros_(weight)


def file_name(name: str) -> str:
    """Return the name that transformers gives a weight of a decoder, as it stands in files."""
    return name if name.startswith("lm_head.") else f"model.{name}"


def write_decoder(
    model: Decoder, directory: Path, given: Mapping[str, Any], weights: Mapping[str, Tensor], tokens: Mapping[str, int]
) -> None:
    """Write a decoder as transformers does: config.json, generation_config.json, model.safetensors.

    Args:
        model: The decoder.
        directory: An empty directory.
        given: The keys of the config.json that the decoder was made from; they are kept.
        weights: The decoder's weights, by the names of its state_dict.
        tokens: The ids of special tokens, as {"eos_token_id": 0}.
    """
    config = {**json.loads(model.config.model_dump_json(exclude_none=True)), **given, **tokens}
    config["architectures"] = [_ARCHITECTURES[model.config.model_type]]
    config["dtype"] = "float32"
    kept = {
        file_name(name): value.detach().float().contiguous()
        for name, value in weights.items()
        if name != "lm_head.weight" or not model.config.tie_word_embeddings
    }
    save_file(kept, directory / WEIGHTS, metadata={"format": "pt"})
    for file, content in ((FILE, config), ("generation_config.json", {"do_sample": False, **tokens})):
        (directory / file).write_text(json.dumps(content, indent=2, sort_keys=True) + "\n", encoding="utf-8")
