"""Write sweeps and gates in the formats of other programs: CSV, GitHub's annotations, JUnit's XML."""

import csv
import io
from xml.etree import ElementTree

from whet.comparison.bench.report import BenchmarkVerdict, Gate, Sweep
from whet.ui.figures import percent
from whet.ui.workflow_commands import workflow_command

_COLUMNS = (
    "latency_ms",
    "p50_ms",
    "p90_ms",
    "p99_ms",
    "throughput_per_s",
    "peak_bytes",
    "working_bytes",
    "cuda_peak_bytes",
    "live_tensor_bytes",
    "watts",
    "energy_j",
    "share_of_limit",
    "num_calls",
    "status",
    "reason",
    "busy",
)


def sweep_csv(sweep: Sweep) -> str:
    """Return a sweep as CSV: a header, then one line for each point. Unknown values stay empty."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["target", "batch", "seq", *_COLUMNS])
    for point in sweep.points:
        known = point.model_dump()
        cells = [known[name] for name in _COLUMNS]
        sizes = [point.sizes.get("batch"), point.sizes.get("seq")]
        writer.writerow(["" if cell is None else cell for cell in (point.target, *sizes, *cells)])
    return text.getvalue()


def sentence(verdict: BenchmarkVerdict) -> str:
    """Return a verdict in words, with its ratio, interval and number of pairs."""
    if verdict.busy and verdict.outcome == "inconclusive":
        return f"{verdict.busy}; {verdict.num_pairs} of the pairs were quiet"
    if verdict.slowdown is None or verdict.ci95 is None:
        return verdict.reason or "not measured"
    low, high = (f"{bound - 1:+.1%}" for bound in verdict.ci95)
    change = verdict.slowdown - 1
    words = f"{percent(abs(change), decimals=1)} {'slower' if change >= 0 else 'faster'}"
    text = f"{words} (95% interval {low} to {high}, {verdict.num_pairs} pairs)"
    return "; ".join(part for part in (text, verdict.reason, verdict.busy) if part)


def github_annotations(gate: Gate) -> str:
    """Return GitHub's workflow commands: an error for FAIL, a warning for INCONCLUSIVE, a notice for anything else."""
    levels = {"pass": "notice", "fail": "error", "inconclusive": "warning"}
    lines = []
    for verdict in gate.verdicts:
        title = f"whet: {verdict.label} {verdict.outcome.upper()}"
        lines.append(workflow_command(levels[verdict.outcome], {"title": title}, sentence(verdict)))
    return "\n".join(lines)


def junit_xml(gate: Gate) -> str:
    """Return a JUnit test suite. FAIL is a failure, INCONCLUSIVE a skipped test, and what was not measured an error."""
    suite = ElementTree.Element("testsuite", name="whet bench", tests=str(len(gate.verdicts)))
    counts = {"failures": 0, "skipped": 0, "errors": 0}
    for verdict in gate.verdicts:
        case = ElementTree.SubElement(
            suite, "testcase", classname="whet.bench", name=_printable(verdict.label), time=f"{verdict.seconds:.3f}"
        )
        message = _printable(sentence(verdict))
        if verdict.outcome == "fail":
            counts["failures"] += 1
            ElementTree.SubElement(case, "failure", message=message)
        elif verdict.outcome == "inconclusive" and verdict.reason:
            counts["errors"] += 1
            ElementTree.SubElement(case, "error", message=message)
        elif verdict.outcome == "inconclusive":
            counts["skipped"] += 1
            ElementTree.SubElement(case, "skipped", message=message)
        else:
            ElementTree.SubElement(case, "system-out").text = message
    for name, count in counts.items():
        suite.set(name, str(count))
    suite.set("time", f"{gate.seconds:.3f}")
    return ElementTree.tostring(suite, encoding="unicode", xml_declaration=True) + "\n"


def _printable(text: str) -> str:
    """Replace the control characters that XML cannot hold with question marks."""
    return "".join(c if c.isprintable() or c in "\n\t" else "?" for c in text)
