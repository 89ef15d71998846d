"""Read what is planned: a Hugging Face directory, a config.json, or a configuration of whet train."""

import difflib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from whet.core.toml_file import read_toml
from whet.errors import TargetError
from whet.models.config_file import FILE, read_json
from whet.planner.model_families import FAMILIES, WITHOUT_LAYERS, Family
from whet.planner.model_shape import ModelShape


class PlannedModel(BaseModel):
    """Hold a model's sizes, and what its file says of its training.

    Attributes:
        model_type: Its family, as config.json names it.
        longest: The most positions that it was made for; None where there is no bound.
        sequence_length: The tokens of a row in a configuration of whet train.
        global_batch_size: The rows of a step in a configuration of whet train.
    """

    model_config = ConfigDict(frozen=True)

    shape: ModelShape
    model_type: str
    longest: int | None = None
    sequence_length: int | None = None
    global_batch_size: int | None = None


def read_model(path: Path | str) -> PlannedModel:
    """Read a Hugging Face directory, a config.json, or a configuration of whet train (TOML).

    Raises:
        TargetError: There is none, it is damaged, or it is of a family that is not planned.
    """
    path = Path(path)
    if path.is_dir():
        return planned_model(read_json(path), path.absolute().name, path / FILE)
    if not path.is_file():
        raise TargetError(
            f"there is no model {path}; name a directory with a config.json, a config.json, or a configuration of "
            "whet train"
        )
    if path.suffix == ".toml":
        return _of_training(path)
    name = path.absolute().parent.name if path.name == FILE else path.stem
    return planned_model(read_json(path.parent, path.name), name, path)


def planned_model(raw: Mapping[str, Any], name: str, source: Path) -> PlannedModel:
    """Return the sizes that the keys of a config.json mean.

    Args:
        source: The file, which messages name.

    Raises:
        TargetError: The keys are of a family that is not planned, or are no sizes of a model.
    """
    model_type = str(raw.get("model_type"))
    family = FAMILIES.get(model_type)
    if family is None or raw.get("is_encoder_decoder"):
        raise _unplanned(model_type, raw, source)
    config = {**family.left_out, **{key: value for key, value in raw.items() if value is not None}}
    try:
        fields = _fields(family, config)
        longest = fields.pop("longest")
        shape = ModelShape(name=name, **fields)
        if shape.num_heads % shape.num_kv_heads:
            raise ValueError(f"{shape.num_heads} heads are no multiple of {shape.num_kv_heads} key-value heads")
    except KeyError as error:
        raise TargetError(f"{source}: the key {error} is missing, which {model_type} needs") from error
    except ValidationError as error:
        first = error.errors()[0]
        where = str(first["loc"][0])
        key = family.keys.get(where, where)
        raise TargetError(f"{source}: {key} is {first['input']!r}; it must be a whole number above 0") from error
    except (TypeError, ArithmeticError, ValueError) as error:
        raise TargetError(f"{source} is no model that can be planned: {error}") from error
    return PlannedModel(shape=shape, model_type=model_type, longest=longest)


def _fields(family: Family, config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a ModelShape, and how many positions there are as "longest"."""
    found: dict[str, Any] = {name: config.get(key) for name, key in family.keys.items()}
    for needed in ("hidden_size", "num_heads"):
        if not isinstance(found[needed], int) or found[needed] < 1:
            raise ValueError(f"{family.keys[needed]} is {found[needed]!r}; it must be a whole number above 0")
    hidden, heads = found["hidden_size"], found["num_heads"]
    found["intermediate_size"] = found.get("intermediate_size") or config.get("expansion_ratio", 4) * hidden
    found["num_kv_heads"] = (family.kv_heads(config) if family.kv_heads else found.get("num_kv_heads")) or heads
    found["head_size"] = found.get("head_size") or hidden // heads
    longest = found.pop("longest", None)
    return {
        **found,
        "is_tied": config.get("tie_word_embeddings", family.is_tied),
        "has_biases": bool(family.biases and config.get(family.biases, False)),
        "num_positions": longest + family.extra_positions if family.learned else 0,
        "drops": any(config.get(key, 0) for key in family.drops),
        "window": (config.get("sliding_window") or None) if family.window and family.window(config) else None,
        "experts": family.experts(config) if family.experts else None,
        "latent": family.latent(config) if family.latent else None,
        **family.fixed,
        "longest": longest,
    }


def _unplanned(model_type: str, raw: Mapping[str, Any], source: Path) -> TargetError:
    """Return the error for a family that is not planned: what it is, what is nearest, and what there is."""
    kinds = [what for what, names in WITHOUT_LAYERS.items() if model_type in names.split()]
    if not kinds and raw.get("is_encoder_decoder"):
        kinds = ["an encoder with a decoder"]
    near = difflib.get_close_matches(model_type, FAMILIES, n=1)
    if kinds:
        said = f", which is {kinds[0]}"
        if isinstance(raw.get("text_config"), dict):
            said += "; write its text_config to a file of its own, and plan that"
    else:
        said = f"; did you mean {near[0]}?" if near else ""
    return TargetError(
        f"{source}: model_type is {raw.get('model_type')!r}{said}{'' if said.endswith('?') else ';'} "
        f"whet plans decoders: {', '.join(FAMILIES)}"
    )


def _of_training(path: Path) -> PlannedModel:
    """Read the tables [model], [data] and [batch] of a configuration of whet train.

    Raises:
        TargetError: It cannot be read, or its model cannot be planned.
    """
    tables = read_toml(path)
    model, data, batch = (tables.get(name, {}) for name in ("model", "data", "batch"))
    if not isinstance(model, dict) or not model or not isinstance(data, dict) or not isinstance(batch, dict):
        raise TargetError(f"{path} is no configuration of whet train: it has no table [model]; docs/train.md shows one")
    if directory := model.get("directory"):
        place = path.absolute().parent / str(directory)
        found = planned_model(read_json(place), place.name, place / FILE)
    else:
        given = {"model_type": "llama", **model}
        if data.get("tokenizer") == "bytes":
            given.setdefault("vocab_size", 256)
        if "vocab_size" not in given:
            raise TargetError(f"{path}: [model] has no vocab_size, which the tokenizer decides; add it to plan")
        found = planned_model(given, path.stem, path)
    sizes = {
        "sequence_length": data.get("sequence_length", 256),
        "global_batch_size": batch.get("global_batch_size", 32),
    }
    for name, value in sizes.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise TargetError(f"{path}: {name} is {value!r}; it must be a whole number above 0")
    return found.model_copy(update=sizes)
