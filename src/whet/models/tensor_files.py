"""Read the tensors of a Hugging Face directory, model.safetensors or shards with an index, and put them into a model.

Only safetensors are read, since a pickle can run any code.
"""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TypeVar

import torch
from pydantic import BaseModel, ValidationError
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from whet.errors import TargetError

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
STORED_AS = ("F32", "BF16", "F16")

Shape = tuple[int, ...]
Model = TypeVar("Model", bound=nn.Module)

_BY_TRANSFORMERS = "convert it with transformers, AutoModelForCausalLM.from_pretrained(DIR).save_pretrained(NEW_DIR)"


class _Index(BaseModel):
    weight_map: dict[str, str]


def stored_tensors(directory: Path, pickles: str = _BY_TRANSFORMERS) -> Iterator[tuple[str, Tensor]]:
    """Yield the names and tensors of a directory, in their stored dtype.

    The tensors are views of memory-mapped files. A tensor is read from the disk when it is used, and the files must not
    change while the tensors exist.

    Args:
        pickles: What to do where it holds pickles alone, for the message.

    Raises:
        TargetError: A file is missing or damaged, or a tensor is quantised.
    """
    for file, names in _files(directory, pickles).items():
        yield from _tensors(file, names)


def _files(directory: Path, pickles: str) -> dict[Path, set[str] | None]:
    """Return the files to read, with the names of their tensors by the index; None for all, if there is no index."""
    if (directory / WEIGHTS).is_file():
        return {directory / WEIGHTS: None}
    index = directory / INDEX
    if not index.is_file():
        raise TargetError(_no_weights(directory, pickles))
    try:
        weight_map = _Index.model_validate_json(index.read_bytes()).weight_map
    except (OSError, ValidationError) as error:
        raise TargetError(f"{index} is damaged or lacks weight_map: download or copy it again") from error
    files: dict[Path, set[str] | None] = {}
    for file_name in sorted(set(weight_map.values())):
        if Path(file_name).name != file_name or not file_name.endswith(".safetensors"):
            raise TargetError(f"{index} names {file_name!r}, which is not a safetensors file in the same directory")
        files[directory / file_name] = {name for name, where in weight_map.items() if where == file_name}
    missing = [file.name for file in files if not file.is_file()]
    if missing:
        raise TargetError(f"{directory} lacks {_first_of(missing)}, named in {INDEX}: download or copy it again")
    return files


def _no_weights(directory: Path, pickles: str) -> str:
    message = f"{directory} has no {WEIGHTS} and no {INDEX}"
    pickle = next((p.name for pattern in ("*.bin", "*.pt", "*.pth") for p in sorted(directory.glob(pattern))), None)
    if pickle:
        return f"{message}, only {pickle}, and whet reads no pickles: {pickles}"
    other = next((p.name for p in sorted(directory.glob("*.safetensors"))), None)
    return f"{message}; rename {other} if it holds all the weights" if other else message


def _tensors(file: Path, indexed: set[str] | None) -> Iterator[tuple[str, Tensor]]:
    """Yield the names and tensors of one file, which is mapped into memory."""
    try:
        with safe_open(file, framework="pt") as opened:
            names = set(opened.keys())
            if indexed is not None and (wrong := sorted(indexed ^ names)):
                where = "has no" if wrong[0] in indexed else "also has"
                raise TargetError(f"{file} {where} {_first_of(wrong)}, contrary to {INDEX}: download both again")
            for name in sorted(names):
                stored_as = opened.get_slice(name).get_dtype()
                if stored_as not in STORED_AS:
                    raise TargetError(f"{file}: {name} is stored as {stored_as}; whet reads {', '.join(STORED_AS)}")
                yield name, opened.get_tensor(name)
    except (OSError, SafetensorError, ValueError) as error:
        raise TargetError(f"{file} cannot be read: {error}") from error


def compare_shapes(weights: Mapping[str, Tensor], directory: Path, shapes: Mapping[str, Shape]) -> None:
    """Raise TargetError unless the tensors are exactly those that the config implies."""
    wrong = {
        "missing": [name for name in shapes if name not in weights],
        "unexpected": [name for name in weights if name not in shapes],
        "of another shape": [
            f"{name} is {list(weights[name].shape)} where {list(shape)} is wanted"
            for name, shape in shapes.items()
            if name in weights and weights[name].shape != shape
        ],
    }
    if found := [f"{said}: {_first_of(names)}" for said, names in wrong.items() if names]:
        raise TargetError(f"the weights in {directory} do not fit its config.json: {'; '.join(found)}")


def drop_tied_head(weights: dict[str, Tensor], directory: Path, embedding: str, says: str) -> None:
    """Remove the second copy of a head whose weight is the embedding's.

    Args:
        directory: The directory, for the message.
        says: The key of config.json that says so.

    Raises:
        TargetError: The two differ.
    """
    name = next((name for name in weights if name.endswith("lm_head.weight")), "")
    head, kept = weights.pop(name, None), weights.get(embedding)
    if head is not None and kept is not None and not torch.equal(head, kept):
        raise TargetError(
            f"{directory}: config.json says {says}, but lm_head.weight is not {embedding}: set {says} to false"
        )


def filled(build: Callable[[], Model], weights: Mapping[str, Tensor], embedding: str, *, tied: bool) -> Model:
    """Return a model whose parameters are tensors that were read, in eval mode.

    Args:
        build: Makes the model. No memory is allocated for its own weights.
        weights: The tensors by name; with a tied head, without `lm_head.weight`.
    """
    if tied:
        weights = {**weights, "lm_head.weight": weights[f"{embedding}.weight"]}
    with torch.device("meta"):
        model = build()
    model.load_state_dict(weights, assign=True)
    if tied:
        model.get_submodule("lm_head").weight = model.get_submodule(embedding).weight
    return model.eval()


def _first_of(names: list[str]) -> str:
    return names[0] + (f" (and {len(names) - 1} more)" if len(names) > 1 else "")
