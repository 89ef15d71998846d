"""Tune a stream, with the options that people give: whet.tune_stream."""

import os

from whet.measure.quiet import OnBusy, QuietWait
from whet.streamer.stream import StreamOptions
from whet.tuner.asked import Asked
from whet.tuner.driver import run
from whet.tuner.goal import Goal
from whet.tuner.kind import OtherKind
from whet.tuner.listener import Listener
from whet.tuner.result import Result
from whet.tuner.streams.clips import Clips
from whet.tuner.streams.goal import StreamGoal
from whet.tuner.streams.kind import StreamKind


def tune_stream(
    target: str,
    source: str = "synthetic",
    options: StreamOptions | None = None,
    goal: StreamGoal | None = None,
    *,
    clips: Clips | None = None,
    sink_suffix: str = "",
    out: str | os.PathLike[str] | None = None,
    storage: str | None = None,
    resume: bool = False,
    clips_name: str = "",
    listener: Listener | None = None,
) -> Result:
    """Find the fastest way to run a stream at the same quality, or the best one within a budget, and prove it.

    Args:
        target: What `whet stream` takes, but for a stream in memory.
        source: The frames that times are measured on: a video, a folder or a synthetic clip.
        options: How the stream runs now: the original.
        goal: What to reach.
        clips: Frames with their truth, for the quality. Without them, frames of the source are taken, and what the
            original makes of them counts as the truth.
        sink_suffix: The suffix of a video that is written while times are measured, as ".mp4"; "" for none.
        out: A new directory for the result; a temporary one, if not given.
        storage: An Optuna URL, for several machines of one kind to share a search.
        resume: Go on with the search that `out` or `storage` holds.
        clips_name: What the command line calls the clips, so that a command goes on with them.
        listener: Is told of the progress.

    Raises:
        WhetError: Anything that the user can mend, before anything is written.
    """
    goal, listener = goal or StreamGoal(), listener or Listener()
    asked = Asked(
        Goal(max_drop=goal.max_drop),
        goal.budget_s,
        "" if out is None else os.fspath(out),
        storage or "",
        resume,
        goal.exclude,
    )
    patience = QuietWait(OnBusy(goal.on_busy), goal.busy_wait_s, report=listener.waiting)
    options = options or StreamOptions()
    kind = StreamKind(asked, target, source, options, clips, sink_suffix, goal.frame_budget_s, clips_name)
    result = run(kind, patience, listener)
    assert not isinstance(result, OtherKind)
    return result
