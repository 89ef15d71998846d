"""Read the weights of a selective state-space model, by transformers' names or by those of the original code."""

from pathlib import Path

import torch
from torch import Tensor

from whet.models import tensor_files
from whet.models.selective.config import SelectiveConfig, read_config
from whet.models.selective.reference import Selective, is_kept_wide
from whet.models.tensor_files import Shape

_EMBEDDING = "embeddings.weight"
_PICKLES = (
    "save its tensors as safetensors, safetensors.torch.save_file(torch.load(FILE, weights_only=True), "
    "'model.safetensors'), after making copies of tensors that share memory"
)


def weight_shapes(config: SelectiveConfig) -> dict[str, Shape]:
    """Return the shape of each tensor by name, without transformers' prefix `backbone.`.

    With tied embeddings there is no lm_head.weight: embeddings.weight is used for both.
    """
    return tensor_files.shapes_of(lambda: Selective(config), tied=config.tie_word_embeddings)


def read_weights(directory: Path | str, config: SelectiveConfig) -> dict[str, Tensor]:
    """Return the tensors that `weight_shapes` names, in their stored dtype.

    They are views of memory-mapped files; see whet.models.tensor_files.stored_tensors.

    Raises:
        TargetError: A file is missing or damaged, or a tensor is missing, unexpected, quantised, or of another shape.
    """

    def name_of(stored: str) -> str:
        name = stored.removeprefix("backbone.")
        return _EMBEDDING if name == "embedding.weight" else name

    return tensor_files.read_weights(
        directory,
        weight_shapes(config),
        name_of,
        tied=config.tie_word_embeddings,
        embedding=_EMBEDDING,
        says="tie_word_embeddings (tie_embeddings)",
        pickles=_PICKLES,
    )


def load_selective(directory: Path | str, dtype: torch.dtype = torch.float32) -> Selective:
    """Load the model in a directory (config.json and safetensors), in eval mode.

    Its weights are copies: they do not depend on the files. Rates, step biases, convolutions and norms stay in float32.

    Args:
        directory: A directory of transformers, or of the original code with its weights as safetensors.
        dtype: The type of the matrices.

    Raises:
        TargetError: A file is missing or damaged, the weights do not fit, or the model is of another family.
    """
    config = read_config(directory)
    weights, tied = read_weights(directory, config), config.tie_word_embeddings
    return tensor_files.filled(
        lambda: Selective(config), weights, dtype, is_wide=is_kept_wide, tied=tied, embedding=_EMBEDDING
    )
