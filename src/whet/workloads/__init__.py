"""What to make fast: the built-in examples, and how a name on the command line becomes a Workload.

Importing this loads neither torch nor any data: `resolve` does when first used.
"""

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from whet.workloads.target import resolve

__all__ = ["BUILTIN", "WEIGHTS", "resolve"]

BUILTIN: dict[str, str] = {
    "digits-cnn": "residual network names handwritten digits of 64 x 64 pixels; batch 8; accuracy",
    "docs-encoder": "BERT-shaped encoder names the topic of 128 tokens of documentation; batch 8; accuracy",
    "docs-gpt": "Llama-shaped decoder predicts 128 tokens of documentation; batch 1; bits per byte",
}
"""Each built-in workload, with a line for people. Its module is named as it is, and has `build() -> Workload`."""

WEIGHTS = Path(__file__).parent / "weights"
"""Where their weights lie, each in a directory named as it is."""


def __getattr__(name: str) -> Any:
    if name == "resolve":
        return import_module("whet.workloads.target").resolve
    raise AttributeError(f"module 'whet.workloads' has no attribute {name!r}")
