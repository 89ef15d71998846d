"""Find what a directory holds: a language model, an artefact, or what `whet tune` made of either."""

import json
from dataclasses import dataclass
from pathlib import Path

from whet.core.artefact import MANIFEST, read_manifest
from whet.core.artefact.runtime import MODEL, RESULT
from whet.core.recipe_file import FILE as RECIPE
from whet.errors import ArtefactError, TargetError, reason
from whet.models.config_file import FILE as CONFIG
from whet.models.config_file import read_json
from whet.models.families import FAMILIES
from whet.workloads.model_directory import BUILT_IN, model_directory


@dataclass(frozen=True)
class EngineSource:
    """Name a language model in a Hugging Face directory, for an engine, and the recipe that it is to follow, if any.

    `name` is what requests call it, where nobody says otherwise.
    """

    directory: Path
    name: str
    recipe: Path | None = None


@dataclass(frozen=True)
class ArtefactSource:
    """Name an artefact to serve. `name` is what requests call it, where nobody says otherwise."""

    directory: Path
    name: str


Source = EngineSource | ArtefactSource


def source_of(named: str) -> Source:
    """Return what a directory or a built-in model's name stands for.

    A directory with artefact.json is an artefact. The output directory of `whet tune` is the language model that was
    tuned, with its recipe, where an engine can run it, and else the artefact in it.

    Raises:
        TargetError: It is none of these, or the language model that was tuned is gone.
        ArtefactError: The artefact is damaged, or there is none.
    """
    directory = Path(named)
    if (directory / MANIFEST).is_file():
        read_manifest(directory)
        return ArtefactSource(directory, _name_of_artefact(directory))
    if not (directory / RESULT).is_file():
        found = model_directory(named)
        return EngineSource(found, found.resolve().name)
    result = _read_result(directory)
    if (tuned := _tuned_decoder(directory, result)) is not None:
        return EngineSource(tuned, tuned.resolve().name, directory / RECIPE)
    read_manifest(directory / MODEL)
    return ArtefactSource(directory / MODEL, _name_of_target(result) or directory.resolve().name)


def _read_result(directory: Path) -> dict[str, object]:
    path = directory / RESULT
    try:
        result = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ArtefactError(f"{path} is damaged ({reason(error)}); serve {directory / MODEL} itself") from error
    if not isinstance(result, dict):
        raise ArtefactError(f"{path} is damaged (it holds no object); serve {directory / MODEL} itself")
    return result


def _name_of_artefact(directory: Path) -> str:
    """Return the name of what an artefact was tuned from, or its directory's where no result lies beside it."""
    if (directory.parent / RESULT).is_file() and directory.name == MODEL:
        return _name_of_target(_read_result(directory.parent)) or directory.resolve().parent.name
    return directory.resolve().name


def _name_of_target(result: dict[str, object]) -> str:
    """Return a target's name as requests can write it: digits-cnn, the directory of hf:DIR, the function of a file."""
    target = str(result.get("target", "")).partition("?")[0]
    return Path(target.removeprefix("hf:").rpartition(":")[2]).name


def _tuned_decoder(directory: Path, result: dict[str, object]) -> Path | None:
    """Return the directory of the language model that was tuned; None where it was none that an engine can run."""
    target = str(result.get("target", "")).partition("?")[0]
    if target in BUILT_IN:
        return model_directory(target)
    if not target.startswith("hf:"):
        return None
    original = Path(str(result.get("model_directory") or target.removeprefix("hf:"))).expanduser()
    if (original / CONFIG).is_file():
        return original if read_json(original).get("model_type") in FAMILIES else None
    if result.get("model_type") in FAMILIES:
        raise TargetError(
            f"{directory} was tuned from the language model in {original}, which is gone: put it back there, or serve "
            f"{directory / MODEL} for single calls of the model"
        )
    return None
