"""Write weights as the package ships them: in bf16, each directory whole or not at all."""

import os
import shutil
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

from safetensors.torch import save_file
from torch import Tensor

from whet.files import replace_directory
from whet.workloads.weights import FILE


def save_weights(weights: Mapping[str, Tensor], directory: Path) -> None:
    """Write weights into a directory, in bf16."""
    rounded = {name: _rounded(tensor).contiguous() for name, tensor in weights.items()}
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


def _rounded(tensor: Tensor) -> Tensor:
    """Round floating-point numbers. Integers, such as the counters of batch norms, stay as they are."""
    return tensor.bfloat16() if tensor.is_floating_point() else tensor
