"""Define the diffusion of signs-stream: its noise schedule, what the network learns, and how frames are drawn.

One process serves every sampler: variance preserving, 1,000 timesteps, the schedule of latent diffusion, and the
velocity as the network's output. Shape suffixes: B batch, C channels, H height, W width.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from whet.models.samplers import Schedule, Steps, ddim, lcm, lcm_spaced, model_input, step, trailing
from whet.workloads.signs_data import FRAME

SCHEDULE = Schedule.scaled_linear()
NUM_TAUGHT = 50  # timesteps of the teacher that the student learns to skip (Luo et al., 2023, arXiv:2310.04378)

Network = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]


def noised_with_velocity(frames_BCHW: Tensor, noise_BCHW: Tensor, timestep_B: Tensor) -> tuple[Tensor, Tensor]:
    """Return noisy frames and their velocities, both of the frames' shape.

    With a = sqrt(ᾱ) and b = sqrt(1 - ᾱ), a noisy frame is a * frame + b * noise, and its velocity
    a * noise - b * frame (Salimans and Ho, 2022, arXiv:2202.00512, appendix D). The noise is of the
    standard normal distribution, and the timesteps are int64.
    """
    alpha_B = SCHEDULE.alphas_cumprod[timestep_B]
    a = alpha_B.sqrt().to(frames_BCHW.dtype)[:, None, None, None]
    b = (1 - alpha_B).sqrt().to(frames_BCHW.dtype)[:, None, None, None]
    return a * frames_BCHW + b * noise_BCHW, a * noise_BCHW - b * frames_BCHW


def teacher_steps(num_steps: int) -> Steps:
    """Return the steps with which the teacher draws frames: DDIM, evenly spaced from timestep 999 down."""
    return ddim(SCHEDULE, trailing(num_steps), prediction="v")


def student_steps(num_steps: int) -> Steps:
    """Return the steps with which the student draws frames: those of latent consistency models."""
    return lcm(SCHEDULE, lcm_spaced(num_steps, original_steps=NUM_TAUGHT), prediction="v")


def taught_steps() -> tuple[Steps, Steps]:
    """Return what distillation follows: the teacher's 50 steps of DDIM, and the boundary condition at 51 timesteps.

    Step i of the first leads from the timestep of step i of the second to that of its step i + 1. The last one ends at
    timestep 0, where the boundary condition returns the sample itself.
    """
    timesteps = lcm_spaced(NUM_TAUGHT, original_steps=NUM_TAUGHT)
    followed = ddim(SCHEDULE, timesteps, prediction="v", to_clean=False)
    return followed, lcm(SCHEDULE, [*timesteps, 0], prediction="v")


@torch.no_grad()
def draw_frames(
    network: Network, steps: Steps, condition: tuple[Tensor, Tensor, Tensor], generator: torch.Generator
) -> Tensor:
    """Draw frames, [B, 3, 64, 64] in [-1, 1], from grey frames, previous frames and digits, as the U-Net takes them."""
    grey_BCHW, previous_BCHW, digit_B = condition
    shape = (len(digit_B), 3, FRAME, FRAME)
    x_BCHW, history = torch.randn(shape, generator=generator), None
    for index in range(len(steps)):
        rows = steps.at(torch.full((len(digit_B),), index))
        v_BCHW = network(model_input(rows, x_BCHW), rows.timesteps.float(), grey_BCHW, previous_BCHW, digit_B)
        fresh = torch.randn(shape, generator=generator) if steps.needs_noise else None
        x_BCHW, _, history = step(rows, x_BCHW, v_BCHW, fresh, history)
    return x_BCHW.clamp(-1, 1)


def as_shown(frames_BCHW: Tensor) -> Tensor:
    """Return frames rounded to the 256 levels of a screen, as a stream feeds them back."""
    return ((frames_BCHW.clamp(-1, 1) + 1) * 127.5).round() / 127.5 - 1
