"""Load the models that a server is to serve, once all directories are checked."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from whet.core.artefact import load, read_manifest, set_threads
from whet.core.recipe import Recipe
from whet.errors import OptionError
from whet.models.options import Dtype, WeightBits
from whet.server.artefacts.directories import ArtefactSource, EngineSource, Source, source_of
from whet.server.artefacts.served_artefact import MAX_WAITING, ServedArtefact
from whet.server.artefacts.text_encoder import text_encoder
from whet.server.asked import Asked
from whet.server.engine import Engine
from whet.server.http.models import Models
from whet.server.http.settings import Settings
from whet.server.options import EngineOptions
from whet.server.recipe_options import RecipeOptions, from_recipe
from whet.server.text import Tokenizer
from whet.workloads.model_directory import model_directory

Names = tuple[str, ...]


@dataclass(frozen=True)
class Given:
    """Hold what was asked for beside the directories, as the arguments of `whet.serve` explain it.

    `max_waiting_bytes` says how many bytes of an artefact's samples may wait; None for any.
    """

    options: EngineOptions
    recipe: str | os.PathLike[str] | Recipe | None = None
    dtype: Dtype | None = None
    weights: WeightBits | None = None
    draft: Path | None = None
    libraries: tuple[str | os.PathLike[str], ...] = ()
    max_waiting: int = MAX_WAITING
    max_waiting_bytes: int | None = None


def given_of(asked: Asked, settings: Settings) -> Given:
    """Return what was asked for beside the directories.

    Raises:
        TargetError: There is no draft model of that name.
    """
    return Given(
        asked.options,
        asked.recipe,
        asked.dtype,
        asked.weights,
        None if asked.draft is None else model_directory(asked.draft),
        tuple(asked.libraries),
        max_waiting=MAX_WAITING if asked.max_waiting is None else max(1, asked.max_waiting),
        max_waiting_bytes=settings.max_pending_bytes,
    )


def checked_sources(
    model: str | os.PathLike[str] | None, models: Mapping[str, str | os.PathLike[str]], names: Sequence[str] = ()
) -> dict[Names, Source]:
    """Return what each directory holds, by the names that requests may call it by.

    `model` is called by `names`, or without these by its directory's; the others are called by their keys in `models`.

    Raises:
        OptionError: There is no model, or two have one name.
        TargetError: A directory holds no model.
        ArtefactError: A directory holds a damaged artefact.
    """
    sources: dict[Names, Source] = {}
    if model is not None:
        source = source_of(os.fspath(model))
        sources[tuple(names) or (source.name,)] = source
    for name, directory in models.items():
        sources[(name,)] = source_of(os.fspath(directory))
    if not sources:
        raise OptionError("there is no model to serve: give a directory, or --model NAME=DIR")
    known = [name for served in sources for name in served]
    if len(sources) < len(models) + (model is not None) or len(set(known)) < len(known):
        raise OptionError(f"two models have one name ({', '.join(known)}): each needs its own")
    return sources


@contextmanager
def opened(sources: Mapping[Names, Source], given: Given, note: Callable[[str], None]) -> Iterator[Models]:
    """Load all models, for the time of the block. Raises what loading them raises."""
    engines = {names: source for names, source in sources.items() if isinstance(source, EngineSource)}
    _check_fit(engines, given)
    _note_threads(sources, note)
    tokenizers = {names: Tokenizer(source.directory) for names, source in engines.items()}
    with ExitStack() as stack:
        artefacts, encoders = {}, {}
        for names, source in sources.items():
            if isinstance(source, ArtefactSource):
                artefact = ServedArtefact(
                    names[0],
                    load(source.directory, libraries=given.libraries),
                    max_waiting=given.max_waiting,
                    max_waiting_bytes=given.max_waiting_bytes,
                )
                stack.callback(artefact.close)
                artefacts.update(dict.fromkeys(names, artefact))
                encoders.update(dict.fromkeys(names, text_encoder(artefact, source.directory)))
                if artefact.why_alone:
                    note(f"{names[0]} runs one request at a time: {artefact.why_alone}")
        loaded = {}
        for names, source in engines.items():
            options = options_of(source, given, note)
            engine = Engine(source.directory, options, tokenizer=tokenizers[names], draft=given.draft)
            loaded[names] = stack.enter_context(engine)
        yield Models(loaded, artefacts, encoders)


def _check_fit(engines: Mapping[Names, EngineSource], given: Given) -> None:
    """Raise OptionError for an option of engines where there is none, or where it can be meant for one alone."""
    for name in ("recipe", "dtype", "weights", "draft"):
        if getattr(given, name) is not None and not engines:
            raise OptionError(f"--{name} is for language models, and none is served: what was tuned runs as it is")
    for name in ("recipe", "draft"):
        if getattr(given, name) is not None and len(engines) > 1:
            raise OptionError(f"--{name} is for one language model, and {len(engines)} are served")


def _note_threads(sources: Mapping[Names, Source], note: Callable[[str], None]) -> None:
    """Note that artefacts were tuned with different numbers of threads: PyTorch has one number for the process."""
    found = {}
    for names, source in sources.items():
        if isinstance(source, ArtefactSource) and (number := read_manifest(source.directory).num_threads) is not None:
            found[names[0]] = number
    if len(set(found.values())) > 1:
        told = ", ".join(f"{name} with {number}" for name, number in found.items())
        note(f"models were tuned with different numbers of threads ({told}): the last one's holds for all")


def options_of(source: EngineSource, given: Given, note: Callable[[str], None]) -> EngineOptions:
    """Return the options of a model's engine, with what a recipe states, and note the steps that are not followed."""
    recipe = source.recipe if given.recipe is None else given.recipe
    found = RecipeOptions() if recipe is None else _followed(recipe, note)
    options = given.options
    return replace(
        options,
        dtype=given.dtype or found.dtype or options.dtype,
        weights=given.weights or found.weights or options.weights,
    )


def _followed(recipe: str | os.PathLike[str] | Recipe, note: Callable[[str], None]) -> RecipeOptions:
    """Return what of a recipe is followed, and note the rest."""
    read = recipe if isinstance(recipe, Recipe) else Recipe.read(Path(recipe))
    found = from_recipe(read.checked_for("inference"))
    for line in found.left_out:
        note(line)
    if (found.dtype, found.weights, found.num_threads) == (None, None, None):
        what = "the recipe" if isinstance(recipe, Recipe) else os.fspath(recipe)
        note(f"the engine can follow no step of {what}; --weights int8 or int4 makes it faster")
    if found.num_threads is not None:
        set_threads(found.num_threads)
    return found
