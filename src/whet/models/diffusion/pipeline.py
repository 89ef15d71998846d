"""Turn frames into frames by a few steps of diffusion, with several frames at different steps in one call of the model.

The rolling batch (stream batch) is that of StreamDiffusion (Kodaira et al., arXiv:2312.12491, section 3.1): with n
steps, n frames are in flight, each at a step of its own, and one frame comes out of each call. Noise is drawn once and
belongs to its step, so that what call k + n - 1 returns is what frame k gives when its n steps are computed alone.
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from whet.errors import OptionError
from whet.models.diffusion.frame_diffusion import Call, FrameDiffusion
from whet.models.diffusion.guidance import Guidance
from whet.models.samplers import Rows, Steps, model_input, noised, step

StepsOf = Callable[[int], Steps]
"""Return the sampler's steps, for a number of them."""


@dataclass
class _Flight:
    """Hold a frame on its way.

    Attributes:
        slot: The step that comes next, counted from 0.
        sample: The noisy sample, [1, C, h, w].
        anchor: What residual guidance leads back to, [1, C, h, w].
        history: What the sampler keeps of the step before, as `whet.models.samplers.step` returns it.
    """

    slot: int
    sample: Tensor
    anchor: Tensor
    conditions: Mapping[str, Tensor]
    history: Tensor | None = None


