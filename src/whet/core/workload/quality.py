"""Measure how good a model's answers are, by the user's own score."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from whet.errors import ModelError, TargetError, foreign, named_reason, type_name

Predict = Callable[..., Any]
"""Call the model as its users do. It is the original or any variant of it."""


@dataclass(frozen=True)
class Quality:
    """Describe how to score a model's answers.

    Attributes:
        name: The name shown to people.
        measure: Takes a callable with the model's own calling convention. It returns the score as one number, or one
            score per sample, whose mean is the score: a tensor [N] or a list, such as 1.0 for each right answer and 0.0
            for each wrong one. From scores per sample, whet can compute how large a drop the samples can show.
    """

    name: str
    measure: Callable[[Predict], float | Tensor | Sequence[float]]
    higher_is_better: bool = True

    def drop(self, original: float, changed: float) -> float:
        """Return how much worse `changed` is, as a fraction of `original`: 0.01 is 1 % worse, negative is better."""
        worse = original - changed if self.higher_is_better else changed - original
        return worse / abs(original) if original else worse


@dataclass(frozen=True)
class Score:
    """Hold a measured quality: `value` is the mean of `samples`, the scores of samples, empty if they are not known."""

    value: float
    samples: tuple[float, ...] = ()


def measure_quality(quality: Quality, predict: Predict) -> float:
    """Return the score of a model or a variant as one number, with the errors of `measure_score`."""
    return measure_score(quality, predict).value


def measure_score(quality: Quality, predict: Predict) -> Score:
    """Score a model or a variant.

    Raises:
        TargetError: The user's function fails, or returns neither a number nor one score per sample.
        ModelError: The score is NaN or infinite.
    """
    with torch.no_grad(), foreign(TargetError, f"quality {quality.name!r} cannot be measured", words=named_reason):
        value: Any = quality.measure(predict)
    try:
        scores = torch.as_tensor(value, dtype=torch.float64, device="cpu").detach()
        if (scores.dim() > 1 and scores.numel() > 1) or not scores.numel():
            raise ValueError(f"its shape is {list(scores.shape)}")
    except (TypeError, ValueError, RuntimeError) as error:
        raise TargetError(
            f"quality {quality.name!r} must return a number, or one number per sample; it returned {type_name(value)}"
        ) from error
    score = float(scores.mean())
    if not math.isfinite(score):
        raise ModelError(f"quality {quality.name!r} is {score}; it must be a finite number")
    return Score(score, tuple(scores.tolist()) if scores.numel() > 1 else ())
