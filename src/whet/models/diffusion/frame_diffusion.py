"""Describe what a stream needs of a diffusion model: how a frame enters, what is predicted, and how a frame leaves."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from torch import Tensor, nn

from whet.models.samplers import Schedule

Call = Callable[..., Tensor]
"""Call a model with tensors, as arguments and by name; it returns a tensor."""


@dataclass(frozen=True)
class Entry:
    """Hold what one frame brings into the denoising.

    Attributes:
        clean: The frame as the model's clean sample, [1, C, h, w]: pixels or latents. Noise is added to it. A model
            that makes its frame from noise alone gives zeros.
        conditions: What the model is told of this frame at every step: tensors [1, ...] by name.
    """

    clean: Tensor
    conditions: Mapping[str, Tensor] = field(default_factory=dict)


class FrameDiffusion(Protocol):
    """Describe a diffusion model that turns a frame into a frame.

    Attributes:
        prediction: What the model predicts: "epsilon", "v", "sample" or "flow".
        channels: The channels of the frames that it takes, 1 or 3.
        scales: The sizes of frames that it can run at, as shares of the full one, from 1 down.
        embedded_weight: The guidance weight that the model is told as a number; None where it takes none. It may be set
            between two calls.
    """

    schedule: Schedule
    prediction: str
    channels: int
    scales: tuple[float, ...]
    embedded_weight: float | None

    @property
    def has_null(self) -> bool:
        """Return whether the model can be asked without its prompt."""

    @property
    def call_modules(self) -> Mapping[str, nn.Module]:
        """Return a module for each call that `wrap` can replace, which takes and returns what the call does."""

    def wrap(self, wrapper: Callable[[str, Call], Call]) -> None:
        """Replace each call of a model by what a wrapper makes of its name and itself."""

    def enter(self, frame: Tensor, previous: Tensor | None) -> Entry:
        """Return what a frame brings in.

        Args:
            frame: The frame, [C, H, W] from 0 to 1.
            previous: The last frame that came out, [C, H, W] from 0 to 1; None before the first.
        """

    def predict(
        self, sample: Tensor, timesteps: Tensor, conditions: Mapping[str, Tensor], is_null: Tensor | None
    ) -> Tensor:
        """Return the model's output for rows that may be at different timesteps.

        Args:
            sample: The noisy samples, [B, C, h, w].
            timesteps: Their timesteps, [B].
            conditions: What each row's frame brought in, [B, ...] by name.
            is_null: Which rows are asked without the prompt, bool [B]; None where no row is.
        """

    def leave(self, clean: Tensor) -> Tensor:
        """Return a clean sample, [1, C, h, w], as a frame, [C, H, W] from 0 to 1."""
