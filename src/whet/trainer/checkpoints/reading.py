"""Read a checkpoint: its files are compared with their checksums, and its tensors stay in the files until used."""

import hashlib
import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from whet.errors import reason
from whet.parallel.pieces import Piece
from whet.trainer.checkpoints.manifest import VALUES, Damage, Manifest, check_sizes, read_manifest, unreadable
from whet.trainer.checkpoints.state import TrainingState


def verify(path: Path) -> Manifest:
    """Compare a checkpoint's files with their sizes and checksums, and return the manifest.

    Raises:
        Damage: A file is missing, damaged or unreadable.
        CheckpointError: It is of a newer format.
    """
    manifest = read_manifest(path)
    check_sizes(path, manifest)
    for saved in manifest.files:
        file = path / saved.name
        try:
            with file.open("rb") as content:
                digest = hashlib.file_digest(content, "sha256").hexdigest()
        except OSError as error:
            raise Damage(unreadable(file, error)) from error
        if digest != saved.sha256:
            raise Damage(f"{saved.name} is damaged: its checksum differs")
    return manifest


def read_state(path: Path, manifest: Manifest) -> TrainingState:
    """Return what a checkpoint holds. The tensors are memory-mapped, and no file is unpickled.

    Raises:
        Damage: A file is not what it should be.
    """
    tensors: dict[str, Tensor] = {}
    parts: dict[str, list[tuple[Tensor, Piece]]] = {}
    for saved in manifest.files:
        if saved.part is None:
            continue
        try:
            with safe_open(os.fspath(path / saved.name), framework="pt") as file:
                for name in file.keys():  # noqa: SIM118 - it is no dict
                    whole = f"{saved.part}.{name}"
                    if name in saved.pieces:
                        parts.setdefault(whole, []).append((file.get_tensor(name), saved.pieces[name]))
                    else:
                        tensors[whole] = file.get_tensor(name)
        except (SafetensorError, OSError) as error:
            raise Damage(f"{saved.name} cannot be read: {reason(error)}") from error
    joined = JoinedTensors(tensors, parts, manifest.aliases)
    for name, owner in manifest.aliases.items():
        if owner not in joined:
            raise Damage(f"no file holds the tensor {owner}, which is {name} too")
    return TrainingState(joined if parts else dict(joined), _values(path))


class JoinedTensors(Mapping[str, Tensor]):
    """Give whole tensors, which are joined from the parts in files whenever they are asked for.

    So no more than one whole tensor need be in memory.
    """

    def __init__(
        self,
        tensors: Mapping[str, Tensor],
        parts: Mapping[str, Sequence[tuple[Tensor, Piece]]],
        aliases: Mapping[str, str],
    ) -> None:
        self._tensors, self._parts, self._aliases = tensors, parts, aliases
        for name, found in parts.items():
            _check_parts(name, found)

    def __getitem__(self, name: str) -> Tensor:
        owner = self._aliases.get(name, name)
        if owner in self._tensors:
            return self._tensors[owner]
        found = self._parts[owner]
        first, piece = found[0]
        whole = torch.empty(piece.shape, dtype=first.dtype)
        for part, piece in found:
            ends = (begin + size for begin, size in zip(piece.offset, part.shape, strict=True))
            whole[tuple(map(slice, piece.offset, ends))] = part
        return whole

    def __iter__(self) -> Iterator[str]:
        return iter({**self._tensors, **self._parts, **self._aliases})

    def __len__(self) -> int:
        return len(self._tensors.keys() | self._parts.keys() | self._aliases.keys())


def _check_parts(name: str, found: Sequence[tuple[Tensor, Piece]]) -> None:
    """Raise Damage where parts do not lie side by side in one whole tensor."""
    shape, dtype = found[0][1].shape, found[0][0].dtype
    for part, piece in found:
        fits = len(piece.offset) == len(shape) == part.dim() and all(
            begin >= 0 and begin + size <= most
            for begin, size, most in zip(piece.offset, part.shape, shape, strict=True)
        )
        if piece.shape != shape or part.dtype != dtype or not fits:
            raise Damage(f"the parts of {name} do not belong to one tensor")
    places = {piece.offset for _, piece in found}
    if len(places) != len(found) or sum(part.numel() for part, _ in found) != math.prod(shape):
        raise Damage(f"a part of {name} is missing")


def _values(path: Path) -> dict[str, Any]:
    try:
        values = json.loads((path / VALUES).read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise Damage(f"{VALUES} cannot be read: {reason(error)}") from error
    if not isinstance(values, dict):
        raise Damage(f"{VALUES} holds no object")
    return values
