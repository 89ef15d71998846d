"""List the measures of drift: what each compares, in which unit, and how much of a change counts at least."""

from dataclasses import dataclass

import numpy as np

from whet.streamer.drift.trend import Array

LAGS = 8  # the longest loop that is found, in frames
_EXTREME = 1e3  # ratios are read up to here: a black output has none


@dataclass(frozen=True)
class Measure:
    """Describe one measure.

    Attributes:
        name: Its key in reports.
        title: Its name on the page.
        is_ratio: Whether it is a ratio to the input, so that its changes are factors. Logarithms are compared then.
        least: The smallest change that counts, which rounding to 8 bits could explain: a difference, or for a ratio
            the logarithm of a factor.
    """

    name: str
    title: str
    meaning: str
    is_ratio: bool
    least: float

    def scale(self, values: Array) -> Array:
        """Return the values as they are compared: the logarithms of ratios, anything else as it is."""
        if not self.is_ratio:
            return values
        logs: Array = np.log(np.clip(values, 1 / _EXTREME, _EXTREME))
        return logs


MEASURES = (
    Measure(
        "colour", "Colour distance", "Hellinger distance of the colour histograms of output and input.", False, 0.02
    ),
    Measure(
        "own_colour",
        "Colour since the beginning",
        "How far the output's colours have moved from its own first part, less how far the input's have.",
        False,
        0.02,
    ),
    Measure("contrast", "Contrast", "Standard deviation of the output's pixels over the input's.", True, 0.02),
    Measure("sharpness", "Sharpness", "Variance of the Laplacian of the output over the input's.", True, 0.05),
    Measure("flicker", "Flicker", "Mean change between two frames that the input does not show.", False, 0.5 / 255),
    Measure(
        "repetition",
        "Novelty",
        f"How much the output differs from its last {LAGS} frames, over the input: 0 where it repeats itself.",
        True,
        0.1,
    ),
    Measure(
        "warp_error",
        "Warp error",
        "Mean square between a frame and the last one, moved along the input's flow, less the input's own.",
        False,
        (0.5 / 255) ** 2,
    ),
)
