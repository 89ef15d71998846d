"""Draw the pairs of runs that prove a held-out loss, as an SVG element for a page."""

import math
from collections.abc import Callable

from markupsafe import escape

from whet.techniques.proof.loss_proof import LossPair, LossProof

_WIDTH, _LEFT, _RIGHT = 440, 62, 14
_ROW, _TOP, _FOOT = 20, 24, 38

Across = Callable[[float], float]
"""Return the place on the axis for a relative difference."""


def loss_chart(proof: LossProof, *, higher_is_better: bool = False) -> str:
    """Draw the relative difference of each pair, at least one, with what is allowed, and the mean with its interval."""
    sign = -1.0 if higher_is_better else 1.0
    ends = [_difference(sign, pair.old, pair.new) for pair in proof.pairs]
    middles = [_difference(sign, pair.old_middle, pair.new_middle) for pair in proof.pairs]
    known = [value for value in (*ends, *middles, proof.drop, proof.most) if math.isfinite(value)]
    low, high = min([*known, -0.4 * proof.allowed]), max([*known, 1.3 * proof.allowed])

    def across(value: float) -> float:
        return _LEFT + 8 + (_WIDTH - _LEFT - _RIGHT - 16) * (value - low) / ((high - low) or 1.0)

    bottom = _TOP + _ROW * (len(proof.pairs) + 1)
    height = bottom + _FOOT
    drawn = [
        _line(across(0.0), bottom, "var(--muted)"),
        _text(across(0.0), bottom + 15, "0%", anchor="middle"),
        _line(across(proof.allowed), bottom, "var(--busy)", dashes="4 3"),
        _text(across(proof.allowed), 14, f"allowed {100 * proof.allowed:.3g}%", anchor="middle", colour="var(--busy)"),
    ]
    for row, (pair, end, middle) in enumerate(zip(proof.pairs, ends, middles, strict=True)):
        drawn.append(_pair(pair, end, middle, across, _TOP + _ROW * (row + 0.5)))
    drawn.append(_mean(proof, across, _TOP + _ROW * (len(proof.pairs) + 0.5)))
    drawn += [_text(_LEFT, height - 4, "← better"), _text(_WIDTH - _RIGHT, height - 4, "worse →", anchor="end")]
    box = f'viewBox="0 0 {_WIDTH} {height:g}"'
    return f'<svg class="losses" {box} font-size="12" aria-hidden="true">{"".join(drawn)}</svg>'


def _difference(sign: float, old: float, new: float) -> float:
    """Return by what part a score is worse; NaN where that cannot be said."""
    return sign * (new - old) / abs(old) if old and math.isfinite(old) and math.isfinite(new) else math.nan


def _pair(pair: LossPair, end: float, middle: float, across: Across, height: float) -> str:
    """Return a row with the pair's difference at the end and in the middle of its runs."""
    drawn = [_text(0, height + 4, f"seed {pair.seed}")]
    if math.isfinite(middle):
        drawn.append(f'<circle cx="{across(middle):.1f}" cy="{height:g}" r="4" fill="none" stroke="var(--c0)"/>')
    if math.isfinite(end):
        drawn.append(f'<circle cx="{across(end):.1f}" cy="{height:g}" r="4.5" fill="var(--c0)"/>')
    else:
        drawn.append(_text(across(0.0) + 8, height + 4, "the run failed", colour="var(--bad)"))
    return "".join(drawn)


def _mean(proof: LossProof, across: Across, height: float) -> str:
    """Return a row with the mean, and a bar from it to the upper end of its interval."""
    if not math.isfinite(proof.drop):
        return ""
    drawn = [_text(0, height + 4, "mean", colour="var(--ink)")]
    if math.isfinite(proof.most):
        x, end = across(proof.drop), across(proof.most)
        drawn.append(f'<path d="M{x:.1f} {height:g}H{end:.1f}" stroke="var(--ink)" stroke-width="2"/>')
        drawn.append(f'<path d="M{end:.1f} {height - 5:g}v10" stroke="var(--ink)" stroke-width="2"/>')
    drawn.append(f'<path d="M{across(proof.drop):.1f} {height - 6:g}l5 6-5 6-5-6z" fill="var(--ink)"/>')
    return "".join(drawn)


def _line(x: float, bottom: float, colour: str, dashes: str = "") -> str:
    style = f' stroke-dasharray="{dashes}"' if dashes else ""
    return f'<path d="M{x:.1f} {_TOP - 4}V{bottom:g}" stroke="{colour}"{style}/>'


def _text(x: float, y: float, text: str, *, anchor: str = "start", colour: str = "var(--muted)") -> str:
    # A style, since the page's own style sheet colours the text of its figures.
    return f'<text x="{x:.1f}" y="{y:g}" text-anchor="{anchor}" style="fill:{colour}">{escape(text)}</text>'
