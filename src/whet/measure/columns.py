"""Find the column of an output whose error is largest for its own spread.

The scale of an output may vary along an axis: a detector's boxes of 0 to 320 lie beside scores of 0 to 1 in one tensor,
and a few dimensions of an embedding are a hundred times larger than the others. The error of the whole tensor then says
nothing of the small columns. A column holds all values at one index of an axis, over the batches and the other axes.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from whet.ui.figures import percent

ROUNDING = 1e-6  # of a value's size: what float32 in another order of sums changes it by
SLACK = 10.0
"""How many times as far from the original as a whole output a column may be.

Where nothing is lost, the worst column of docs-gpt, docs-ssm, docs-encoder, digits-cnn and a small BERT in int8 is 2 to
12 times as far as their whole output. At a limit of 0.01, a column's error may be 0.45 of its spread. A column that is
lost has an error of at least its spread.
"""
_CHANCE = 1e-3  # that the true spread of any column of an axis is larger than is assumed from its values
_STEPS = 60  # of the fixed point in `_least_spread`; each brings at least a digit where that matters
_Z = 4.0  # standard errors below a column's share of unequal whole numbers


@dataclass(frozen=True)
class Column:
    """Describe one column of an output.

    Attributes:
        axis: The axis along which the columns lie.
        size: How many columns there are.
        error: The root mean square of the variant's error; for whole numbers, the share that differs.
        spread: The standard deviation of the original's values, or their size where they are constant.
        distance: Half the squared error over the squared spread, less what few values explain, over
            `SLACK`. It has the limits of an output's distance.
    """

    axis: int
    index: int
    size: int
    error: float
    spread: float
    distance: float

    @property
    def words(self) -> str:
        """Return the column's name for people, with its error."""
        what = (
            f"error {self.error:.2g} at a spread of {self.spread:.2g}"
            if self.spread
            else f"{percent(self.error, decimals=0)} differ"
        )
        return f"column {self.index} of {self.size} along axis {self.axis}: {what}"


class _AxisSums:
    """Keep the sums of each column of one axis, float64 [columns]."""

    def __init__(self, size: int) -> None:
        self.num, self.a, self.aa, self.dd = torch.zeros(4, size, dtype=torch.float64)

    def add(self, axis: int, num: Tensor | float, *sums: Tensor) -> None:
        """Add one batch: the values of each column, or how many each has, and the tensors to be summed."""
        others = [dim for dim in range(sums[0].dim()) if dim != axis]
        self.num += num.sum(others) if isinstance(num, Tensor) else num
        for total, values in zip((self.a, self.aa, self.dd), sums, strict=True):
            total += values.sum(others).cpu()


class ColumnSums:
    """Keep the sums of the columns of every axis over all batches. An axis whose size varies has no columns."""

    def __init__(self, *, is_batched: bool = True) -> None:
        self._first = 1 if is_batched else 0
        self._shape: tuple[int, ...] | None = None
        self._axes: dict[int, _AxisSums] = {}

    def add(self, a: Tensor, squares: Tensor, errors: Tensor, places: Tensor | None) -> None:
        """Add one batch.

        Args:
            a: The original's values; 0 where they do not count.
            errors: The squared errors of the variant; for whole numbers, whether it differs.
            places: Which values count; None for all.
        """
        shape = tuple(a.shape)
        if self._shape is None:
            self._shape = shape
            if len(shape) > 1:
                self._axes = {i: _AxisSums(n) for i, n in enumerate(shape) if i >= self._first and n > 1}
        for axis in [i for i in self._axes if len(shape) != len(self._shape) or shape[i] != self._shape[i]]:
            del self._axes[axis]
        for axis, sums in self._axes.items():
            num = a.numel() / shape[axis] if places is None else places.double().cpu()
            sums.add(axis, num, a, squares, errors)

    def worst(self, rounding: float | None) -> Column | None:
        """Return the column of the largest distance; None without columns.

        `rounding` is what rounding to the original's dtype changes a value by, as a fraction; None for whole numbers.
        """
        axes = self._axes.items()
        found = [_unequal(*axis) if rounding is None else _far(*axis, max(ROUNDING, rounding)) for axis in axes]
        return max(found, key=lambda column: column.distance, default=None)


def _far(axis: int, sums: _AxisSums, rounding: float) -> Column:
    """Return the column of an axis whose error is largest for its spread.

    A constant column, whose spread is rounding, is held against its size. No column is blamed for an error that float32
    rounding of the largest column explains, since it may be a difference of such values.
    """
    num = sums.num.clamp_min(1.0)
    mean_square, error = sums.aa / num, sums.dd / num
    variance = (mean_square - (sums.a / num).square()).clamp_min(0.0)
    own = rounding**2 * mean_square
    scale = torch.where(variance <= own, mean_square, variance)
    counts = (error > own.clamp_min(ROUNDING**2 * float(mean_square.max()))) & (scale > 0)
    allowed = _least_spread(num - 1, _CHANCE / len(num))
    distances = torch.where(counts, 0.5 * error * allowed / scale, 0.0) / SLACK
    index = int(distances.argmax())
    return Column(
        axis=axis,
        index=index,
        size=len(num),
        error=math.sqrt(float(error[index])),
        spread=math.sqrt(float(scale[index])),
        distance=float(distances[index]),
    )


def _least_spread(freedom: Tensor, chance: float) -> Tensor:
    """Return which share of the true variance a sample variance has at least, but for a small chance.

    It is Chernoff's bound of the chi-squared distribution: the share x with (x exp(1 - x)) ** (freedom / 2) = chance.

    Args:
        freedom: The degrees of freedom, one less than the values; 0 gives 0.
        chance: The chance that the share is smaller.
    """
    power = (2 * math.log(chance) / freedom.clamp_min(1e-9)).exp()
    share = torch.zeros_like(power)
    for _ in range(_STEPS):
        share = power * (share - 1).exp()
    return share


def _unequal(axis: int, sums: _AxisSums) -> Column:
    """Return the column of whole numbers of which the largest share differs, by Wilson's lower limit of it."""
    num = sums.num.clamp_min(1.0)
    share = sums.dd / num
    centre = share + _Z**2 / (2 * num)
    margin = _Z * (share * (1 - share) / num + (_Z / (2 * num)).square()).sqrt()
    least = ((centre - margin) / (1 + _Z**2 / num)).clamp_min(0.0)
    index = int(least.argmax())
    return Column(
        axis=axis,
        index=index,
        size=len(num),
        error=float(share[index]),
        spread=0.0,
        distance=float(least[index]) / SLACK,
    )
