"""Find the language model that a command is to run: a directory, or the name of a built-in model."""

from pathlib import Path

from whet.errors import TargetError
from whet.workloads import WEIGHTS

BUILT_IN = ("docs-gpt", "docs-ssm")
METAVAR = "DIR|NAME"
HELP = f"a Hugging Face model directory, or a built-in model: {', '.join(BUILT_IN)}"


def model_directory(named: str) -> Path:
    """Return a model's directory: that of this name, else that of a built-in model; raise TargetError for neither."""
    directory = Path(named)
    if directory.is_dir():
        return directory
    if named in BUILT_IN:
        return WEIGHTS / named
    what = "is a file and no directory" if directory.exists() else "is no directory"
    raise TargetError(
        f"{named} {what}; give one with config.json, tokenizer.json and safetensors, "
        f"or the name of a built-in model: {', '.join(BUILT_IN)}"
    )
