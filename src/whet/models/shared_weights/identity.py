"""Name all that packed weights depend on. Files with another identity are never mapped."""

import hashlib
from collections.abc import Sequence
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import Any

import torch

from whet import __version__
from whet.kernels.build import Library
from whet.models.options import ServingOptions

_PACKAGE = Path(__file__).parents[2]
_NOT_PACKED = {"kv", "shared_weights"}  # options on which the weights do not depend
_READ = (".json", ".safetensors")  # the files of a model

Identity = dict[str, Any]


def known_files(directory: Path | str) -> list[Any]:
    """Return how the files of a model are known: by name, size, last change and place on the disk."""
    found = []
    for path in sorted(Path(directory).iterdir()):
        if path.suffix in _READ:
            of = path.stat()
            found.append([path.name, of.st_size, of.st_mtime_ns, of.st_ctime_ns, of.st_dev, of.st_ino])
    return found


def identity_of(
    directory: Path | str, files: list[Any], options: ServingOptions, library: Library | None, sizes: Sequence[int]
) -> Identity:
    """Return the identity of a model's packed weights, of values that JSON can hold.

    Args:
        files: What `known_files` returned before the model's files were opened.
        library: The kernels that read the weights; None for PyTorch.
        sizes: The bytes of each weight in the file.
    """
    directory = Path(directory).resolve()
    names = {field.name for field in fields(ServingOptions)} - _NOT_PACKED  # those of an engine are no weights either
    return {
        "model": str(directory),
        "options": {name: getattr(options, name) for name in sorted(names)},
        "runs_on": "torch" if library is None else library.name,
        "files": files,
        "made_by": [__version__, torch.__version__, _digest_of_code()],
        "layout": hashlib.sha256(repr(list(sizes)).encode()).hexdigest(),
    }


def names_of(identity: Identity) -> tuple[str, str]:
    """Return two parts of a file's name: of the model with its options, and of the whole identity."""
    model = [identity[key] for key in ("model", "options", "runs_on")]
    return _short(model), _short(identity)


def _short(value: object) -> str:
    return hashlib.sha256(repr(value).encode()).hexdigest()[:16]


@cache
def _digest_of_code() -> str:
    """Return a digest of the code that packs weights, which may change while the version stays."""
    digest = hashlib.sha256()
    for folder in ("models", "kernels/linear"):
        for path in sorted((_PACKAGE / folder).rglob("*.py")):
            digest.update(path.read_bytes())
    return digest.hexdigest()
