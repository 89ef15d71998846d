"""Read the weights of a long-term-memory decoder. Modules and files have the same names."""

from pathlib import Path

import torch
from torch import Tensor

from whet.models import tensor_files
from whet.models.memory_bank.config import LtmConfig, read_config
from whet.models.memory_bank.reference import Ltm
from whet.models.tensor_files import Shape

_KEPT_WIDE = ("bank.slot_", "test_time.weights", "test_time.norm")  # the states' own type


def weight_shapes(config: LtmConfig) -> dict[str, Shape]:
    """Return the shape of each tensor of a model, by name.

    With tied embeddings there is no lm_head.weight: embed_tokens.weight is used for both.
    """
    return tensor_files.shapes_of(lambda: Ltm(config), tied=config.tie_word_embeddings)


def read_weights(directory: Path | str, config: LtmConfig) -> dict[str, Tensor]:
    """Return the tensors that `weight_shapes` names, in their stored dtype.

    They are views of memory-mapped files; see whet.models.tensor_files.stored_tensors.

    Raises:
        TargetError: A file is missing or damaged, or a tensor is missing, unexpected, quantised, or of another shape.
    """
    return tensor_files.read_weights(
        directory, weight_shapes(config), lambda stored: stored.removeprefix("model."), tied=config.tie_word_embeddings
    )


def load_ltm(directory: Path | str, dtype: torch.dtype = torch.float32) -> Ltm:
    """Load the model in a directory (config.json and safetensors), in eval mode.

    Its weights are copies: they do not depend on the files. `dtype` is the type of the matrices: what the
    memories start from stays in float32.

    Raises:
        TargetError: A file is missing or damaged, the weights do not fit, or the model is of another family.
    """

    def is_wide(name: str) -> bool:
        return any(part in name for part in _KEPT_WIDE)

    config = read_config(directory)
    weights, tied = read_weights(directory, config), config.tie_word_embeddings
    return tensor_files.filled(lambda: Ltm(config), weights, dtype, is_wide=is_wide, tied=tied)
