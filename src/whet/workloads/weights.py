"""Read the built-in workloads' weights: bf16 on disk, fp32 in memory.

bf16 halves the size of the package. Scores are always taken with the weights as shipped, which are rounded.
"""

from pathlib import Path

from safetensors.torch import load_file
from torch import nn

FILE = "model.safetensors"


def load_weights(model: nn.Module, directory: Path) -> None:
    """Load a model's weights from a directory, in place. The names there must be exactly those of the model."""
    model.load_state_dict(load_file(directory / FILE))  # it converts to the model's number format
