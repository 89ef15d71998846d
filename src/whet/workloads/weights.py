"""How the built-in workloads' weights are read and written: bf16 on disk, fp32 in memory.

bf16 halves what the package weighs. Scores are always taken on the weights as shipped, that is after rounding.
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
    """Fill a model from a directory, in place. Every weight must be there, and no other."""
    weights = load_file(directory / FILE)
    model.load_state_dict({name: _cast(tensor, torch.float32) for name, tensor in weights.items()})


def save_weights(weights: Mapping[str, Tensor], directory: Path) -> None:
    """Write weights into a directory, in bf16."""
    rounded = {name: _cast(tensor, torch.bfloat16).contiguous() for name, tensor in weights.items()}
    save_file(rounded, directory / FILE, metadata={"format": "pt"})


def write_directory(directory: Path, write: Callable[[Path], None]) -> None:
    """Let `write` fill a directory beside the wanted one, then put it in its place: no half-written one shows."""
    directory.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix=f".{directory.name}.", dir=directory.parent))
    try:
        write(partial)
        for file in partial.iterdir():
            with file.open("rb") as written:
                os.fsync(written.fileno())
            file.chmod(0o644)  # safetensors and mkdtemp let nobody else read
        partial.chmod(0o755)
        replace_directory(partial, directory)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _cast(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """Counters, such as those of batch normalisation, stay whole numbers."""
    return tensor.to(dtype) if tensor.is_floating_point() else tensor
