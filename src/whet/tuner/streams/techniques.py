"""Define what can be changed of a stream, as techniques: recipes, studies and trials are those of whet.tuner."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

from whet.core.recipe import Step
from whet.techniques.technique import AnyTechnique, Applies
from whet.tuner.streams.settings import Setting

STILL = 0.98  # the similarity from which frames of a still scene are skipped
FULL, TENTH = "full", "tenth"  # of the allowed drop, for models that are tuned


class StreamStage(StrEnum):
    """Name the parts of a stream, in the order in which recipes name them."""

    SAMPLING = "sampling"
    FRAMES = "frames"
    MODELS = "models"
    PROCESS = "process"


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """Take other steps for each frame.

    Attributes:
        steps: The steps of the sampler.
        sampler: Its name; "" for a stream that has no choice.
    """

    steps: int
    sampler: str = ""


@dataclass(frozen=True, kw_only=True)
class Batching:
    """Have frames in flight together, or one after the other.

    Attributes:
        rolling: Whether they are in flight together.
    """

    rolling: bool


@dataclass(frozen=True, kw_only=True)
class StillFrames:
    """Repeat the answer before for frames of a still scene.

    Attributes:
        similarity: From which a frame counts as still.
    """

    similarity: float = STILL


@dataclass(frozen=True, kw_only=True)
class TunedModels:
    """Let artefacts stand for the stream's models.

    Attributes:
        drop: How much of the allowed drop their search may use: "full" or "tenth".
    """

    drop: str = FULL


@dataclass(frozen=True, kw_only=True)
class Threads:
    """Set a number of threads.

    Attributes:
        number: How many.
    """

    number: int


def _technique(name: str, stage: StreamStage, order: int, options: type, card: str) -> AnyTechnique:
    return AnyTechnique(
        name=name,
        stage=stage,
        order=order,
        card=card,
        options=options,
        check=lambda stream, machine, options: Applies(""),
        groups=frozenset({name}),
    )


STREAM_TABLE: Mapping[str, AnyTechnique] = {
    entry.name: entry
    for entry in (
        _technique("sampling", StreamStage.SAMPLING, 1, Sampling, "Take fewer steps a frame, or another sampler."),
        _technique("batching", StreamStage.SAMPLING, 2, Batching, "Have frames in flight together, or one by one."),
        _technique("still_frames", StreamStage.FRAMES, 1, StillFrames, "Repeat the answer where a scene stands still."),
        _technique("tuned_models", StreamStage.MODELS, 1, TunedModels, "Let tuned artefacts stand for the models."),
        _technique("model_threads", StreamStage.PROCESS, 1, Threads, "Set the threads that run the model."),
        _technique("codec_threads", StreamStage.PROCESS, 2, Threads, "Set the threads of a video's codec."),
    )
}


def step(name: str, **options: bool | int | float | str) -> Step:
    """Return a technique with its options, those at their default included."""
    chosen = STREAM_TABLE[name].options(**options)
    return Step(technique=name, options=vars(chosen))


def setting_of(original: Setting, steps: tuple[Step, ...]) -> Setting:
    """Return the setting that a recipe makes of a stream as it was. The models are not part of it."""
    options, codec_threads = original.options, original.codec_threads
    for one in steps:
        chosen = STREAM_TABLE[one.technique].options(**one.options)
        if isinstance(chosen, Sampling):
            options = replace(options, steps=chosen.steps, sampler=chosen.sampler or options.sampler)
        elif isinstance(chosen, Batching):
            options = replace(options, rolling=chosen.rolling)
        elif isinstance(chosen, StillFrames):
            options = replace(options, stillness=chosen.similarity)
        elif isinstance(chosen, Threads) and one.technique == "model_threads":
            options = replace(options, threads=chosen.number)
        elif isinstance(chosen, Threads):
            codec_threads = chosen.number
    return Setting(options, codec_threads)
