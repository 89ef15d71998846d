"""Show how a stream went on a terminal of 80 columns."""

from rich.console import Console
from rich.table import Table
from rich.text import Text

from whet.streamer.report import MOST_LATE, Spread, StreamReport
from whet.ui.figures import DASH, digits, duration, percent
from whet.ui.terminal_tables import plain_table

_WORDS = {
    "still": "of a still scene, repeated",
    "skipped": "repeated to keep the budget",
    "discarded": "discarded as the level changed",
    "dropped": "dropped while the model was busy",
    "late": "late",
    "not_finite": "not finite: the answer before was shown",
    "unwritten": "not written, as the sink was too slow",
}


def show_report(console: Console, report: StreamReport) -> None:
    """Show where frames came from and went, their numbers and times, and whether the budget was held."""
    console.print()
    console.print(Text.assemble(("whet stream  ", "bold"), report.target, ("  ", ""), _model(report)))
    console.print(Text.assemble(("from ", "dim"), report.source, ("  to ", "dim"), report.sink))
    console.print()
    console.print(_times(report))
    console.print()
    for line in facts(report):
        console.print(Text(line))
    if report.verdict is not None:
        console.print(Text(verdict(report), _STYLES[report.verdict]))


_STYLES = {"held": "green", "missed": "red", "inconclusive": "yellow"}


def _model(report: StreamReport) -> str:
    size = f"{report.size[0]} x {report.size[1]}"
    if report.steps is None:
        return size
    return f"{size}, {report.steps} step{'s' * (report.steps > 1)} of {report.sampler}"


def _times(report: StreamReport) -> Table:
    table = plain_table(gap=2)
    for name in ("time", "P50", "P90", "P99", "longest", "frames"):
        table.add_column(name, justify="left" if name == "time" else "right")
    rows = {
        "a frame": report.frame,
        "its model": report.model,
        "arrival to written": report.latency,
        "between frames": report.interval,
    }
    if report.repeats is not None:
        rows["the same, repeated"] = report.repeats
    for name, found in rows.items():
        table.add_row(name, *_cells(found))
    return table


def _cells(found: Spread | None) -> list[str]:
    if found is None:
        return [DASH] * 5
    times = (found.p50, found.p90, found.p99, found.longest)
    return [*(duration(time, like=found.p90) for time in times), f"{found.count:,}"]


def facts(report: StreamReport) -> list[str]:
    """Return what happened to the frames, one sentence a line."""
    counts = report.counts
    others = [f"{counts[name]:,} {words}" for name, words in _WORDS.items() if counts.get(name)]
    lines = [
        f"{counts.get('final', 0):,} final frames of {counts.get('arrived', 0):,} that arrived: "
        f"{digits(report.final_fps)} final frames/s",
    ]
    if others:
        lines.append("; ".join(others))
    if report.frame is not None and report.model is not None and report.overhead is not None:
        added, model = report.frame.p50 - report.model.p50, report.model.p50
        share = f"({percent(added / model)})" if added <= model else f"of {duration(model)}"
        found = f"{duration(added)} to the model's time {share}"
        lines.append(f"the stream adds {found if added > 0 else 'nothing measurable'}")
    if report.jitter_s is not None:
        lines.append(f"jitter {duration(report.jitter_s)} (standard deviation between frames)")
    lines += [f"from frame {frame:,}: {level}" for frame, level in report.levels[-5:]]
    lines += [f"the source: {what}, {count:,} times" for what, count in report.problems.items()]
    lines += report.notes
    if report.interrupted:
        lines.append("interrupted; what was written until then is complete")
    if report.busy:
        lines.append(f"The machine was busy: {report.busy}. These times cannot be trusted.")
    return lines


def verdict(report: StreamReport) -> str:
    """Return whether the budget was held, with the figures that say so."""
    assert report.budget_s is not None
    budget, p99 = duration(report.budget_s), duration(report.frame.p99 if report.frame else None)
    found = f"P99 {p99}, {percent(report.late_share)} late or lost"
    match report.verdict:
        case "held":
            return f"The budget of {budget} was held: {found}."
        case "missed":
            lower = " at a lower level than asked for" if report.levels else ""
            return f"The budget of {budget} was missed{lower}: {found}; at most {percent(MOST_LATE)} may be."
    why = "the machine was busy" if report.busy else "there were too few frames"
    return f"Whether the budget of {budget} holds is open, as {why}: {found}."
