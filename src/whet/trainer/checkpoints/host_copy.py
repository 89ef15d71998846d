"""Copy tensors into host memory that is laid out as the files will be, and is used again by the next copy.

A safetensors file is a header in JSON and then the tensors, one after the other. So a file's tensors are copied into
one buffer, and to write the file means to write the header and the buffer: nothing is copied twice.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from whet.errors import OptionError, OutputError, is_out_of_memory
from whet.trainer.checkpoints.encoding import is_plain
from whet.ui.figures import num_bytes

_DTYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint64: "U64",
    torch.uint32: "U32",
    torch.uint16: "U16",
    torch.uint8: "U8",
    torch.bool: "BOOL",
    torch.complex64: "C64",
}
_HEADER_ALIGNMENT = 8  # bytes, of safetensors
_METADATA = "__metadata__"

Place = tuple[str, torch.dtype, torch.Size, str]
"""A tensor's name, dtype and shape, and the name of the tensor whose memory it is."""


@dataclass
class StagedFile:
    """Hold the content of one safetensors file.

    Attributes:
        part: The first word of the names of its tensors.
        data: The tensors, one after the other; uint8 in host memory.
        views: The place of each tensor in `data`, by its whole name.
    """

    name: str
    part: str
    header: bytes
    data: Tensor
    views: dict[str, Tensor] = field(default_factory=dict)

    @property
    def memory(self) -> memoryview:
        array: np.ndarray = self.data.numpy()
        return memoryview(array)  # type: ignore[arg-type]


class HostCopy:
    """Hold the copy of a training's tensors.

    Args:
        shard_bytes: The tensors of a part are divided into files of about this size at most.
        of_rank: What the names of this process's files end with, where several processes write.

    Attributes:
        files: The files' contents, as of the last copy.
        aliases: Names of tensors that share their memory with another one, and that one's name.
    """

    def __init__(self, shard_bytes: int, of_rank: str = "") -> None:
        self._shard_bytes, self._of_rank = shard_bytes, of_rank
        self._places: list[Place] = []
        self._is_pinned = False
        self.files: list[StagedFile] = []
        self.aliases: dict[str, str] = {}

    @property
    def num_bytes(self) -> int:
        return sum(len(file.header) + file.data.nbytes for file in self.files)

    def reserve(self, tensors: Mapping[str, Tensor]) -> None:
        """Get the memory for a copy of tensors, so that the first copy is as fast as the others.

        Raises:
            OptionError: A tensor cannot be saved.
            OutputError: There is not enough memory.
        """
        places = _places(tensors)
        is_pinned = any(tensor.is_cuda for tensor in tensors.values())
        if places == self._places and is_pinned == self._is_pinned:
            return
        self.files, self.aliases, self._places = [], {}, []  # the old memory goes first
        try:
            self.files = _laid_out(places, self._shard_bytes, self._of_rank, is_pinned=is_pinned)
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
            size = num_bytes(sum(tensor.nbytes for tensor in tensors.values()))
            raise OutputError(
                f"there is no memory for the copy of {size} that a checkpoint is written from; make the model or the "
                "batch smaller, or use a machine with more memory"
            ) from error
        self.aliases = {name: owner for name, _, _, owner in places if owner != name}
        self._places, self._is_pinned = places, is_pinned

    @torch.no_grad()
    def take(self, tensors: Mapping[str, Tensor]) -> None:
        """Copy tensors, and return when all are copied.

        Raises:
            OptionError: A tensor cannot be saved.
            OutputError: There is not enough memory.
        """
        self.reserve(tensors)
        for file in self.files:
            for name, view in file.views.items():
                view.copy_(tensors[name], non_blocking=tensors[name].is_cuda)
        for device in {tensor.device for tensor in tensors.values() if tensor.is_cuda}:
            torch.cuda.current_stream(device).synchronize()


def _places(tensors: Mapping[str, Tensor]) -> list[Place]:
    """Return what the layout depends on, for each tensor.

    Raises:
        OptionError: A tensor cannot be saved.
    """
    places: list[Place] = []
    owners: dict[tuple[object, ...], str] = {}
    for name, tensor in tensors.items():
        part, dot, rest = name.partition(".")
        if not (dot and rest and part.isidentifier() and part.isascii()) or rest == _METADATA:
            raise OptionError(
                f"a tensor of a checkpoint is named {name!r}; begin with the word of its part, as in 'model.weight'"
            )
        if not is_plain(tensor) or tensor.layout is not torch.strided or tensor.dtype not in _DTYPES or tensor.is_meta:
            raise OptionError(
                f"{name} is {_kind(tensor)}, which a checkpoint does not hold; convert it to a dense tensor of a "
                "common dtype"
            )
        owner = name
        if tensor.numel():
            key = (part, tensor.device, tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride())
            owner = owners.setdefault(key, name)
        places.append((name, tensor.dtype, tensor.shape, owner))
    return places


def _kind(tensor: Tensor) -> str:
    if not is_plain(tensor):
        return f"a tensor of the class {type(tensor).__name__}"
    if tensor.is_meta:
        return "a tensor on the device meta"
    return f"a tensor of {tensor.dtype}, {tensor.layout}"


def _laid_out(places: list[Place], shard_bytes: int, of_rank: str, *, is_pinned: bool) -> list[StagedFile]:
    """Return files with room for tensors: one for each part, or several where it is large."""
    files = []
    for part in dict.fromkeys(name.partition(".")[0] for name, *_ in places):
        mine = [
            (name, dtype, shape)
            for name, dtype, shape, owner in places
            if name.startswith(f"{part}.") and owner == name
        ]
        shards = _shards(mine, shard_bytes)
        for number, shard in enumerate(shards, 1):
            of_many = f"-{number:05d}-of-{len(shards):05d}" if len(shards) > 1 else ""
            files.append(_file(f"{part}{of_rank}{of_many}.safetensors", part, shard, is_pinned=is_pinned))
    return files


Spec = tuple[str, torch.dtype, torch.Size]


def _size(spec: Spec) -> int:
    return spec[1].itemsize * spec[2].numel()


def _shards(specs: list[Spec], shard_bytes: int) -> list[list[Spec]]:
    shards: list[list[Spec]] = [[]]
    filled = 0
    for spec in specs:
        if shards[-1] and filled + _size(spec) > shard_bytes:
            shards.append([])
            filled = 0
        shards[-1].append(spec)
        filled += _size(spec)
    return shards


def _file(name: str, part: str, specs: list[Spec], *, is_pinned: bool) -> StagedFile:
    """Return a file with its header and the memory for its tensors. Each page of the memory is touched."""
    specs = sorted(specs, key=lambda spec: (-spec[1].itemsize, spec[0]))  # so that each lies at a multiple of its size
    data = torch.empty(sum(map(_size, specs)), dtype=torch.uint8, pin_memory=is_pinned).fill_(0)
    header: dict[str, object] = {_METADATA: {"format": "pt"}}
    views = {}
    offset = 0
    for whole, dtype, shape in specs:
        end = offset + _size((whole, dtype, shape))
        header[whole.removeprefix(f"{part}.")] = {
            "dtype": _DTYPES[dtype],
            "shape": list(shape),
            "data_offsets": [offset, end],
        }
        views[whole] = data[offset:end].view(dtype).view(shape)
        offset = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _HEADER_ALIGNMENT)
    return StagedFile(name, part, len(text).to_bytes(8, "little") + text, data, views)
