"""Write and read what a model remembers of the tokens that it has read, apart from its weights."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Protocol, Self

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from whet.errors import TargetError
from whet.files import write_whole

_MOST_LAYERS = 10_000  # as configs have it


class LayerTensors(Protocol):
    def tensors(self) -> dict[str, Tensor]:
        """Return all tensors by name."""


class SavedState:
    """Give the state of a model, a dataclass, its size and its files.

    Attributes:
        FORMAT: The kind of the state, and the version of its files.
        NUMBERS: The whole numbers that belong to it beside the layers, by their names.
        WORDS: The texts, likewise; they may be empty.
    """

    FORMAT: ClassVar[str]
    NUMBERS: ClassVar[tuple[str, ...]] = ("num_tokens",)
    WORDS: ClassVar[tuple[str, ...]] = ()

    layers: list[Any]

    @classmethod
    def layer_of(cls, tensors: dict[str, Tensor]) -> LayerTensors:
        """Return a layer's state from its tensors by name.

        Raises:
            KeyError: A tensor is missing, or unknown.
        """
        raise NotImplementedError

    @property
    def num_bytes(self) -> int:
        """Return the bytes of all tensors. Those of keys, values and slots vary with what was read."""
        return sum(tensor.nbytes for layer in self.layers for tensor in layer.tensors().values())

    def changed(self, change: Callable[[Tensor], Tensor]) -> Self:
        """Return a state whose tensors are made from these."""
        layers = [self.layer_of({name: change(x) for name, x in layer.tensors().items()}) for layer in self.layers]
        return replace(self, layers=layers)  # type: ignore[type-var]

    def clone(self) -> Self:
        """Return a copy that shares no memory, to go on from here twice."""
        return self.changed(lambda tensor: tensor.clone(memory_format=torch.contiguous_format))

    def save(self, path: Path | str) -> None:
        """Write the state to a safetensors file, which appears whole or not at all.

        Raises:
            OutputError: The file cannot be written.
        """
        # Copies, since the file takes no two tensors that share memory.
        tensors = {
            f"layers.{index}.{name}": value.detach().cpu().clone(memory_format=torch.contiguous_format)
            for index, layer in enumerate(self.layers)
            for name, value in layer.tensors().items()
        }
        metadata = {"format": self.FORMAT, "layers": str(len(self.layers))}
        metadata |= {name: str(getattr(self, name)) for name in self.NUMBERS}
        metadata |= {name: getattr(self, name) for name in self.WORDS if getattr(self, name)}
        write_whole(Path(path), save(tensors, metadata))

    @classmethod
    def load(cls, path: Path | str) -> Self:
        """Read a state that `save` wrote. The model checks that it fits when it reads tokens.

        Raises:
            TargetError: The file is missing or damaged, or holds something else.
        """
        try:
            with safe_open(path, framework="pt") as file:
                metadata = file.metadata() or {}
                if metadata.get("format") != cls.FORMAT:
                    raise TargetError(f"{path} is not a state that whet saved")
                keys = [key.split(".", 2) for key in file.keys()]  # noqa: SIM118 (it is no mapping)
                count = int(metadata["layers"])
                if count > _MOST_LAYERS or not all(0 <= int(index) < count for _, index, _ in keys):
                    raise ValueError(f"it has not the tensors of {count} layers")
                layers: list[dict[str, Tensor]] = [{} for _ in range(count)]
                for key, index, name in keys:
                    layers[int(index)][name] = file.get_tensor(f"{key}.{index}.{name}")
                rest: dict[str, Any] = {name: int(metadata[name]) for name in cls.NUMBERS}
                if not all(0 <= number < 2**31 for number in rest.values()):
                    raise ValueError(f"{', '.join(rest)}: {list(rest.values())} are out of range")
                rest |= {name: metadata.get(name, "") for name in cls.WORDS}
                return cls(list(map(cls.layer_of, layers)), **rest)  # type: ignore[call-arg]  # of the dataclass
        except (OSError, SafetensorError, KeyError, ValueError, IndexError) as error:
            raise TargetError(f"{path} cannot be read as a state: {error}") from error
