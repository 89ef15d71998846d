"""Make a decoder of the Llama family with new weights, and say how decoders are trained."""

import math

import torch
from torch import nn

from whet.models.decoder.config import DecoderConfig
from whet.models.decoder.reference import Decoder
from whet.models.trainable import Trainable


def draw(config: DecoderConfig, name: str, weight: torch.Tensor, generator: torch.Generator) -> None:
    """Draw a normal weight with a standard deviation of 0.02, as GPT-2; less for layers that add to the stream.

    Biases are zero and norms are one. Source: Radford et al., 2019, section 2.3.
    """
    if weight.dim() == 2:
        into_stream = name.endswith(("o_proj.weight", "down_proj.weight"))
        std = 0.02 / math.sqrt(2 * config.num_hidden_layers) if into_stream else 0.02
        nn.init.normal_(weight, std=std, generator=generator)
    elif name.endswith(".bias"):
        nn.init.zeros_(weight)
    else:
        nn.init.ones_(weight)


def initialise(model: Decoder, generator: torch.Generator) -> None:
    """Draw all weights of a decoder, in the order of its parameters."""
    for name, weight in model.named_parameters():
        draw(model.config, name, weight, generator)


def file_name(name: str) -> str:
    """Return the name that transformers gives a weight of a decoder, as it stands in files."""
    return name if name.startswith("lm_head.") else f"model.{name}"


TRAINABLE = Trainable(
    config=DecoderConfig,
    also_known=frozenset({"rope_theta", "rope_scaling", "use_sliding_window", "max_window_layers"}),
    build=Decoder,
    initialise=initialise,
    draw=draw,
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
