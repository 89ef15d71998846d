"""Read the weights of a selective state-space model, by transformers' names or by those of the original code."""

from collections.abc import Iterator
from pathlib import Path

from torch import Tensor

from whet.errors import TargetError
from whet.models.selective.config import SelectiveConfig
from whet.models.tensor_files import Shape, compare_shapes, drop_tied_head, stored_tensors

_PICKLES = (
    "save its tensors as safetensors, safetensors.torch.save_file(torch.load(FILE, weights_only=True), "
    "'model.safetensors'), after making copies of tensors that share memory"
)


def weight_shapes(config: SelectiveConfig) -> dict[str, Shape]:
    """Return the shape of each tensor by name, without transformers' prefix `backbone.`.

    With tied embeddings there is no lm_head.weight: embeddings.weight is used for both.
    """
    D = config.hidden_size
    shapes: dict[str, Shape] = {"embeddings.weight": (config.vocab_size, D), "norm_f.weight": (D,)}
    if not config.tie_word_embeddings:
        shapes["lm_head.weight"] = (config.vocab_size, D)
    in_layer = {"norm.weight": (D,)} | {f"mixer.{name}": shape for name, shape in _shapes_of_a_mixer(config)}
    for layer in range(config.num_hidden_layers):
        shapes |= {f"layers.{layer}.{name}": shape for name, shape in in_layer.items()}
    return shapes


def _shapes_of_a_mixer(config: SelectiveConfig) -> Iterator[tuple[str, Shape]]:
    D, E, N, C = config.hidden_size, config.intermediate_size, config.state_size, config.conv_size
    wide = E + C + config.num_heads if config.has_heads else 2 * E
    for name, shape in (("in_proj", (wide, D)), ("out_proj", (D, E))):
        yield f"{name}.weight", shape
        if config.use_bias:
            yield f"{name}.bias", shape[:1]
    yield "conv1d.weight", (C, 1, config.conv_kernel)
    if config.use_conv_bias:
        yield "conv1d.bias", (C,)
    if config.has_heads:
        yield from ((name, (config.num_heads,)) for name in ("A_log", "D", "dt_bias"))
        yield "norm.weight", (E,)
        return
    yield from (("A_log", (E, N)), ("D", (E,)), ("x_proj.weight", (config.time_step_rank + 2 * N, E)))
    yield from (("dt_proj.weight", (E, config.time_step_rank)), ("dt_proj.bias", (E,)))


def read_weights(directory: Path | str, config: SelectiveConfig) -> dict[str, Tensor]:
    """Return the tensors that `weight_shapes` names, in their stored dtype.

    They are views of memory-mapped files; see whet.models.tensor_files.stored_tensors.

    Raises:
        TargetError: A file is missing or damaged, or a tensor is missing, unexpected, quantised, or of another shape.
    """
    directory = Path(directory)
    weights: dict[str, Tensor] = {}
    for stored_name, tensor in stored_tensors(directory, _PICKLES):
        name = stored_name.removeprefix("backbone.")
        name = "embeddings.weight" if name == "embedding.weight" else name
        if name in weights:
            raise TargetError(f"{directory} holds {name} twice")
        weights[name] = tensor
    if config.tie_word_embeddings:
        drop_tied_head(weights, directory, "embeddings.weight", "tie_word_embeddings (tie_embeddings)")
    compare_shapes(weights, directory, weight_shapes(config))
    return weights
