"""Write and read what a model remembers of the tokens that it has read, apart from its weights."""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TypeVar

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from whet.errors import TargetError
from whet.files import write_whole

Layer = TypeVar("Layer")

_MOST_LAYERS = 10_000  # as configs have it


def save_layers(
    path: Path | str, form: str, layers: Iterable[Mapping[str, Tensor]], *, model: str = "", **numbers: int
) -> None:
    """Write the tensors of each layer to a safetensors file, which appears whole or not at all.

    Args:
        form: The kind of the state, and the version of its files.
        model: The digest of the model, if it is known.
        numbers: What else belongs to the state.

    Raises:
        OutputError: The file cannot be written.
    """
    tensors, count = {}, 0
    for layer in layers:
        for name, value in layer.items():
            # A copy, since the file takes no two tensors that share memory.
            tensors[f"layers.{count}.{name}"] = value.detach().cpu().clone(memory_format=torch.contiguous_format)
        count += 1
    metadata = {"format": form, "layers": str(count)} | {name: str(number) for name, number in numbers.items()}
    if model:
        metadata["model"] = model
    write_whole(Path(path), save(tensors, metadata))


def load_layers(
    path: Path | str, form: str, make: Callable[[dict[str, Tensor]], Layer], *numbers: str
) -> tuple[list[Layer], list[int], str]:
    """Read what `save_layers` wrote: the layers, the numbers of these names, and the model's digest, if any.

    Args:
        form: The kind of the state, and the version of its files.
        make: Makes a layer's state of its tensors by name. A KeyError or a ValueError says that they are not one.

    Raises:
        TargetError: The file is missing or damaged, or holds something else.
    """
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            if metadata.get("format") != form:
                raise TargetError(f"{path} is not a state that whet saved")
            keys = [key.split(".", 2) for key in file.keys()]  # noqa: SIM118 (it is no mapping)
            count = int(metadata["layers"])
            if count > _MOST_LAYERS or not all(0 <= int(index) < count for _, index, _ in keys):
                raise ValueError(f"it has not the tensors of {count} layers")
            layers: list[dict[str, Tensor]] = [{} for _ in range(count)]
            for key, index, name in keys:
                layers[int(index)][name] = file.get_tensor(f"{key}.{index}.{name}")
            found = [int(metadata[name]) for name in numbers]
            if not all(0 <= number < 2**31 for number in found):
                raise ValueError(f"{', '.join(numbers)}: {found} are out of range")
            return [make(tensors) for tensors in layers], found, metadata.get("model", "")
    except (OSError, SafetensorError, KeyError, ValueError, IndexError) as error:
        raise TargetError(f"{path} cannot be read as a state: {error}") from error
