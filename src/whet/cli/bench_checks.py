"""Check the options of `whet bench` before it measures anything."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from whet.errors import OptionError
from whet.files import check_file


def check_bench(
    sizes: Mapping[str, Sequence[int]],
    *,
    files: Sequence[Path | None],
    plot: Path | None,
    junit: Path | None,
    processes: int | None,
    tolerance: float,
    gates: Mapping[str, bool],
    github: bool,
) -> None:
    """Check what can be checked before the work.

    Args:
        sizes: The values of each size that is swept.
        files: What is to be written of a sweep.
        plot: The drawing among these files.
        junit: The file for verdicts.
        processes: Per point, if given.
        tolerance: The slowdown that passes.
        gates: Options that judge against something, and whether each was given.
        github: Whether verdicts are printed as annotations.

    Raises:
        OptionError: An option is out of its range, or has nothing to work on.
        OutputError: A file cannot be written.
        MissingExtra: The drawing needs a package that is not installed.
    """
    if all(gates.values()):
        raise OptionError("--compare holds against a file, --against against a git reference: give one of them")
    if gates["--against"] and any(path is not None for path in files):
        raise OptionError(
            "--against measures pairs for a verdict; --save, --csv and --plot belong to a sweep: "
            "leave them out, or leave out --against"
        )
    for path in (*files, junit):
        check_file(path)
    if processes is not None and processes < 1:
        raise OptionError(f"--processes {processes}: each point is measured in at least one process; give 1 or more")
    if not 0 < tolerance < 1:
        raise OptionError(f"--tolerance must lie between 0 and 1: 0.02 or 2% allows two percent; got {tolerance:g}")
    if not any(gates.values()):
        for name, is_given in (("--junit", junit is not None), ("--github", github)):
            if is_given:
                raise OptionError(
                    f"{name} writes verdicts, and there are none without --compare or --against; give one of them"
                )
    if plot is not None:
        from whet.comparison.bench.plot import check_plot  # pydantic, which help does without

        check_plot(plot, sizes)
