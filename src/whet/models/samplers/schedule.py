"""Define how much signal and noise a variance-preserving diffusion process holds at each timestep."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from whet.errors import OptionError

TIMESTEPS = 1000
"""The number of timesteps of the training process, where a caller gives no other."""


@dataclass(frozen=True, eq=False)
class Schedule:
    """Hold the signal of a variance-preserving process: x_t = sqrt(ᾱ_t) z + sqrt(1 - ᾱ_t) e.

    Here z is a clean sample and e is noise of the standard normal distribution.

    Attributes:
        alphas_cumprod: ᾱ_t at each timestep, float64 [T]. It falls strictly, from below 1 to 0 or more. Only the last
            one may be 0.

    Raises:
        OptionError: The values do not fall strictly, or leave their range.
    """

    alphas_cumprod: Tensor

    def __post_init__(self) -> None:
        values = torch.as_tensor(self.alphas_cumprod, dtype=torch.float64, device="cpu")
        if values.dim() != 1 or len(values) == 0:
            raise OptionError(
                f"alphas_cumprod takes one value a timestep, [T]; got a tensor of shape {list(values.shape)}"
            )
        falls = bool((values[1:] < values[:-1]).all())
        if not (falls and values[0] < 1 and values[-1] >= 0):  # not: so that NaN is refused too
            raise OptionError("alphas_cumprod must fall strictly from timestep to timestep, from below 1 to 0 or more")
        object.__setattr__(self, "alphas_cumprod", values)

    @classmethod
    def from_betas(cls, betas: Sequence[float] | Tensor) -> "Schedule":
        """Build a schedule from the variance β_t that each timestep adds: ᾱ_t is the product of 1 - β up to t.

        Args:
            betas: β_t, [T], each above 0 and at most 1.

        Raises:
            OptionError: A value is out of range.
        """
        values = torch.as_tensor(betas, dtype=torch.float64, device="cpu")
        if not bool(((values > 0) & (values <= 1)).all()):
            raise OptionError("each beta of a schedule must be above 0 and at most 1")
        return cls(torch.cumprod(1.0 - values, dim=0))

    @classmethod
    def scaled_linear(
        cls, beta_start: float = 0.00085, beta_end: float = 0.012, *, num_train_timesteps: int = TIMESTEPS
    ) -> "Schedule":
        """Build the schedule of latent diffusion (Rombach et al., 2022): sqrt(β) rises linearly."""
        _check_betas(beta_start, beta_end, num_train_timesteps)
        roots = torch.linspace(beta_start**0.5, beta_end**0.5, num_train_timesteps, dtype=torch.float64)
        return cls.from_betas(roots**2)

    @classmethod
    def linear(
        cls, beta_start: float = 0.0001, beta_end: float = 0.02, *, num_train_timesteps: int = TIMESTEPS
    ) -> "Schedule":
        """Build the schedule of DDPM (Ho et al., 2020): β rises linearly."""
        _check_betas(beta_start, beta_end, num_train_timesteps)
        return cls.from_betas(torch.linspace(beta_start, beta_end, num_train_timesteps, dtype=torch.float64))

    @classmethod
    def squaredcos_cap_v2(cls, *, num_train_timesteps: int = TIMESTEPS) -> "Schedule":
        """Build the cosine schedule (Nichol and Dhariwal, 2021), with β capped at 0.999."""
        _check_betas(0.5, 0.5, num_train_timesteps)
        times = torch.arange(num_train_timesteps + 1, dtype=torch.float64) / num_train_timesteps
        signal = torch.cos((times + 0.008) / 1.008 * math.pi / 2) ** 2
        return cls.from_betas((1.0 - signal[1:] / signal[:-1]).clamp(max=0.999))

    def with_zero_terminal_snr(self) -> "Schedule":
        """Return the schedule shifted and scaled so that the last timestep holds no signal at all.

        sqrt(ᾱ) keeps its first value and becomes 0 at the last timestep (Lin et al., 2024, arXiv 2305.08891,
        algorithm 1). A network for this schedule predicts "v" or "sample", since noise alone says nothing there.

        Raises:
            OptionError: The schedule has a single timestep.
        """
        if len(self) == 1:
            raise OptionError("a schedule of one timestep cannot be scaled to zero terminal SNR: use 2 or more")
        roots = self.alphas_cumprod.sqrt()
        return Schedule(((roots - roots[-1]) * (roots[0] / (roots[0] - roots[-1]))) ** 2)

    def __len__(self) -> int:
        return len(self.alphas_cumprod)


def _check_betas(start: float, end: float, num_train_timesteps: int) -> None:
    if not (0 < start <= 1 and 0 < end <= 1):
        raise OptionError(f"beta_start and beta_end must be above 0 and at most 1; got {start} and {end}")
    if num_train_timesteps < 1:
        raise OptionError(f"num_train_timesteps must be at least 1; got {num_train_timesteps}")
