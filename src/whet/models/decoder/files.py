"""Read a decoder's weights from a Hugging Face directory."""

from collections.abc import Iterator
from pathlib import Path

from torch import Tensor

from whet.errors import TargetError
from whet.models.decoder.config import DecoderConfig
from whet.models.tensor_files import Shape, compare_shapes, drop_tied_head, stored_tensors


def weight_shapes(config: DecoderConfig) -> dict[str, Shape]:
    """Return the shape of each tensor of a decoder, by name.

    With tied embeddings there is no lm_head.weight: embed_tokens.weight is used for both.
    """
    D = config.hidden_size
    shapes: dict[str, Shape] = {"embed_tokens.weight": (config.vocab_size, D), "norm.weight": (D,)}
    if not config.tie_word_embeddings:
        shapes["lm_head.weight"] = (config.vocab_size, D)
    in_layer = dict(_shapes_of_a_layer(config))
    for layer in range(config.num_hidden_layers):
        shapes |= {f"layers.{layer}.{name}": shape for name, shape in in_layer.items()}
    return shapes


def _shapes_of_a_layer(config: DecoderConfig) -> Iterator[tuple[str, Shape]]:
    D, wide, H = config.hidden_size, config.intermediate_size, config.head_dim
    queries, keys = config.num_attention_heads * H, config.num_key_value_heads * H
    linears = {
        "self_attn.q_proj": (queries, D, config.qkv_bias),
        "self_attn.k_proj": (keys, D, config.qkv_bias),
        "self_attn.v_proj": (keys, D, config.qkv_bias),
        "self_attn.o_proj": (D, queries, config.o_bias),
        "mlp.gate_proj": (wide, D, config.mlp_bias),
        "mlp.up_proj": (wide, D, config.mlp_bias),
        "mlp.down_proj": (D, wide, config.mlp_bias),
    }
    for name, (num_out, num_in, has_bias) in linears.items():
        yield f"{name}.weight", (num_out, num_in)
        if has_bias:
            yield f"{name}.bias", (num_out,)
    yield "input_layernorm.weight", (D,)
    yield "post_attention_layernorm.weight", (D,)
    if config.qk_norm:
        yield "self_attn.q_norm.weight", (H,)
        yield "self_attn.k_norm.weight", (H,)


def read_weights(directory: Path | str, config: DecoderConfig) -> dict[str, Tensor]:
    """Return the tensors that `weight_shapes` names, in their stored dtype. Names lack transformers' prefix `model.`.

    They are views of memory-mapped files. A tensor is read from the disk when it is used, and the files must not change
    while the tensors exist.

    Raises:
        TargetError: A file is missing or damaged, or a tensor is missing, unexpected, quantised, or of another shape.
    """
    directory = Path(directory)
    weights: dict[str, Tensor] = {}
    for stored_name, tensor in stored_tensors(directory):
        name = stored_name.removeprefix("model.")
        if name in weights:
            raise TargetError(f"{directory} holds {name} twice")
        weights[name] = tensor
    for name in [name for name in weights if name.endswith(".rotary_emb.inv_freq")]:
        del weights[name]  # old files hold the rotary angles, which are computed
    if config.tie_word_embeddings:
        drop_tied_head(weights, directory, "embed_tokens.weight", "tie_word_embeddings")
    compare_shapes(weights, directory, weight_shapes(config))
    return weights
