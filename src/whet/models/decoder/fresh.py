"""Make a decoder of the Llama family with new weights, and say how decoders are trained."""

import math

import torch
from torch import nn

from whet.models.decoder.config import DecoderConfig
from whet.models.decoder.reference import Decoder
from whet.models.trainable import Trainable


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


TRAINABLE = Trainable(
    config=DecoderConfig,
    also_known=frozenset({"rope_theta", "rope_scaling", "use_sliding_window", "max_window_layers"}),
    build=Decoder,
    initialise=initialise,
    file_name=file_name,
    architectures={
        "llama": "LlamaForCausalLM",
        "mistral": "MistralForCausalLM",
        "qwen2": "Qwen2ForCausalLM",
        "qwen3": "Qwen3ForCausalLM",
    },
    packing="mask",
    max_tokens=lambda config: int(config.max_position_embeddings),
    dropped=("Attention", "GatedMLP"),
    size_keys=("hidden_size", "intermediate_size", "num_hidden_layers"),
)
"""Say how decoders are trained."""

fresh_decoder = TRAINABLE.fresh
