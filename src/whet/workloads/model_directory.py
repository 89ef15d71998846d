"""Find the language model that a command is to run: a directory, or the name of a built-in model."""

from pathlib import Path

from whet.errors import TargetError
from whet.workloads import WEIGHTS

BUILT_IN = ("docs-gpt", "docs-ssm")
METAVAR = "DIR|NAME"
HELP = f"a Hugging Face model directory, or a built-in model: {', '.join(BUILT_IN)}"


def model_directory(named: str) -> Path:
    """Return the directory of a model. A directory of that name takes precedence over a built-in model.

    Raises:
        TargetError: There is neither.
    """
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
