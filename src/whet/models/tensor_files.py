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


def read_weights(
    directory: Path | str,
    shapes: Mapping[str, Shape],
    name_of: Callable[[str], str | None],
    *,
    tied: bool,
    embedding: str = "embed_tokens.weight",
    says: str = "tie_word_embeddings",
    pickles: str = _BY_TRANSFORMERS,
) -> dict[str, Tensor]:
    """Return the tensors of a directory that its config implies, as the views of `stored_tensors`.

    Args:
        shapes: The shape of each tensor, by name.
        name_of: Returns the name of a tensor, given that in the file; None for one that is left out.
        tied: Whether the head's weight is the embedding's. A second copy of it is left out.
        embedding: The name of the embedding's weight.
        says: The key of config.json that says so.
        pickles: What to do where the directory holds pickles alone, for the message.

    Raises:
        TargetError: A file is missing or damaged, or a tensor is missing, unexpected, quantised, or of another shape.
    """
    directory = Path(directory)
    weights: dict[str, Tensor] = {}
    for stored_name, tensor in stored_tensors(directory, pickles):
        name = name_of(stored_name)
        if name in weights:
            raise TargetError(f"{directory} holds {name} twice")
        if name is not None:
            weights[name] = tensor
    if tied:
        _drop_tied_head(weights, directory, embedding, says)
    compare_shapes(weights, directory, shapes)
    return weights


def _drop_tied_head(weights: dict[str, Tensor], directory: Path, embedding: str, says: str) -> None:
    """Remove the second copy of a head, and raise TargetError where it is not the embedding's weight."""
    name = next((name for name in weights if name.endswith("lm_head.weight")), "")
    head, kept = weights.pop(name, None), weights.get(embedding)
    if head is not None and kept is not None and not torch.equal(head, kept):
        raise TargetError(
            f"{directory}: config.json says {says}, but lm_head.weight is not {embedding}: set {says} to false"
        )


def shapes_of(build: Callable[[], nn.Module], *, tied: bool = False) -> dict[str, Shape]:
    """Return the shape of each tensor of a model, by name; with a tied head, without `lm_head.weight`.

    Args:
        build: Makes the model. No memory is allocated for its weights.
    """
    with torch.device("meta"):
        shapes = {name: tuple(tensor.shape) for name, tensor in build().state_dict().items()}
    if tied:
        del shapes["lm_head.weight"]
    return shapes


def filled(
    build: Callable[[], Model],
    weights: Mapping[str, Tensor],
    dtype: torch.dtype,
    *,
    is_wide: Callable[[str], bool] = lambda name: False,
    tied: bool = False,
    embedding: str = "embed_tokens.weight",
) -> Model:
    """Return a model whose parameters are copies of tensors that were read, in eval mode.

    Args:
        build: Makes the model. No memory is allocated for its own weights.
        weights: The tensors by name; with a tied head, without `lm_head.weight`.
        dtype: The type of the parameters.
        is_wide: Returns whether the parameter of a name is of float32 at least.
        embedding: The name of the embedding's weight.
    """
    wide = torch.promote_types(dtype, torch.float32)
    copies = {name: tensor.to(wide if is_wide(name) else dtype, copy=True) for name, tensor in weights.items()}
    if tied:
        copies["lm_head.weight"] = copies[embedding]
    with torch.device("meta"):
        model = build()
    model.load_state_dict(copies, assign=True)
    if tied:
        model.get_submodule("lm_head").weight = model.get_parameter(embedding)
    return model.eval()


def _first_of(names: list[str]) -> str:
    return names[0] + (f" (and {len(names) - 1} more)" if len(names) > 1 else "")
