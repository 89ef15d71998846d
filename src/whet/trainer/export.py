"""Write what was trained as a Hugging Face directory, which whet serve and transformers load."""

import json
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

from safetensors import SafetensorError
from torch import Tensor

from whet.errors import OutputError, reason
from whet.files import replace_directory
from whet.techniques.mechanisms.distillation import MAPS
from whet.trainer.setup import SetUp


def write_model(setup: SetUp, weights: Mapping[str, Tensor], directory: Path) -> Path:
    """Write a model, its tokenizer and what made it; the directory appears whole, in the place of an older one.

    Args:
        weights: The model's, by their names, with whatever a recipe has made of them.

    Raises:
        OutputError: It cannot be written.
    """
    for left in directory.parent.glob(f".{directory.name}-*"):  # by a process that was killed while it wrote
        shutil.rmtree(left, ignore_errors=True)
    try:
        partial = Path(tempfile.mkdtemp(prefix=f".{directory.name}-", dir=directory.parent))
    except OSError as error:
        raise OutputError(f"cannot write {directory}: {error.strerror or error}") from error
    try:
        kept = {name: value for name, value in weights.items() if not name.startswith(f"{MAPS}.")}
        setup.model.write(partial, kept, setup.data.special_tokens)
        setup.data.write_tokenizer(partial)
        made = {"config": json.loads(setup.config.model_dump_json()), "recipe": [str(step) for step in setup.steps]}
        (partial / "training.json").write_text(json.dumps(made, indent=1) + "\n", encoding="utf-8")
        partial.chmod(0o755)
        replace_directory(partial, directory)
    except (OSError, SafetensorError) as error:
        why = getattr(error, "strerror", None) or reason(error)
        raise OutputError(f"cannot write {directory}: {why}; free some space, and write it with --resume") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return directory
