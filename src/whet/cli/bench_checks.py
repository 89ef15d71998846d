"""What `whet bench` can know to be wrong before it measures anything."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from whet.errors import OptionError
from whet.files import check_file
from whet.guard.plot import check_plot


def check_bench(
    sizes: Mapping[str, Sequence[int]],
    *,
    files: Sequence[Path | None],
    plot: Path | None,
    processes: int | None,
    tolerance: float,
    has_gate: bool,
    gate_only: Mapping[str, bool],
) -> None:
    """Check what can be checked before the work.

    Args:
        sizes: The values of each size that is swept.
        files: Everything that is to be written.
        plot: The drawing among them.
        processes: Per point, if given.
        tolerance: The slowdown that passes.
        has_gate: Whether the sweep is judged against something.
        gate_only: Options that need verdicts, and whether each was given.

    Raises:
        OptionError: An option is out of its range, or has nothing to work on.
        OutputError: A file cannot be written.
        MissingExtra: The drawing needs a package that is not installed.
    """
    for path in files:
        check_file(path)
    if processes is not None and processes < 1:
        raise OptionError(f"--processes {processes}: each point is measured in at least one process")
    if not 0 < tolerance < 1:
        raise OptionError(f"--tolerance must lie between 0 and 1: 0.02 allows two percent; got {tolerance}")
    if not has_gate:
        for name in (name for name, is_given in gate_only.items() if is_given):
            raise OptionError(f"{name} writes verdicts, and there are none without --compare or --against")
    if plot is not None:
        check_plot(plot, sizes)
