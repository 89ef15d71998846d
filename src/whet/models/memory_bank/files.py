"""Read the weights of a long-term-memory decoder. Modules and files have the same names."""

from collections.abc import Iterator
from pathlib import Path

from torch import Tensor

from whet.errors import TargetError
from whet.models.decoder.files import weight_shapes as decoder_shapes
from whet.models.memory_bank.config import LtmConfig
from whet.models.tensor_files import Shape, compare_shapes, drop_tied_head, stored_tensors


def weight_shapes(config: LtmConfig) -> dict[str, Shape]:
    """Return the shape of each tensor of a model, by name.

    With tied embeddings there is no lm_head.weight: embed_tokens.weight is used for both.
    """
    without_mlp = (".mlp.", ".post_attention_layernorm.")
    shapes = {
        name: shape
        for name, shape in decoder_shapes(config.decoder).items()
        if config.intermediate_size or not any(part in name for part in without_mlp)
    }
    in_layer = dict(_shapes_of_memories(config))
    for layer in filter(config.has_memory, range(config.num_hidden_layers)):
        shapes |= {f"layers.{layer}.{name}": shape for name, shape in in_layer.items()}
    return shapes


def _shapes_of_memories(config: LtmConfig) -> Iterator[tuple[str, Shape]]:
    D, C, S, learns = config.hidden_size, config.memory_width, config.max_memory_slots, config.test_time_memory
    if S or learns != "none":
        yield "memory_layernorm.weight", (D,)
    if S:
        yield from ((f"bank.{name}.weight", (C, D)) for name in ("q_proj", "pool_proj", "value_proj", "channel_gate"))
        yield from ((f"bank.{name}.weight", (C,)) for name in ("q_norm", "k_norm"))
        yield from (("bank.o_proj.weight", (D, C)), ("bank.write_gate.weight", (1, D)))
        yield from (("bank.read_gate.weight", (1, D)), ("bank.read_gate.bias", (1,)), ("bank.slot_queries", (S, C)))
        yield from ((f"bank.slot_{name}", (S,)) for name in ("centres", "sharpness", "gates"))
    if learns != "none":
        heads = config.test_time_heads
        width, depth = C // heads, 2 if learns == "mlp" else 1
        yield from ((f"test_time.{name}.weight", (C, D)) for name in ("q_proj", "k_proj", "v_proj"))
        yield from (("test_time.o_proj.weight", (D, C)), ("test_time.rates.weight", (3 * heads, D)))
        yield from (("test_time.rates.bias", (3 * heads,)), ("test_time.weights", (heads, depth, width, width)))
        yield from (("test_time.read_gate.weight", (1, D)), ("test_time.read_gate.bias", (1,)))
        if depth == 2:
            yield "test_time.norm", (width,)


def read_weights(directory: Path | str, config: LtmConfig) -> dict[str, Tensor]:
    """Return the tensors that `weight_shapes` names, in their stored dtype.

    They are views of memory-mapped files; see whet.models.tensor_files.stored_tensors.

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
    if config.tie_word_embeddings:
        drop_tied_head(weights, directory, "embed_tokens.weight", "tie_word_embeddings")
    compare_shapes(weights, directory, weight_shapes(config))
    return weights
