"""Run one step of a sampler for each row of a batch, where each row may be at another step.

All samplers are the same sums with other coefficients. For a sample x, the model's output o, noise e and the previous
estimate h of the clean sample:

    estimate = clean_sample x + clean_output o              limited to ±clip
    clean    = boundary_clean estimate + boundary_sample x  if the sampler has a boundary condition
    mean     = clean + next_history (clean - h)             if the sampler looks back
    next     = next_clean mean + next_sample x + next_output o + next_noise e

A sampler without a term has None in its place. Shapes: n steps of a sampler, b rows of a batch.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor

from whet.errors import OptionError


@dataclass(frozen=True, kw_only=True, eq=False)
class Rows:
    """Hold the coefficients of one step for each row of a batch.

    Attributes:
        timesteps: What the model is told of the noise level, [b]: whole timesteps in int64, or floats.
        signal: The weight of a clean sample as it enters this step, [b].
        noise: The weight of its noise as it enters this step, [b].
        input_scale: By what the sample is multiplied for the model, [b].
        clean_sample: The weight of the sample in the first estimate of the clean sample, [b].
        clean_output: The weight of the model's output in that estimate, [b].
        boundary_clean: The weight of that estimate in the clean sample, [b].
        boundary_sample: The weight of the sample in the clean sample, [b].
        next_clean: The weight of the clean sample in the next sample, [b].
        next_sample: The weight of the sample in the next sample, [b].
        next_output: The weight of the model's output in the next sample, [b].
        next_noise: The weight of fresh noise in the next sample, [b].
        next_history: By how much of its last change the clean sample is extrapolated, [b]. A row with 0 has no history.
        clip: The largest magnitude of the first estimate; None does not limit it.
    """

    timesteps: Tensor
    signal: Tensor
    noise: Tensor
    input_scale: Tensor | None = None
    clean_sample: Tensor | None = None
    clean_output: Tensor | None = None
    boundary_clean: Tensor | None = None
    boundary_sample: Tensor | None = None
    next_clean: Tensor | None = None
    next_sample: Tensor | None = None
    next_output: Tensor | None = None
    next_noise: Tensor | None = None
    next_history: Tensor | None = None
    clip: float | None = None

    def __len__(self) -> int:
        return self.timesteps.shape[0]


@dataclass(frozen=True, eq=False)
class Steps:
    """Hold all steps of a sampler, from the noisiest to the cleanest.

    Attributes:
        prediction: What the model's output is: "epsilon", "v", "sample", "flow" or "consistency".
        rows: The coefficients of the n steps, each [n].
    """

    name: str
    prediction: str
    rows: Rows

    @property
    def timesteps(self) -> Tensor:
        """Return what the model is told of the noise level at each step, [n]."""
        return self.rows.timesteps

    @property
    def signal(self) -> Tensor:
        """Return the weight of a clean sample as it enters each step, [n]."""
        return self.rows.signal

    @property
    def noise(self) -> Tensor:
        """Return the weight of the noise of a sample as it enters each step, [n]."""
        return self.rows.noise

    @property
    def needs_noise(self) -> bool:
        """Return whether a step adds fresh noise. One alone, or the last one, never does."""
        return self.rows.next_noise is not None

    @property
    def needs_history(self) -> bool:
        """Return whether a step uses the estimate of the step before it."""
        return self.rows.next_history is not None

    def at(self, slots: Tensor) -> Rows:
        """Return the coefficients of several steps, one for each row of a batch.

        Args:
            slots: The index of each row's step, int64 [b], on the device of the steps. 0 is the noisiest step.

        Raises:
            OptionError: The indices are no tensor of int64 with one dimension.
        """
        if slots.dim() != 1 or slots.dtype != torch.int64:
            raise OptionError(f"slots takes int64 of shape [b]; got {slots.dtype} of shape {list(slots.shape)}")
        return _mapped(self.rows, lambda _, tensor: tensor[slots])

    def to(self, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> "Steps":
        """Return the same steps on a device, with coefficients of a floating-point type; None keeps what they have.

        Steps are built on the CPU in float64. `step` casts coefficients to the type that it computes in, so a type
        given here saves that cast. Timesteps with fractions keep at least float32.
        """

        def moved(name: str, tensor: Tensor) -> Tensor:
            if name != "timesteps" or dtype is None:
                return tensor.to(device, dtype)
            return tensor.to(device, torch.promote_types(dtype, torch.float32) if tensor.is_floating_point() else None)

        return replace(self, rows=_mapped(self.rows, moved))

    def __len__(self) -> int:
        return len(self.rows)


def noised(rows: Rows, clean: Tensor, noise: Tensor) -> Tensor:
    """Return clean samples with as much noise as they have when they enter the rows' steps.

    Args:
        rows: The steps that the samples enter, [b].
        clean: Clean samples, [b, ...].
        noise: Noise of the standard normal distribution, of the same shape.

    Raises:
        OptionError: The shapes do not fit.
    """
    _check_shapes(rows, clean, noise=noise)
    wide = _wide(clean)
    return _sum([(rows.signal, clean.to(wide)), (rows.noise, noise.to(wide))]).to(clean.dtype)


def model_input(rows: Rows, sample: Tensor) -> Tensor:
    """Return the samples as the model takes them. Samplers in the scale of σ divide them by their standard deviation.

    Args:
        rows: The steps of the samples, [b].
        sample: The samples, [b, ...].

    Raises:
        OptionError: The shapes do not fit.
    """
    _check_shapes(rows, sample)
    if rows.input_scale is None:
        return sample
    return _sum([(rows.input_scale, sample.to(_wide(sample)))]).to(sample.dtype)


def step(
    rows: Rows, sample: Tensor, output: Tensor, noise: Tensor | None = None, history: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Run one step for each row.

    The arithmetic is that of float32, or of the samples' type if that is wider. Results have the samples' type. No
    value of a tensor decides what is computed, so the function can be compiled and exported as one graph.

    Args:
        rows: The steps of the samples, [b].
        sample: The samples, [b, ...].
        output: The model's outputs for `model_input(rows, sample)`, of the same shape.
        noise: Fresh noise of the standard normal distribution, of the same shape, where a step needs it.
        history: What the step before returned for the same samples, of the same shape, where a step uses it. Rows in
            the first step ignore it, whatever it holds. Without it, all rows take a step of first order.

    Returns:
        The next samples, which after the last step are the final samples; the estimates of the clean samples; and
        what the next step takes as history, or None if the sampler uses none.

    Raises:
        OptionError: The shapes do not fit, or noise is missing.
    """
    _check_shapes(rows, sample, output=output, noise=noise, history=history)
    if rows.next_noise is not None and noise is None:
        raise OptionError("this sampler adds noise in each step: give noise of the samples' shape to step()")
    wide = _wide(sample)
    x, o = sample.to(wide), output.to(wide)
    clean = _sum([(rows.clean_sample, x), (rows.clean_output, o)])
    if rows.clip is not None:
        clean = clean.clamp(-rows.clip, rows.clip)
    if rows.boundary_clean is not None:
        clean = _sum([(rows.boundary_clean, clean), (rows.boundary_sample, x)])
    mean = clean
    if rows.next_history is not None and history is not None:
        weight = _column(rows.next_history, clean)
        mean = clean + weight * (clean - torch.where(weight > 0, history.to(wide), clean))
    terms = [(rows.next_clean, mean), (rows.next_sample, x), (rows.next_output, o)]
    if noise is not None:
        terms.append((rows.next_noise, noise.to(wide)))
    estimate = clean.to(sample.dtype)
    return _sum(terms).to(sample.dtype), estimate, None if rows.next_history is None else estimate


