"""Say what was found out about a script, in sentences."""

from collections.abc import Sequence

from whet.figures import num_bytes
from whet.tuner.records import TrialRecord
from whet.tuner.result import MeasuredVariant


def gain_sentence(baseline: MeasuredVariant, best: MeasuredVariant) -> str:
    """Return what the best recipe gains."""
    low, high = best.speedup_ci95
    gain = (
        f"{best.label}: {best.speedup:.2f}x ({low:.2f}–{high:.2f}), {best.throughput_per_s:.3g} in place of "
        f"{baseline.throughput_per_s:.3g} steps a second"
    )
    if best.peak_bytes and baseline.peak_bytes:
        gain += f", {num_bytes(best.peak_bytes)} in place of {num_bytes(baseline.peak_bytes)}"
    return f"{gain}."


def no_gain_sentence(records: Sequence[TrialRecord]) -> str:
    """Return why the script stays as it is."""
    done = [record for record in records if record.status == "done"]
    if not done:
        return "No technique trains as the script does. The original stays."
    best = max(done, key=lambda record: record.speedup or 0.0)
    return f"Nothing is proved to be faster; the best trial, {best.label}, showed {best.speedup or 1:.2f}x."
