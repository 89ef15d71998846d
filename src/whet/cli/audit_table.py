"""Show the result of `whet audit --measure` on a terminal."""

import textwrap

from whet_audit.formats.wording import peak
from whet_audit.report import FixTrial, Impact


def table(impact: Impact) -> str:
    """Return the table for the terminal, within 80 columns: each fix, the phases of a step, all fixes together."""
    lines = ["", f"{'fix':<42} {'faster':>7}  {'95%':<13} kept"]
    for trial in impact.trials:
        lines += _rows(trial)
    if impact.phases:
        lines += ["", f"{'phase of a step':<20} {'before':>10} {'after':>10}   ms"]
        for phase in impact.phases:
            after = "" if phase.after_ms is None else f"{phase.after_ms:.3g}"
            lines.append(f"{phase.name:<20} {phase.before_ms:>10.3g} {after:>10}")
    lines.append("")
    if impact.busy:
        lines += textwrap.wrap(f"No verdict on some fixes: {impact.busy}.", 80)
    if impact.total is None:
        word = "No fix is proved to pay" if impact.busy else "No fix paid"
        lines.append(f"{word} on this machine: a step takes {impact.before_ms:.3g} ms, as before.")
    else:
        total = impact.total
        lines.append(
            f"All kept fixes: {total.ratio:.2f}x faster a step ({total.low:.2f} to {total.high:.2f}), "
            f"{total.num_pairs} pairs of processes{'' if total.verdict == 'pass' else ', which proves nothing'}."
        )
        lines.append(f"{total.loss_note[:1].upper()}{total.loss_note[1:]}.")
        lines.append(peak(total))
    if impact.unfixed:
        lines.append(f"Found, and left to you (no automatic fix): {', '.join(impact.unfixed)}.")
    return "\n".join(lines)


def _rows(trial: FixTrial) -> list[str]:
    label = f"{trial.code} {trial.name}"[:42]
    if trial.measured is None:
        return [f"{label:<42} {'-':>7}  {'':<13} no: {trial.status}", f"    {trial.why}"]
    low, high = trial.measured.low, trial.measured.high
    kept = "yes" if trial.is_kept else f"no: {trial.status}"
    rows = [f"{label:<42} {trial.measured.ratio:>6.2f}x  {f'{low:.2f} to {high:.2f}':<13} {kept}"]
    return rows if trial.is_kept or not trial.why else [*rows, f"    {trial.why}"]
