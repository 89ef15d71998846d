"""Read a checkpoint: its files are compared with their checksums, and its tensors stay in the files until used."""

import hashlib
import json
import os
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor

from whet.errors import reason
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
    for saved in manifest.files:
        if saved.part is None:
            continue
        try:
            with safe_open(os.fspath(path / saved.name), framework="pt") as file:
                for name in file.keys():  # noqa: SIM118 - it is no dict
                    tensors[f"{saved.part}.{name}"] = file.get_tensor(name)
        except (SafetensorError, OSError) as error:
            raise Damage(f"{saved.name} cannot be read: {reason(error)}") from error
    for name, owner in manifest.aliases.items():
        if owner not in tensors:
            raise Damage(f"no file holds the tensor {owner}")
        tensors[name] = tensors[owner]
    return TrainingState(tensors, _values(path))


def _values(path: Path) -> dict[str, Any]:
    try:
        values = json.loads((path / VALUES).read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise Damage(f"{VALUES} cannot be read: {reason(error)}") from error
    if not isinstance(values, dict):
        raise Damage(f"{VALUES} holds no object")
    return values
