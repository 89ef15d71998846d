"""Find the range of an activation that its 256 int8 levels should cover, while calibration batches pass.

minmax       all values seen: no value is clipped, but one outlier makes every level coarse
percentile   all but the outermost 0.01 % at each end
entropy      the clipping whose quantised histogram diverges least from the one seen (Kullback-Leibler)

The observers follow torchao's protocol (with_args, calculate_qparams, the attributes of a uniform quantiser), so that
prepare_pt2e can insert them. They do not import torchao.

Source: Migacz, "8-bit Inference with TensorRT", GTC 2017 (entropy); Wu et al., 2020 (arXiv:2004.09602), section 5.
"""

from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

NUM_LEVELS = 256
_NUM_BINS = 8192
_PERCENTILE = 0.9999
_NUM_CLIPPINGS = 64
_FULL_BIN = 4.0  # values in a bin, on average: with fewer the shape is noise
_SMALLEST_SCALE = torch.finfo(torch.float32).tiny * NUM_LEVELS


class MinMaxObserver(nn.Module):
    """Covers all values seen. The base of the others: they change `covered`."""

    dtype = torch.uint8
    qscheme = torch.per_tensor_affine
    is_dynamic = False

    def __init__(self, *, quant_min: int = 0, quant_max: int = 255, **described: Any) -> None:
        """Make an observer that has seen nothing.

        Args:
            quant_max: The highest level; 127 on chips whose int8 products saturate.
            described: Further arguments of torchao's protocol. They only repeat the class's attributes.
        """
        super().__init__()
        self.quant_min = quant_min
        self.quant_max = quant_max
        self.low = float("inf")
        self.high = float("-inf")

    @classmethod
    def with_args(cls, **kwargs: Any) -> "partial[MinMaxObserver]":
        """Return a factory of observers with these arguments, as torchao's protocol asks for."""
        return partial(cls, **kwargs)

    def forward(self, x: Tensor) -> Tensor:
        """Record a tensor's values, and return it unchanged. Infinities (masks) and NaN do not count."""
        values = x.detach().flatten().float()
        if values.numel():
            low, high = (float(end) for end in values.aminmax())
            if not (np.isfinite(low) and np.isfinite(high)):
                values = values[values.isfinite()]
                low, high = (float(end) for end in values.aminmax()) if values.numel() else (0.0, 0.0)
            self.low, self.high = min(self.low, low), max(self.high, high)
            self.count(values)
        return x

    def count(self, values: Tensor) -> None:
        """Count the values. Observers that need more than the range override this."""

    def covered(self) -> tuple[float, float]:
        """Return the range that the levels should cover."""
        return self.low, self.high

    def calculate_qparams(self) -> tuple[Tensor, Tensor]:
        """(scale, zero_point): x is about (level - zero_point) * scale. Zero is a level, as padding needs it."""
        low, high = self.covered() if self.low <= self.high else (0.0, 0.0)
        low, high = min(low, 0.0), max(high, 0.0)
        scale = max((high - low) / (self.quant_max - self.quant_min), _SMALLEST_SCALE) if high > low else 1.0
        zero_point = min(max(self.quant_min - round(low / scale), self.quant_min), self.quant_max)
        return torch.tensor([scale]), torch.tensor([zero_point])


class HistogramObserver(MinMaxObserver):
    """Counts values in equal bins over [-reach, reach].

    Where a value lies beyond, the reach doubles and bins merge in pairs: every count stays exact.
    """

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.reach = 0.0
        self.counts: NDArray[np.float64] = np.zeros(_NUM_BINS)

    def count(self, values: Tensor) -> None:
        largest = max(-self.low, self.high)
        if largest == 0.0:
            largest = 1.0  # nothing but zeros so far
        if self.reach == 0.0:
            self.reach = float(2.0 ** np.ceil(np.log2(largest)))
        while self.reach < largest:
            self.reach *= 2.0
            quarter = _NUM_BINS // 4
            self.counts = np.pad(self.counts.reshape(-1, 2).sum(axis=1), quarter)
        self.counts += torch.histc(values, _NUM_BINS, -self.reach, self.reach).double().numpy()

    @property
    def edges(self) -> NDArray[np.float64]:
        return np.linspace(-self.reach, self.reach, _NUM_BINS + 1)


class PercentileObserver(HistogramObserver):
    """Leaves the outermost 0.01 % at each end to be clipped."""

    def covered(self) -> tuple[float, float]:
        below = np.cumsum(self.counts) / self.counts.sum()
        first = int(np.searchsorted(below, 1.0 - _PERCENTILE, side="right"))
        last = int(np.searchsorted(below, _PERCENTILE, side="left"))
        return max(self.low, float(self.edges[first])), min(self.high, float(self.edges[last + 1]))


class EntropyObserver(HistogramObserver):
    """Chooses the clipping that keeps the distribution's shape best. Zeros don't count: they are exact in any range."""

    def count(self, values: Tensor) -> None:
        super().count(values[values != 0])

    def covered(self) -> tuple[float, float]:
        counts, edges, first, last = self._filled()
        centre = counts.size // 2
        widest = max(centre - first, last - centre)
        best, best_divergence = (self.low, self.high), np.inf
        for bins in np.unique(np.linspace(widest / _NUM_CLIPPINGS, widest, _NUM_CLIPPINGS).astype(int)):
            start, stop = max(first, centre - int(bins)), min(last, centre + int(bins))
            if stop - start < NUM_LEVELS:
                continue
            found = divergence(counts, start, stop)
            if found <= best_divergence:  # of equals the widest
                best = max(self.low, float(edges[start])), min(self.high, float(edges[stop]))
                best_divergence = found
        return best

    def _filled(self) -> tuple[NDArray[np.float64], NDArray[np.float64], int, int]:
        """(counts, edges, first bin in use, first beyond), with bins merged in pairs until they hold enough values."""
        counts, edges = self.counts, self.edges
        while True:
            first = max(int(np.searchsorted(edges, self.low, side="right")) - 1, 0)
            last = int(np.searchsorted(edges, self.high, side="left"))
            if counts.sum() >= _FULL_BIN * (last - first) or last - first < 4 * NUM_LEVELS:
                return counts, edges, first, last
            counts, edges = counts.reshape(-1, 2).sum(axis=1), edges[::2]


def divergence(counts: NDArray[np.float64], start: int, stop: int) -> float:
    """Return the divergence of a histogram from its quantised form with bins outside [start, stop) clipped, in nats.

    The reference keeps clipped values in its outermost bins. The quantised form has one count for each of 256 levels,
    spread evenly over the bins that are not empty.
    """
    inside = counts[start:stop]
    reference = inside.copy()
    reference[0] += counts[:start].sum()
    reference[-1] += counts[stop:].sum()
    level = np.arange(stop - start) * NUM_LEVELS // (stop - start)
    filled = reference > 0
    totals = np.bincount(level, weights=inside, minlength=NUM_LEVELS)
    num_filled = np.bincount(level, weights=filled, minlength=NUM_LEVELS)
    quantised = np.where(filled, (totals / np.maximum(num_filled, 1.0))[level], 0.0)
    if reference.sum() == 0.0 or quantised.sum() == 0.0:
        return float("inf")
    p = reference[filled] / reference.sum()
    q = np.maximum(quantised[filled] / quantised.sum(), 1e-12)
    return float((p * np.log(p / q)).sum())


OBSERVERS: dict[str, type[MinMaxObserver]] = {
    "minmax": MinMaxObserver,
    "percentile": PercentileObserver,
    "entropy": EntropyObserver,
}
