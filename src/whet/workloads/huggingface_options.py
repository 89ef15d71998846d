"""Read what follows hf: in a target: a directory, and options after a question mark. Nothing is loaded."""

from pathlib import Path
from typing import Annotated, TypeVar
from urllib.parse import parse_qsl

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from whet.errors import TargetError

TOKENIZER = "tokenizer.json"

_Kind = TypeVar("_Kind", bound=BaseModel)


class Options(BaseModel):
    """Hold the options after the question mark: `seq` tokens in a text, `seconds` of a sound; None for the defaults."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    batch: Annotated[int, Field(ge=1, le=65536)] = 1
    seq: Annotated[int, Field(ge=1)] | None = None
    seconds: Annotated[float, Field(gt=0, le=3600)] | None = None


class TrainingOptions(BaseModel):
    """Hold the options that may follow the question mark.

    Attributes:
        train: A text file in UTF-8.
        batch: Windows in each batch.
        seq: Tokens in each window; None for 256, or for fewer where the model takes fewer.
        lr: The learning rate of AdamW.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    train: Path
    batch: Annotated[int, Field(ge=1, le=65536)] = 8
    seq: Annotated[int, Field(ge=2)] | None = None
    lr: Annotated[float, Field(gt=0)] = 5e-5


def parse_options(query: str) -> Options:
    """Return the options of a model to run, or raise TargetError."""
    return _parsed(Options, query, "batch, seq, seconds and device: hf:DIR?batch=8&seq=256&device=cuda")


def parse_training_options(query: str) -> TrainingOptions:
    """Return the options of a training, or raise TargetError."""
    return _parsed(TrainingOptions, query, "train, batch, seq and lr: hf:DIR?train=FILE&batch=8&seq=256")


def _parsed(kind: type[_Kind], query: str, known: str) -> _Kind:
    """Return options of a kind; `known` names them for the message. A "&" too many does no harm."""
    given = "&".join(filter(None, query.split("&")))
    try:
        return kind.model_validate(dict(parse_qsl(given, keep_blank_values=True, strict_parsing=bool(given))))
    except ValidationError as error:
        first = error.errors()[0]
        wrong = f"{'.'.join(map(str, first['loc']))}={first['input']}: {first['msg']}"
    except ValueError:
        wrong = "not of the form NAME=VALUE&NAME=VALUE"
    raise TargetError(f"bad option in ?{query}: {wrong}. Options are {known}")


def check_directory(directory: Path) -> None:
    """Raise TargetError where a directory holds no Hugging Face model that whet can load."""
    if not directory.is_dir():
        raise TargetError(
            f"no directory {directory}; hf:DIR takes a directory that save_pretrained wrote or that was downloaded "
            "(whet downloads nothing itself: hf download NAME --local-dir DIR)"
        )
    if not (directory / "config.json").is_file():
        raise TargetError(
            f"{directory} has no config.json: it is no Hugging Face model directory; give one that save_pretrained "
            "wrote, or that hf download made"
        )
    if not any(directory.glob("*.safetensors")):
        other = next((file.name for pattern in ("*.bin", "*.pt", "*.pth") for file in directory.glob(pattern)), None)
        raise TargetError(
            f"{directory} has no *.safetensors weights"
            + (f", only {other}, and whet reads no pickles" if other else "")
            + ": save the model with save_pretrained"
        )


def check_training(directory_and_options: str) -> tuple[Path, TrainingOptions]:
    """Return the directory and the options of `DIR?train=FILE&...`. Nothing is loaded.

    Raises:
        TargetError: The directory, its tokenizer, the text file or an option is wrong.
    """
    name, _, query = directory_and_options.partition("?")
    options = parse_training_options(query)
    if not name:
        raise TargetError("hf: lacks a directory: hf:DIR")
    directory = Path(name).expanduser()
    check_directory(directory)
    if not (directory / TOKENIZER).is_file():
        raise TargetError(
            f"{directory} has no {TOKENIZER}, which splits the text into tokens: save the model's tokenizer there "
            "with AutoTokenizer.from_pretrained(...).save_pretrained(DIR)"
        )
    file = options.train.expanduser()
    if not file.is_file():
        raise TargetError(
            f"--train takes a text file; {options.train} {'is none' if file.exists() else 'is not there'}"
        )
    if not file.stat().st_size:
        raise TargetError(f"{options.train} is empty; give a file with text to train on")
    return directory, options
