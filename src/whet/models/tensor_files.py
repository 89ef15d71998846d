"""Read the tensors of a Hugging Face directory, model.safetensors or shards with an index, and put them into a model.

Only safetensors are read, since a pickle can run any code.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

import torch
from pydantic import BaseModel, ValidationError
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from whet.errors import TargetError, reason
from whet.kernels.linear.places import PRIVATE, Place
from whet.models.config_file import unusable
from whet.models.filling import Filling

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
STORED_AS = ("F32", "BF16", "F16")

_MANY_LAYERS = 200  # more than the largest models have

Shape = tuple[int, ...]
Config = TypeVar("Config")
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


@dataclass(frozen=True, kw_only=True)
class ModelFiles(Generic[Config, Model]):
    """Read the directories of a family of models: config.json and safetensors.

    Attributes:
        read_config: Reads the config.json of a directory.
        build: Makes a model of a config. No memory is allocated for its own weights.
        name_of: Returns the name of a tensor, given that in the file; None for one that is left out.
        is_wide: Returns whether the parameter of a name stays in float32 where others are rounded.
        embedding: The name of the embedding's weight. It is the head's too where the config says tie_word_embeddings.
        says: The key of config.json that says so, for the message.
        pickles: What to do where a directory holds pickles alone, for the message.
    """

    read_config: Callable[[Path | str], Config]
    build: Callable[[Config], Model]
    name_of: Callable[[str], str | None]
    is_wide: Callable[[str], bool] = lambda name: False
    embedding: str = "embed_tokens.weight"
    says: str = "tie_word_embeddings"
    pickles: str = _BY_TRANSFORMERS

    def shapes(self, config: Config) -> dict[str, Shape]:
        """Return the shape of each tensor of a model, by name. With a tied head there is no lm_head.weight."""
        with torch.device("meta"):
            shapes = {name: tuple(tensor.shape) for name, tensor in self.build(config).state_dict().items()}
        if _is_tied(config):
            del shapes["lm_head.weight"]
        return shapes

    def read(self, directory: Path | str, config: Config) -> dict[str, Tensor]:
        """Return the tensors that `shapes` names, in their stored dtype: views of files, as those of `stored_tensors`.

        Raises:
            TargetError: A file or tensor is missing or damaged, or a tensor is unexpected, quantised or misshapen.
        """
        return self.read_as(self.shapes_for(directory, config), directory, config)

    def shapes_for(self, directory: Path | str, config: Config) -> dict[str, Shape]:
        """Return the shapes of a directory's config.

        Raises:
            TargetError: No tensor can be so large, or there are fewer tensors than layers.
        """
        num_layers: int = getattr(config, "num_hidden_layers", 0)
        # To build a model takes milliseconds a layer, so one whose config.json is not of these files is not built.
        if num_layers > _MANY_LAYERS and num_layers > (
            found := sum(1 for _ in stored_tensors(Path(directory), self.pickles))
        ):
            raise unusable(directory, f"it asks for {num_layers:,} layers, and there are {found:,} tensors")
        try:
            return self.shapes(config)
        except (RuntimeError, ArithmeticError) as error:
            raise unusable(directory, f"its sizes make no tensors: {reason(error)}") from error

    def read_as(self, shapes: Mapping[str, Shape], directory: Path | str, config: Config) -> dict[str, Tensor]:
        """Return the tensors of a directory, which must have these shapes. See read."""
        directory = Path(directory)
        weights: dict[str, Tensor] = {}
        for stored_name, tensor in stored_tensors(directory, self.pickles):
            name = self.name_of(stored_name)
            if name in weights:
                raise TargetError(f"{directory} holds {name} twice")
            if name is not None:
                weights[name] = tensor
        if _is_tied(config):
            _drop_tied_head(weights, directory, self.embedding, self.says)
        _compare_shapes(weights, directory, shapes)
        return weights

    def load(self, directory: Path | str, dtype: torch.dtype = torch.float32) -> Model:
        """Load the model in a directory, in eval mode. Its weights are copies: they do not depend on the files.

        Args:
            dtype: The type of the parameters that do not stay wide.

        Raises:
            TargetError: A file is missing or damaged, the weights do not fit, or the model is of another family.
        """
        config = self.read_config(directory)
        return self.model_of(config, self.read(directory, config), dtype)

    def model_of(
        self, config: Config, weights: Mapping[str, Tensor], dtype: torch.dtype, place: Place = PRIVATE
    ) -> Model:
        """Return a model in eval mode whose weights are copies, in memory of a place. See load."""
        wide = torch.promote_types(dtype, torch.float32)
        weights = {name: place.keep(tensor, wide if self.is_wide(name) else dtype) for name, tensor in weights.items()}
        if _is_tied(config):
            weights["lm_head.weight"] = weights[self.embedding]
        with torch.device("meta"):
            model = self.build(config)
        model.load_state_dict(weights, assign=True)
        if _is_tied(config):
            model.get_submodule("lm_head").weight = model.get_parameter(self.embedding)
        return model.eval()

    def load_in_parts(self, directory: Path | str) -> tuple[Model, Filling]:
        """Return a model on the meta device, and what gives it the weights of `load` in float32, each read as needed.

        The files must not change until then.

        Raises:
            TargetError: See load.
        """
        config = self.read_config(directory)
        weights = self.read(directory, config)
        with torch.device("meta"):
            model = self.build(config)
        return model.eval(), Filling(model, lambda name: weights[name].to(torch.float32, copy=True))


def _is_tied(config: object) -> bool:
    return bool(getattr(config, "tie_word_embeddings", False))


def _compare_shapes(weights: Mapping[str, Tensor], directory: Path, shapes: Mapping[str, Shape]) -> None:
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


def _drop_tied_head(weights: dict[str, Tensor], directory: Path, embedding: str, says: str) -> None:
    """Remove the second copy of a head, and raise TargetError where it is not the embedding's weight."""
    name = next((name for name in weights if name.endswith("lm_head.weight")), "")
    head, kept = weights.pop(name, None), weights.get(embedding)
    if head is not None and kept is not None and not torch.equal(head, kept):
        raise TargetError(
            f"{directory}: config.json says {says}, but lm_head.weight is not {embedding}: set {says} to false"
        )


def _first_of(names: list[str]) -> str:
    return names[0] + (f" (and {len(names) - 1} more)" if len(names) > 1 else "")
