"""Find every optimisation that whet knows.

One technique is one file in the folder of its stage; no other list names it. A file defines a frozen `Options`,
`check` and `apply`, which technique.py describes, and ends with `TECHNIQUE = Technique(...)`.
"""

import pkgutil
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from whet.techniques.technique import Technique

    TABLE: dict[str, Technique]

__all__ = ["FOLDERS", "FOLLOWING", "TABLE"]

FOLDERS = ("structure", "precision", "layout", "backend", "runtime", "training")
"""The folders whose files are techniques: one for each stage, and one for those of a training loop."""


def _found() -> "dict[str, Technique]":
    """Import every file in the folders of the stages, and return the techniques in the order in which they compose."""
    from whet.techniques.technique import STAGES

    found: list[Technique] = []
    for stage in STAGES:
        folder = import_module(f"{__name__}.{stage}")
        modules = [import_module(f"{folder.__name__}.{entry.name}") for entry in pkgutil.iter_modules(folder.__path__)]
        found += [module.TECHNIQUE for module in modules]
    return {technique.name: technique for technique in sorted(found, key=lambda technique: technique.place)}


def __getattr__(name: str) -> Any:
    """Make TABLE when it is first asked for: it imports torch, and whoever wants names alone does not (names.py)."""
    if name != "TABLE":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return globals().setdefault("TABLE", _found())


# Techniques that pay on other machines and are not in the table yet: name -> why, for the report.
FOLLOWING: dict[str, str] = {
    "tensorrt": "needs a CUDA device and TensorRT, and is not in this version of whet",
    "fp8": "for inference it is not in this version of whet, and needs a CUDA device with 8-bit products (sm_89)",
}