def _mapped(rows: Rows, function: Callable[[str, Tensor], Tensor]) -> Rows:
    values = {field.name: getattr(rows, field.name) for field in fields(rows)}
    changed: dict[str, Any] = {n: function(n, value) for n, value in values.items() if isinstance(value, Tensor)}
    return replace(rows, **changed)


def _wide(sample: Tensor) -> torch.dtype:
    """Return the type to compute in. A coefficient in half precision would shift the brightness of every frame."""
    return torch.promote_types(sample.dtype, torch.float32)


def _column(coefficient: Tensor, like: Tensor) -> Tensor:
    return coefficient.to(like.dtype).reshape(-1, *[1] * (like.dim() - 1))


def _sum(terms: list[tuple[Tensor | None, Tensor]]) -> Tensor:
    """Return the sum of coefficient times tensor, over the terms that the sampler has."""
    products = [_column(coefficient, tensor) * tensor for coefficient, tensor in terms if coefficient is not None]
    total = products[0]
    for product in products[1:]:
        total = total + product
    return total


def _check_shapes(rows: Rows, sample: Tensor, **others: Tensor | None) -> None:
    if sample.dim() == 0 or sample.shape[0] != len(rows):
        raise OptionError(
            f"there are {len(rows)} rows, and samples of shape {list(sample.shape)}: give one row for each sample"
        )
    if not sample.is_floating_point():
        raise OptionError(f"samples must be floating-point numbers; got {sample.dtype}")
    for name, tensor in others.items():
        if tensor is not None and tensor.shape != sample.shape:
            raise OptionError(f"{name} must have the samples' shape {list(sample.shape)}; got {list(tensor.shape)}")
