"""Where the built-in workloads' weights lie, and how they are read and written: bf16 on disk, fp32 in memory.

bf16 halves what the package weighs. Scores are always taken on the weights as shipped, that is after rounding.
"""

import os
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

WEIGHTS = Path(__file__).parent / "weights"


def load_weights(model: nn.Module, file: Path) -> None:
    """Fill a model from a safetensors file, in place. Every weight must be there, and no other."""
    model.load_state_dict({name: _to(torch.float32, tensor) for name, tensor in load_file(file).items()})


def save_weights(weights: Mapping[str, Tensor], file: Path) -> None:
    """Write weights in bf16, whole or not at all."""
    rounded = {name: _to(torch.bfloat16, tensor).contiguous() for name, tensor in weights.items()}
    write_whole(file, lambda temporary: save_file(rounded, temporary, metadata={"format": "pt"}))


def write_whole(file: Path, write: Callable[[Path], None]) -> None:
    """Let `write` fill a file beside the wanted one, then put it in its place: readers see the old or the new one."""
    file.parent.mkdir(parents=True, exist_ok=True)
    temporary = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        write(temporary)
        with temporary.open("rb") as written:
            os.fsync(written.fileno())
        temporary.replace(file)
    finally:
        temporary.unlink(missing_ok=True)


def _to(dtype: torch.dtype, tensor: Tensor) -> Tensor:
    """Counters, such as those of batch normalisation, stay whole numbers."""
    return tensor.to(dtype) if tensor.is_floating_point() else tensor
