"""Tune the models inside a stream for a recipe that asks for that, and put what was found in their place."""

import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from whet.core.artefact import load
from whet.core.recipe import Step
from whet.streamer.module_swaps import Replacements
from whet.streamer.targets import open_target
from whet.streamer.tuned import TunedModel
from whet.tuner.asked import Asked
from whet.tuner.kind import Work
from whet.tuner.streams.finals import write_stream
from whet.tuner.streams.settings import Bench, Setting
from whet.tuner.streams.submodels import JudgedStream, TunedCall, capture, tune_call
from whet.tuner.streams.techniques import TENTH, setting_of

FINALS_SHARE = 0.25  # of the budget, kept for the proof
LEAST_S = 60.0  # of the budget, from which models are tuned a second time
_MODELS_SHARE = 0.5  # of the budget, for the models
_LATER = 0.85  # of what is left before the proof, for the models at the most
_STRICTER = 0.1  # of the allowed drop, for models that are tuned a second time
_MODELS, _SEARCHES = "models", "searches"


@dataclass
class StreamModels:
    """Hold what stands for the models of a stream.

    Attributes:
        max_drop: The allowed drop of the structural similarity, as a fraction.
        directory: The output directory, in which the models' own searches lie.
        last_s: Seconds of the searches that the latest `place` had to make.
    """

    bench: Bench
    original: Setting
    asked: Asked
    max_drop: float
    work: Work
    directory: Path
    last_s: float = 0.0
    _tuned: dict[str, list[TunedCall]] = field(default_factory=dict)  # by what they were tuned for

    @staticmethod
    def are_wanted(steps: Sequence[Step]) -> bool:
        return any(one.technique == "tuned_models" for one in steps)

    def place(self, setting: Setting, steps: Sequence[Step]) -> tuple[str, ...]:
        """Let the artefacts that a recipe asks for stand for the models from now on, and return what was found.

        They are tuned first, where they are not, for the shapes that they get: in a rolling batch, for so many steps.
        """
        self.last_s = 0.0
        self.bench.models.clear()
        calls = self._calls(setting, steps)
        for call in calls:
            if call.directory is not None:
                self.bench.models[call.name] = (load(call.directory), call.shapes)
        return tuple(f"{call.name}: {call.recipe}" + (f" ({call.reason})" if call.reason else "") for call in calls)

    def _calls(self, setting: Setting, steps: Sequence[Step]) -> list[TunedCall]:
        """Return what tuning the models gave, where a recipe asks for that. A search that ended here is read again."""
        wanted = next((one for one in steps if one.technique == "tuned_models"), None)
        if wanted is None:
            return []
        options, drop = setting.options, str(wanted.options["drop"])
        key = f"{drop}-{options.steps}" if options.rolling and (options.steps or 1) > 1 else drop
        if key not in self._tuned:
            began = time.monotonic()
            left_s = self.work.budget.left_s - FINALS_SHARE * self.asked.budget_s
            # A part is left for what is decided after the models: still frames, and threads.
            budget_s = max(1.0, min(_MODELS_SHARE * self.asked.budget_s, _LATER * left_s))
            max_drop = self.max_drop * (_STRICTER if drop == TENTH else 1.0)
            self._tuned[key] = self._tuned_models(setting, self.directory / _SEARCHES / key, budget_s, max_drop)
            self.last_s = time.monotonic() - began
        return self._tuned[key]

    def _tuned_models(self, setting: Setting, out: Path, budget_s: float, max_drop: float) -> list[TunedCall]:
        """Tune the models inside the stream, one after the other, each for its share of the time."""
        opened = open_target(self.bench.target, setting.options)
        captured = capture(opened, Replacements(opened.model.step), self.bench.clips, setting.options)
        whole = sum(one.seconds for one in captured)
        # A step that is opened anew has nothing in the place of its models, and can be handed to another process.
        judged = JudgedStream(open_target(self.bench.target, setting.options), setting.options, self.bench.clips)
        return [
            tune_call(
                one,
                judged,
                out=out / _slug(one.name),
                budget_s=budget_s * one.seconds / whole,
                max_drop=max_drop,
                exclude=self.asked.exclude,
                on_busy=str(self.work.patience.on_busy),
                busy_wait_s=max(0.0, self.work.patience.left_s),
                listener=self.work.listener.tuning(one.name, budget_s * one.seconds / whole),
            )
            for one in captured
        ]

    def write(self, directory: Path, steps: Sequence[Step]) -> None:
        """Write the stream with a recipe as what `whet stream` takes, with its artefacts."""
        shutil.rmtree(directory / _MODELS, ignore_errors=True)
        setting, models = setting_of(self.original, tuple(steps)), dict[str, TunedModel]()
        for call in self._calls(setting, steps):
            if call.directory is not None:
                place = f"{_MODELS}/{_slug(call.name)}"
                shutil.copytree(call.directory, directory / place, dirs_exist_ok=True)
                models[call.name] = TunedModel(directory=place, shapes=call.shapes)
        write_stream(directory, self.bench.target, setting, models)


def _slug(name: str) -> str:
    return name.lower().replace(" ", "-")
