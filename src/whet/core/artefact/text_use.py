"""Keep how a text encoder's artefact makes embeddings or scores: text.json and tokenizer.json beside artefact.json.

`whet tune hf:DIR` writes both. An artefact without them is served as tensors alone.
"""

import json
import shutil
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, Field, ValidationError

from whet.errors import ArtefactError, OutputError, reason
from whet.files import write_whole

FILE = "text.json"
TOKENIZER = "tokenizer.json"
FORMAT = 1

Pooling = Literal["mean", "cls", "max", "lasttoken"]


class Unfit(Exception):
    """Says why a model gives neither embeddings nor scores of texts, and what to do."""


class TextUse(BaseModel, extra="forbid", frozen=True):
    """Describe what a text encoder is for, and what is done before and after the model.

    Attributes:
        task: embed: a text becomes a vector. rerank: a query and a text become a score. None: neither.
        why_not: Why the task is None.
        output: The name of the model's output that is used.
        max_tokens: Of a text, or of a query and a text together, special tokens included.
        normalize: Whether the vector is scaled to length 1.
        prompt: What is put in front of every text.
        dimensions: To how many numbers a vector may be shortened; None: to any number.
        activation: What makes a score of the model's output.
    """

    format: int = FORMAT
    task: Literal["embed", "rerank"] | None
    why_not: str = ""
    output: str = ""
    max_tokens: Annotated[int, Field(ge=0)] = 0
    pad_id: Annotated[int, Field(ge=0)] = 0
    pooling: Pooling = "mean"
    normalize: bool = False
    lower_case: bool = False
    prompt: str = ""
    dimensions: tuple[int, ...] | None = ()
    activation: Literal["sigmoid", "identity"] = "sigmoid"


def write_text_use(use: TextUse, tokenizer: Path, directory: Path) -> None:
    """Put text.json and a copy of a tokenizer into an artefact's directory, or raise OutputError."""
    try:
        shutil.copyfile(tokenizer, directory / TOKENIZER)
    except OSError as error:
        raise OutputError(f"cannot copy {tokenizer} to {directory}: {error.strerror or error}") from error
    write_whole(directory / FILE, use.model_dump_json(indent=1) + "\n")


def read_text_use(directory: Path) -> TextUse | None:
    """Return what text.json says, None without it; raise ArtefactError if it is damaged, or the tokenizer missing."""
    path = directory / FILE
    if not path.is_file():
        return None
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        if isinstance(data, dict) and (found := data.get("format", FORMAT)) != FORMAT:
            raise ArtefactError(f"{path} has format {found}, this whet reads format {FORMAT}; install a newer whet")
        use = TextUse.model_validate(data)
    except (OSError, ValueError, ValidationError) as error:
        raise ArtefactError(f"{path} is damaged ({reason(error)}); tune the model again") from error
    if use.task is not None and not (directory / TOKENIZER).is_file():
        raise ArtefactError(f"{directory} has {FILE} and no {TOKENIZER}; copy the one of the tuned model there")
    return use
