"""Find every optimisation that whet knows.

One technique is one file in the folder of its stage; no other list names it. A file defines a frozen `Options`,
`check` and `apply`, which technique.py describes, and ends with `TECHNIQUE = Technique(...)`. What it predicts is a
lambda there, where one expression says it.
"""

import pkgutil
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from whet.techniques.technique import Technique

    TABLE: dict[str, Technique]

__all__ = ["FOLDERS", "FOLLOWING", "TABLE", "techniques_in"]

_STAGES = ("structure", "precision", "layout", "backend", "runtime")
FOLDERS = (*_STAGES, "training")
"""The folders whose files are techniques: one for each stage, and one for those of a training loop."""


def techniques_in(*folders: str) -> dict[str, Any]:
    """Import every file in some folders, and return their techniques in the order in which they compose."""
    packages = [import_module(f"{__name__}.{folder}") for folder in folders]
    files = [f"{one.__name__}.{file.name}" for one in packages for file in pkgutil.iter_modules(one.__path__)]
    found = [import_module(file).TECHNIQUE for file in files]
    return {technique.name: technique for technique in sorted(found, key=lambda technique: technique.place)}


def __getattr__(name: str) -> Any:
    """Make TABLE when it is first asked for: it imports torch, and whoever wants names alone does not (names.py)."""
    if name != "TABLE":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return globals().setdefault("TABLE", techniques_in(*_STAGES))


# Techniques that pay on other machines and are not in the table yet: name -> why, for the report.
FOLLOWING: dict[str, str] = {
    "tensorrt": "needs a CUDA device and TensorRT, and is not in this version of whet",
    "fp8": "for inference it is not in this version of whet, and needs a CUDA device with 8-bit products (sm_89)",
}
