"""Fit how cost grows with size: the exponents of time and memory against batch and sequence length.

The model is cost = c * batch^a * seq^b, fitted by least squares on logarithms over all points of a sweep. An exponent
of 1 is linear growth, 2 is quadratic; below 1, larger sizes use the machine better. The intervals are Student's t
intervals: they widen as the points deviate from a power law.
"""

from collections.abc import Mapping, Sequence

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
    """Fit the exponent of the costs, positive and in any unit, against each size that takes at least two values.

    Returns:
        One fit for each size. The list is empty where no size varies, or where the sizes only vary together.
    """
    import numpy as np  # reading a saved sweep needs neither
    import scipy

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