class DiffusionStep:
    """Turn each frame into a frame; a `whet.core.workload.stream.Step`, with all of its optional parts.

    Args:
        steps_of: Returns the sampler's steps, for a number of them.
        is_rolling: Whether frames are in flight together. Otherwise each frame takes all of its steps in one call.
        feeds_back: Whether the model sees the last frame that came out.
        seed: The seed of the noise.

    Attributes:
        steps: Steps that each frame takes.
        guidance: How the output follows the prompt. It may be set between two calls.
        scales: The sizes of frames that the model can run at, as shares of the full one.

    Raises:
        OptionError: The sampler cannot make so many steps, or the guidance doesn't fit the model.
    """

    def __init__(
        self,
        model: FrameDiffusion,
        steps_of: StepsOf,
        num_steps: int,
        *,
        guidance: Guidance | None = None,
        is_rolling: bool = True,
        feeds_back: bool = False,
        seed: int = 0,
    ) -> None:
        self.scales = model.scales
        self._model, self._steps_of, self._seed = model, steps_of, seed
        self._is_rolling, self._feeds_back = is_rolling, feeds_back
        self._previous: Tensor | None = None
        self._noise: Tensor | None = None  # [n, 2, C, h, w]: what enters each slot, and what its step adds
        self.guidance = guidance or Guidance()
        self.steps = num_steps
        self.change(num_steps)

    @property
    def guidance(self) -> Guidance:
        """Return how the output follows the prompt."""
        return self._guidance

    @guidance.setter
    def guidance(self, guidance: Guidance) -> None:
        self.check_guidance(guidance)
        self._guidance = guidance
        if self._model.embedded_weight is not None:
            self._model.embedded_weight = guidance.weight if guidance.kind == "embedded" else 1.0

    def check_guidance(self, guidance: Guidance) -> None:
        """Raise OptionError where the guidance asks the model for what it cannot do."""
        if guidance.kind in ("full", "onetime") and not self._model.has_null:
            raise OptionError(
                f"guidance {guidance.kind!r} asks the model without its prompt, which this one cannot be; "
                "choose self or none"
            )
        if guidance.kind == "embedded" and self._model.embedded_weight is None:
            raise OptionError(
                "guidance 'embedded' is for U-Nets that were distilled with guidance (time_cond_proj_dim in their "
                "config), and this one was not; choose full, self or none"
            )

    @property
    def in_flight(self) -> int:
        """Return the number of frames that have no answer yet."""
        return len(self._flights)

    def change(self, steps: int | None) -> None:
        """Discard what is in flight, and go on with so many steps a frame.

        Raises:
            OptionError: The sampler cannot make so many steps.
        """
        self.steps = steps or self.steps
        self._table = self._steps_of(self.steps).to(dtype=torch.float32)
        self._flights: deque[_Flight] = deque()  # from the last slot to the first
        self._noise = None

    @property
    def call_modules(self) -> Mapping[str, nn.Module]:
        """Return a module for each call of the model that `wrap` can replace."""
        return self._model.call_modules

    def wrap(self, wrapper: Callable[[str, Call], Call]) -> None:
        """Replace each call of the model by what a wrapper makes of its name and itself."""
        self._model.wrap(wrapper)

    def reset(self) -> None:
        """Forget all frames: those in flight, and the last one that came out."""
        self._previous = None
        self.change(None)

    def __call__(self, frame: Tensor) -> Tensor | None:
        """Return the frame that is finished by this call: the oldest in flight; None while the batch fills.

        Args:
            frame: The next frame, [C, H, W] from 0 to 1.
        """
        entry = self._model.enter(frame, self._previous if self._feeds_back else None)
        noise = self._noise_like(entry.clean)  # it also moves the table to the samples' device
        first = self._table.at(torch.zeros(1, dtype=torch.long, device=entry.clean.device))
        sample = noised(first, entry.clean, noise[:1, 0])
        self._flights.append(_Flight(0, sample, entry.clean, entry.conditions))
        if self._is_rolling:
            return self.advance()
        while (finished := self.advance()) is None:
            pass
        return finished

    def advance(self) -> Tensor | None:
        """Make the next step of each frame in flight, and return the frame that this finishes, if any."""
        flights = list(self._flights)
        if not flights:
            return None
        slots = torch.tensor([flight.slot for flight in flights], device=flights[0].sample.device)
        rows = self._table.at(slots)
        sample = _joined([flight.sample for flight in flights])
        conditions = {name: _joined([flight.conditions[name] for flight in flights]) for name in flights[0].conditions}
        output = self._guided(rows, sample, conditions, flights)
        assert self._noise is not None  # it was made when the first of these frames entered
        noise = self._noise[slots, 1] if self._table.needs_noise else None
        history = self._histories(flights, sample) if self._table.needs_history else None
        following, _, history = step(rows, sample, output, noise=noise, history=history)
        for row, flight in enumerate(flights):
            flight.slot += 1
            flight.sample = following[row : row + 1]
            flight.history = None if history is None else history[row : row + 1]
        if flights[0].slot < self.steps:
            return None
        frame = self._model.leave(self._flights.popleft().sample)
        if self._feeds_back:
            self._previous = self._kept(frame)
        return frame

    def _guided(
        self, rows: Rows, sample: Tensor, conditions: Mapping[str, Tensor], flights: Sequence[_Flight]
    ) -> Tensor:
        seen, guidance, num = model_input(rows, sample), self._guidance, len(flights)
        # The frame that entered last is the last row; only there does onetime guidance ask without the prompt.
        num_null = {"full": num, "onetime": int(flights[-1].slot == 0)}.get(guidance.kind, 0)
        output = self._predicted(seen, rows.timesteps, conditions, num_null)
        with_prompt = output[:num]
        if guidance.kind == "full":
            return guidance.combined(with_prompt, output[num:])
        if not guidance.is_residual:
            return with_prompt
        if num_null:
            newest = self._table.at(torch.zeros(1, dtype=torch.long, device=sample.device))
            _, flights[-1].anchor, _ = step(newest, sample[-1:], output[num:], **self._first_extras(sample[-1:]))
        anchor = _joined([flight.anchor for flight in flights])
        return guidance.combined(with_prompt, guidance.residual(rows, sample, anchor, self._model.prediction))

    def _predicted(self, seen: Tensor, timesteps: Tensor, conditions: Mapping[str, Tensor], num_null: int) -> Tensor:
        """Call the model once, with the last `num_null` rows a second time, without the prompt."""
        if not num_null:
            return self._model.predict(seen, timesteps, conditions, None)
        again = {name: torch.cat([rows, rows[-num_null:]]) for name, rows in conditions.items()}
        is_null = torch.arange(len(seen) + num_null, device=seen.device) >= len(seen)
        both = torch.cat([seen, seen[-num_null:]])
        return self._model.predict(both, torch.cat([timesteps, timesteps[-num_null:]]), again, is_null)

    def _first_extras(self, sample: Tensor) -> dict[str, Tensor | None]:
        """Return noise and history for a step of which only the clean estimate is wanted."""
        zeros = torch.zeros_like(sample)
        return {
            "noise": zeros if self._table.needs_noise else None,
            "history": zeros if self._table.needs_history else None,
        }

    def _histories(self, flights: Sequence[_Flight], sample: Tensor) -> Tensor:
        zeros = torch.zeros_like(sample[:1])
        return _joined([zeros if flight.history is None else flight.history for flight in flights])

    def _noise_like(self, clean: Tensor) -> Tensor:
        """Return the noise of all slots, which is drawn once for a size of frames."""
        if self._noise is None or self._noise.shape[2:] != clean.shape[1:]:
            generator = torch.Generator().manual_seed(self._seed)
            noise = torch.randn(self.steps, 2, *clean.shape[1:], generator=generator)
            self._noise = noise.to(clean.device, clean.dtype)
            self._table = self._table.to(clean.device)
        return self._noise

    def _kept(self, frame: Tensor) -> Tensor:
        """Return the frame that the model sees as its last one: with 8 bits a channel, and finite."""
        quantised = frame.clamp(0, 1).mul(255).round().div(255)
        if self._previous is None or self._previous.shape != frame.shape:
            return torch.nan_to_num(quantised)
        return torch.where(torch.isfinite(frame).all(), quantised, self._previous)


def _joined(parts: Sequence[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(list(parts))
