"""Check the options of whet tune that go with a stream, before anything heavy is imported."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from whet.errors import OptionError, TargetError
from whet.models.diffusion.names import check_sampler
from whet.streamer.target_name import source_kind
from whet.tuner.streams.goal import DEFAULT_BUDGET_S, StreamGoal
from whet.ui.units import seconds
from whet.workloads import BUILTIN_STREAMS

BUDGET = f"{DEFAULT_BUDGET_S / 60:g}m"


@dataclass(frozen=True)
class ForStreams:
    """Hold the options of whet tune that go with a stream.

    Attributes:
        steps: The steps of the sampler that the stream has now.
        source: The frames that it is measured on.
        sink: The kind of video that it will write.
        sampler: The sampler that it has now.
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

    def options(self) -> dict[str, str]:
        """Return the options that were given and that go with streams alone, with their values, as in the command."""
        empty = ForStreams()
        found = {one.name: getattr(self, one.name) for one in dataclasses.fields(self) if one.name != "budget"}
        given = {name: value for name, value in found.items() if value != getattr(empty, name)}
        return {f"--{name.replace('_', '-')}": str(value) for name, value in given.items()}

    def check_options(self, target: str, options: Mapping[str, Any]) -> None:
        """Check the options for a target that is a stream. `options` are those of `whet.tune`, by name.

        Raises:
            OptionError: An option is out of its range.
            TargetError: There is no such source.
        """
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
        """Return what tuning a stream is to reach, by options of `whet.tune`. `busy` has those for a busy machine.

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
