"""Hold what the examination of a stream found out, and the space that it gives."""

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path

from whet.measure.machine import describe
from whet.models.diffusion.few_steps import SAMPLERS
from whet.streamer.frame_skip_filter import FrameSkipFilter
from whet.streamer.module_swaps import Replacements
from whet.streamer.targets import Opened
from whet.tuner.facts import Facts
from whet.tuner.space import ApplicableTechnique, Variant
from whet.tuner.streams.clips import Clip
from whet.tuner.streams.plan import MOST_STEPS, Choices
from whet.tuner.streams.quality import Figures
from whet.tuner.streams.settings import Setting
from whet.tuner.streams.techniques import FULL, STILL, STREAM_TABLE, TENTH

_END_BYTES = 2**20
_CONFIGS = ("model_index.json", "config.json", "scheduler_config.json")  # whatever else lies there, as the search's own
_NO_TRUTH = "the true answers are not known: quality is judged beside the original's own"


class StreamFacts(Facts, frozen=True):
    """Hold what was found out about a stream. The attributes are those of `Choices`."""

    samplers: tuple[str, ...]
    names_models: bool
    still_share: float
    threads: tuple[int, ...]
    has_codec: bool

    def choices(self, original: Setting, within_s: float | None) -> Choices:
        return Choices(
            original, self.samplers, self.names_models, self.still_share, self.threads, self.has_codec, within_s
        )


def facts_of(
    name: str, opened: Opened, original: Setting, clips: Sequence[Clip], figures: Figures, *, has_codec: bool
) -> StreamFacts:
    """Return what is known of a stream once it has run on the clips to choose on, with its quality on them."""
    machine, own = describe(), opened.sampler
    samplers = ("",) if own is None else (own, *(other for other in SAMPLERS if other != own))
    threads, names_models = _threads(), bool(Replacements(opened.model.step).names)
    still = FrameSkipFilter(STILL, seed=original.options.seed)
    frames = [frame for clip in clips for frame in clip.frames]
    facts = StreamFacts(
        name=name,
        machine=machine,
        fingerprint=machine.fingerprint,
        applicable=(),
        refused=(),
        score=figures.ssim,
        weights=_digest(name, original, clips),
        unit="frames",
        quality_name="structural similarity",
        samplers=samplers,
        names_models=names_models,
        still_share=sum(still.skips(frame) for frame in frames) / len(frames),
        threads=threads,
        has_codec=has_codec,
        hints=() if all(clip.truth is not None for clip in clips) else (_NO_TRUTH,),
    )
    return facts.model_copy(update={"applicable": _applicable(facts, original)})


def _threads() -> tuple[int, ...]:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return tuple(sorted({1, max(1, cores // 2), cores}))


def _applicable(facts: StreamFacts, original: Setting) -> tuple[ApplicableTechnique, ...]:
    """Return what can be changed. The plan asks for it in its own order, so that nothing is known of its bounds."""
    options: dict[str, dict[str, tuple[bool | int | float | str, ...]]] = {}
    if original.options.steps is not None:
        most = max(MOST_STEPS, original.options.steps)
        options["sampling"] = {"steps": tuple(range(1, most + 1)), "sampler": facts.samplers}
        options["batching"] = {"rolling": (True, False)}
    options["still_frames"] = {"similarity": (STILL,)}
    if facts.names_models:
        options["tuned_models"] = {"drop": (FULL, TENTH)}
    if facts.threads:
        options["model_threads"] = {"number": facts.threads}
    if facts.threads and facts.has_codec:
        options["codec_threads"] = {"number": facts.threads}
    return tuple(
        ApplicableTechnique.of(STREAM_TABLE[name], values, "", lambda one: Variant(step=one))
        for name, values in options.items()
    )


def _digest(name: str, original: Setting, clips: Sequence[Clip]) -> str:
    """Return a digest of what a search belongs to: the stream, how it runs, and the frames that it is judged on.

    Of large files, such as weights, the size and both ends count.
    """
    found = hashlib.sha256(repr((name, original)).encode())
    place = Path(name.rpartition(":")[0] if ".py:" in name else name)
    inside = sorted(one for pattern in ("*", "*/*") for one in place.glob(pattern)) if place.is_dir() else [place]
    for path in inside:
        if path.is_file() and (path == place or path.suffix == ".safetensors" or path.name in _CONFIGS):
            with path.open("rb") as file:
                size = path.stat().st_size
                found.update(f"{path.name} {size} ".encode() + file.read(_END_BYTES))
                file.seek(max(0, size - _END_BYTES))
                found.update(file.read())
    for clip in clips:
        for frame in clip.frames:
            found.update(frame.tobytes())
    return found.hexdigest()[:16]
