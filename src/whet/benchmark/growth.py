"""How cost grows with size: fitted exponents of time and memory against batch and sequence.

cost = c * batch^a * seq^b, by least squares on logarithms over all points of a sweep. 1 is linear, 2 quadratic; below
1, larger sizes use the machine better. Intervals are Student's, and as wide as the points stray from a power law.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import scipy
from pydantic import BaseModel

_CONFIDENCE = 0.95


class Growth(BaseModel):
    """ci95 is None where there are as many unknowns as points."""

    quantity: str  # "time" or "memory"
    against: str  # "batch" or "seq"
    exponent: float
    ci95: tuple[float, float] | None = None
    num_points: int


def fit_growth(quantity: str, sizes: Sequence[Mapping[str, int]], costs: Sequence[float]) -> list[Growth]:
    """The exponent against each size that takes at least two values.

    sizes[i]: of the point whose cost, positive, is costs[i]. Empty where no size varies, or sizes vary only together.
    """
    names = [name for name in ("batch", "seq") if len({size.get(name) for size in sizes}) > 1]
    names = [name for name in names if all(size.get(name) for size in sizes)]
    if not names:
        return []
    logs = np.log(np.array([[size[name] for name in names] for size in sizes], dtype=float))
    design = np.column_stack([np.ones(len(logs)), logs])
    observed = np.log(np.asarray(costs, dtype=float))
    if np.linalg.matrix_rank(design) < design.shape[1]:
        return []
    solution, *_ = np.linalg.lstsq(design, observed, rcond=None)
    freedom = len(observed) - design.shape[1]
    half = np.full(design.shape[1], np.nan)
    if freedom > 0:
        variance = float(np.sum(np.square(observed - design @ solution))) / freedom
        errors = np.sqrt(variance * np.diag(np.linalg.inv(design.T @ design)))
        half = float(scipy.special.stdtrit(freedom, (1 + _CONFIDENCE) / 2)) * errors
    return [
        Growth(
            quantity=quantity,
            against=name,
            exponent=float(solution[i]),
            ci95=(float(solution[i] - half[i]), float(solution[i] + half[i])) if freedom > 0 else None,
            num_points=len(observed),
        )
        for i, name in enumerate(names, start=1)
    ]
