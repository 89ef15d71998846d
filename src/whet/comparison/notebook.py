"""Show a claim in a notebook."""

import statistics

from whet.comparison.claim import Claim
from whet.ui import html_tables
from whet.ui.figures import DASH, digits, duration


def claim_html(claim: Claim) -> str:
    """Return the verdict, the ratio with its interval, and the times of each pair's sides."""
    heading = claim.verdict.upper()
    if claim.ratio is not None:
        heading += f": the new variant is {digits(claim.ratio)} times as fast as the old one"
    rows = [
        ("ratio (old time / new time)", digits(claim.ratio)),
        ("95% interval", DASH if claim.ci95 is None else "–".join(map(digits, claim.ci95))),
        ("p-value", DASH if claim.p_value is None else f"{claim.p_value:.2g}"),
        ("ratio by chance alone", digits(claim.noise)),
        ("pairs", f"{claim.num_pairs:,}"),
        ("old, median of the pairs", duration(_median(claim.old_s))),
        ("new, median of the pairs", duration(_median(claim.new_s))),
    ]
    failed = f"{claim.failed}: {claim.failure}" if claim.failure else ""
    busy = f"The machine was busy: {claim.busy}." if claim.busy else ""
    remarks = [text for text in (failed, claim.doubt, busy) if text]
    return html_tables.block(
        html_tables.paragraph(heading, is_strong=True),
        html_tables.table((), rows, numbers=(1,)),
        html_tables.paragraph("\n".join(remarks)),
    )


def _median(seconds: tuple[float, ...]) -> float | None:
    return statistics.median(seconds) if seconds else None
