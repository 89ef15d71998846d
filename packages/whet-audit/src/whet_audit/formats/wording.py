"""How places, gains and fixes are put, the same in every format."""

from __future__ import annotations

import unicodedata

from whet_audit.card import Card
from whet_audit.finding import Finding, Gain, Measured


def place(finding: Finding) -> str:
    """FILE:LINE:COLUMN, columns from 1; in a notebook FILE:cell N:LINE:COLUMN."""
    cell = "" if finding.cell is None else f":cell {finding.cell}"
    return f"{finding.path}{cell}:{finding.span.line}:{finding.span.column + 1}"


def percent(low: float, high: float) -> str:
    """A range of shares: "0–30%", "up to 0.5%", "5%"."""
    first, last = _digits(low), _digits(high)
    if first == last:
        return f"{last}%"
    return f"up to {last}%" if low == 0 else f"{first}–{last}%"


def gain(estimate: Gain) -> str:
    """What a finding may cost, without what that assumes."""
    return f"{percent(estimate.low, estimate.high)} of the step's time"


def ratio(result: Measured) -> str:
    """A measured ratio with its interval."""
    return f"{result.ratio:.2f}× ({result.low:.2f}–{result.high:.2f})"


def measured(result: Measured) -> str:
    """The same with what is to be said about it."""
    text = f"{ratio(result)}, {result.verdict}"
    return f"{text}; {result.loss_note}" if result.loss_note else text


def peak(result: Measured) -> str:
    """Peak memory before and after."""
    before, after = (num_bytes / 2**20 for num_bytes in (result.peak_bytes_before, result.peak_bytes_after))
    return f"Peak memory: {before:,.0f} MiB before, {after:,.0f} MiB after."


def fix(finding: Finding) -> str:
    """A fix and what is needed to apply it; empty where there is none."""
    if finding.fix is None:
        return ""
    if finding.cell is not None:
        how = "by hand: notebooks are not fixed automatically"
    else:
        how = "safe, --fix" if finding.fix.is_safe else "unsafe, --fix --unsafe-fixes"
    return f"{finding.fix.title} ({how})"


def remedy(finding: Finding, card: Card | None) -> str:
    """What to do, on one line: the fix, or what the rule's card says to write instead."""
    if finding.fix is not None:
        return fix(finding)
    instead = "" if card is None else " ".join(card.sections.get("Instead", "").split())
    return instead or f"--explain {finding.code}"


def one_line(text: str) -> str:
    """Without line ends and control characters, which a terminal would obey."""
    return "".join(c if c.isprintable() else " " for c in text)


def width(text: str) -> int:
    """Columns on a terminal: wide characters take two, combining ones none."""
    if text.isascii():
        return len(text)
    return sum(0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)


def _digits(share: float) -> str:
    value = 100 * share
    return f"{value:.0f}" if value >= 1 or value == 0 else f"{value:.1g}"
