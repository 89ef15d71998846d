"""Read and write the built-in workloads' weights: bf16 on disk, fp32 in memory.

bf16 halves the size of the package. Scores are always taken with the weights as shipped, which are rounded.
"""

import os
import shutil
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from whet.files import replace_directory

FILE = "model.safetensors"


def load_weights(model: nn.Module, directory: Path) -> None:
    """Load a model's weights from a directory, in place. The names there must be exactly those of the model."""
    weights = load_file(directory / FILE)
    model.load_state_dict({name: _cast(tensor, torch.float32) for name, tensor in weights.items()})


def save_weights(weights: Mapping[str, Tensor], directory: Path) -> None:
    """Write weights into a directory, in bf16."""
    rounded = {name: _cast(tensor, torch.bfloat16).contiguous() for name, tensor in weights.items()}
    save_file(rounded, directory / FILE, metadata={"format": "pt"})


def write_directory(directory: Path, write: Callable[[Path], None]) -> None:
    """Let `write` fill a temporary directory, then move it to its place, so that nobody sees a half-written one."""
    directory.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix=f".{directory.name}.", dir=directory.parent))
    try:
        write(partial)
        for file in partial.iterdir():
            with file.open("rb") as written:
                os.fsync(written.fileno())
            file.chmod(0o644)  # files of safetensors and mkdtemp are readable by their owner only
        partial.chmod(0o755)
        replace_directory(partial, directory)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _cast(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """Convert a floating-point tensor. Integers, such as the counters of batch norms, stay as they are."""
    return tensor.to(dtype) if tensor.is_floating_point() else tensor
