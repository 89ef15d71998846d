"""List the versions of everything installed that speed depends on."""

import contextlib
import importlib.metadata
import sys

from whet import __version__

_PACKAGES = ("torch", "torchao", "openvino", "nncf", "onnxruntime", "transformers")


def versions() -> dict[str, str]:
    found = {"whet": __version__, "python": sys.version.split()[0]}
    for package in _PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[package] = importlib.metadata.version(package)
    return found
