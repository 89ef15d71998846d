"""Read and write what whet tune made of a stream: its settings, and what stands for its models, in one directory."""

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from whet.core.artefact import load
from whet.errors import OptionError, TargetError, WhetError, reason
from whet.files import write_whole
from whet.models.diffusion.guidance import Guidance
from whet.streamer.module_swaps import Shapes
from whet.streamer.target_name import TUNED_FILE, is_tuned

FILE = TUNED_FILE
FORMAT = 1


class TunedModel(BaseModel):
    """Describe what stands for one of a stream's models: an artefact below the tuned stream's directory."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    directory: str
    shapes: Shapes


class TunedStream(BaseModel):
    """Describe a tuned stream as its file does.

    Attributes:
        target: The stream that was tuned, as `whet stream` takes it.
        settings: The attributes of `StreamOptions` that tuning fixed, by name, those at their default included.
        models: What stands for the stream's models, by the name of the call.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: int = FORMAT
    target: str
    settings: dict[str, Any]
    models: dict[str, TunedModel] = {}


OF_MODEL: Mapping[str, str] = MappingProxyType(
    {
        "steps": "--steps",
        "sampler": "--sampler",
        "strength": "--strength",
        "guidance": "--guidance",
        "rolling": "--no-rolling",
        "device": "--device",
        "dtype": "--dtype",
        "graphs": "--graphs",
        "backend": "--backend",
    }
)
"""The settings of a diffusion model without its prompt, with the command-line options that set them."""

FIXED: Mapping[str, str] = MappingProxyType(
    {
        "size": "--size",
        **OF_MODEL,
        "stillness": "--skip-still",
        "threads": "--threads",
        "codec_threads": "--codec-threads",
    }
)
"""The settings that tuning fixes, with the command-line options that set them."""


def given(options: Any, names: Mapping[str, str]) -> list[str]:
    """Return which of some command-line options were given, by the attributes that they set."""
    empty = type(options)()
    return [option for name, option in names.items() if getattr(options, name) != getattr(empty, name)]


def settings_of(options: Any) -> dict[str, Any]:
    """Return the settings of `StreamOptions` that tuning fixes, as JSON holds them."""
    found = {name: getattr(options, name) for name in FIXED if hasattr(options, name)}
    return {**found, "guidance": dataclasses.asdict(options.guidance)}


def write_tuned(directory: Path, tuned: TunedStream) -> None:
    """Write the file of a tuned stream. The artefacts lie in the directory already."""
    write_whole(directory / FILE, json.dumps(tuned.model_dump(mode="json"), indent=1) + "\n")


def read_tuned(directory: Path) -> TunedStream:
    """Read the file of a tuned stream.

    Raises:
        TargetError: It cannot be read, or is of another version.
    """
    try:
        found = TunedStream.model_validate_json((directory / FILE).read_text(encoding="utf-8"))
        if found.format != FORMAT:
            raise ValueError(f"its format is {found.format}, and this whet reads {FORMAT}")
        if unknown := set(found.settings) - set(FIXED):
            raise ValueError(f"it has settings that this whet does not know: {', '.join(sorted(unknown))}")
        place = directory.resolve()
        if not all((place / model.directory).resolve().is_relative_to(place) for model in found.models.values()):
            raise ValueError("an artefact lies outside of the directory")
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise TargetError(f"{directory / FILE} is damaged: {where}: {first['msg']}; tune the stream again") from error
    except (OSError, ValueError) as error:
        raise TargetError(f"{directory / FILE} cannot be used: {reason(error)}; tune the stream again") from error
    return found


def threads_of_codec(target: str, given: int | None) -> int | None:
    """Return the threads of a video's decoder and encoder: as given, or as tuning found; None for their own.

    Raises:
        OptionError: The number is not above 0, or a tuned stream has another one.
    """
    if given is not None and given < 1:
        raise OptionError(f"--codec-threads is at least 1; got {given}")
    directory = Path(target).expanduser()
    if not is_tuned(directory):
        return given
    if given is not None:
        raise OptionError(f"{directory} was tuned, which fixes --codec-threads; leave it out")
    threads = read_tuned(directory).settings.get("codec_threads")
    return threads if isinstance(threads, int) else None


def with_settings(directory: Path, tuned: TunedStream, options: Any) -> Any:
    """Return a stream's options with the settings that tuning found.

    Args:
        directory: The tuned stream's directory, for messages.
        options: The user's `ModelOptions`, or `StreamOptions`.

    Raises:
        OptionError: The user gave another value for one of them.
    """
    if found := given(options, {name: option for name, option in FIXED.items() if hasattr(options, name)}):
        raise OptionError(
            f"{directory} was tuned, which fixes {found[0]}; leave it out, or stream {tuned.target} itself"
        )
    settings = {name: value for name, value in tuned.settings.items() if hasattr(options, name)}
    try:
        if "guidance" in settings:
            settings["guidance"] = Guidance(**settings["guidance"])
        if settings.get("size") is not None:
            settings["size"] = tuple(settings["size"])
        return dataclasses.replace(options, **settings)
    except TypeError as error:
        raise TargetError(f"{directory / FILE} is damaged: {error}; tune the stream again") from error


def load_model(directory: Path, model: TunedModel) -> Any:
    """Return what stands for a model.

    Raises:
        TargetError: It cannot be loaded here.
    """
    try:
        return load(directory / model.directory)
    except WhetError as error:
        raise TargetError(f"{directory / model.directory} cannot be used here: {error}") from error
