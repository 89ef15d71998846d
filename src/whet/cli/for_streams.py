"""Check the options of whet tune that go with a stream, before anything heavy is imported."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from whet.errors import OptionError, StreamTarget, TargetError
from whet.models.diffusion.names import check_sampler
from whet.stream_tuner.goal import DEFAULT_BUDGET_S, StreamGoal
from whet.streamer.target_name import names_a_stream, source_kind
from whet.units import seconds
from whet.workloads import BUILTIN_STREAMS

BUDGET = f"{DEFAULT_BUDGET_S / 60:g}m"


@dataclass(frozen=True)
class ForStreams:
    """Hold the options of whet tune that go with a stream.

    Attributes:
        steps: The steps of the sampler that the stream has now.
        source: The frames that it is measured on.
        sink: The kind of video that it will write.
        frame_budget: The time that a frame may take.
        sampler: The sampler that it has now.
        prompt: The prompt.
        data: The archive with the true frames of signs-stream.
        budget: The time for all of it.
    """

    steps: int | None = None
    source: str = "synthetic"
    sink: str = "null"
    frame_budget: str | None = None
    sampler: str | None = None
    prompt: str | None = None
    data: Path | None = None
    budget: str | None = None

    def check(self, target: str) -> None:
        """Check that the options go with a target, as far as its name tells.

        Raises:
            StreamTarget: The target is a stream.
            OptionError: The target is none, and an option goes with streams alone.
        """
        if names_a_stream(target):
            raise StreamTarget(f"{target} is a stream")
        if ":" in target and not target.startswith("hf:"):
            return  # only building it tells
        if given := self._given():
            if given[0] == "--steps":
                raise OptionError(f"--steps goes with a script or a stream, and {target} is neither")
            raise OptionError(f"{given[0]} goes with a stream, and {target} is none")

    def _given(self) -> list[str]:
        empty = ForStreams()
        names = [one.name for one in dataclasses.fields(self) if one.name != "budget"]
        return [f"--{name.replace('_', '-')}" for name in names if getattr(self, name) != getattr(empty, name)]

    def check_options(self, target: str, options: Mapping[str, Any], *, resume: bool) -> None:
        """Check the options for a target that is a stream.

        Args:
            target: The stream.
            options: The options of `whet.tune`, by name.
            resume: Whether to go on with an earlier search, which a stream cannot.

        Raises:
            OptionError: An option does not go with a stream, or is out of its range.
            TargetError: There is no such source.
        """
        given = {
            f"--objective {options['objective']}": options["objective"] != "latency",
            "--allow-batch": options["allow_batch"],
            "--max-memory": options["max_memory_bytes"] is not None,
            "--storage": options["storage"] is not None,
            "--resume": resume,
        }
        for name, is_given in given.items():
            if is_given:
                raise OptionError(f"{name} does not go with a stream; a stream has --frame-budget and --max-drop")
        if self.data is not None and target not in BUILTIN_STREAMS:
            raise OptionError(f"--data goes with signs-stream; {target} is another stream")
        if self.data is not None and not self.data.is_file():
            raise TargetError(f"--data: there is no file {self.data}; give sign_digits.tar")
        if self.sink != "null" and (not self.sink.startswith(".") or "/" in self.sink):
            raise OptionError(
                f"--sink {self.sink!r}: name the kind of video that the stream will write, as .mp4, or null"
            )
        if self.sampler is not None:
            check_sampler(self.sampler)
        source_kind(self.source)
        self.goal(options, {})

    def goal(self, options: Mapping[str, Any], busy: Mapping[str, Any]) -> StreamGoal:
        """Return what tuning a stream is to reach.

        Args:
            options: The options of `whet.tune`, by name.
            busy: What to do on a busy machine, by name.

        Raises:
            OptionError: A number is out of its range.
        """
        return StreamGoal(
            frame_budget_s=None if self.frame_budget is None else seconds("--frame-budget", self.frame_budget),
            budget_s=seconds("--budget", self.budget or BUDGET),
            exclude=tuple(options["exclude"]),
            **({} if options["max_drop"] is None else {"max_drop": options["max_drop"]}),
            **busy,
        )
