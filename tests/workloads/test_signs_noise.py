"""The diffusion of signs-stream, against diffusers and known values."""

import pytest
import torch
from benchmarks.built_in_weights.signs_noise import (
    NUM_TAUGHT,
    SCHEDULE,
    as_shown,
    draw_frames,
    noised_with_velocity,
    student_steps,
    taught_steps,
    teacher_steps,
)


def test_noisy_frames_and_velocities_are_those_of_diffusers():
    diffusers = pytest.importorskip("diffusers")
    known = diffusers.DDIMScheduler(beta_start=0.00085, beta_end=0.012, beta_schedule="scaled_linear")
    frames, noise = torch.randn(2, 5, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    timesteps = torch.tensor([0, 1, 400, 998, 999])
    noisy, velocity = noised_with_velocity(frames, noise, timesteps)
    torch.testing.assert_close(noisy, known.add_noise(frames, noise, timesteps), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(velocity, known.get_velocity(frames, noise, timesteps), rtol=1e-4, atol=1e-5)


class Knowing:
    """Return the velocity of noisy frames whose clean frames are known."""

    def __init__(self, frames):
        self.frames, self.seen = frames, []

    def __call__(self, noisy, timestep, grey, previous, digit):
        assert timestep.dtype == torch.float32
        self.seen.append(timestep.tolist())
        alpha = SCHEDULE.alphas_cumprod[timestep.long()].float()[:, None, None, None]
        noise = (noisy - alpha.sqrt() * self.frames) / (1 - alpha).sqrt()
        return alpha.sqrt() * noise - (1 - alpha).sqrt() * self.frames


@pytest.mark.parametrize(
    ("steps", "timesteps"),
    [
        (teacher_steps(2), [999, 499]),
        (student_steps(1), [999]),
        (student_steps(4), [999, 759, 499, 259]),
    ],
    ids=["teacher", "student-1", "student-4"],
)
def test_a_network_that_knows_draws_the_frames(steps, timesteps):
    generator = torch.Generator().manual_seed(0)
    frames = 2 * torch.rand(2, 3, 64, 64, generator=generator) - 1
    network = Knowing(frames)
    condition = (torch.zeros(2, 1, 16, 16), torch.zeros_like(frames), torch.zeros(2, dtype=torch.int64))
    found = draw_frames(network, steps, condition, generator)
    assert network.seen == [[one, one] for one in timesteps]
    torch.testing.assert_close(found, frames, rtol=1e-3, atol=1e-3)


def test_teacher_leads_from_each_timestep_to_the_next():
    followed, boundary = taught_steps()
    assert len(followed) == NUM_TAUGHT
    assert boundary.timesteps.tolist() == [*followed.timesteps.tolist(), 0] == [*range(999, 0, -20), 0]
    assert float(boundary.rows.boundary_sample[-1]) == 1  # at timestep 0 the sample itself is returned
    assert float(boundary.rows.boundary_clean[-1]) == 0


def test_shown_frames_have_256_levels():
    frames = torch.linspace(-1.2, 1.2, 10_000)
    shown = as_shown(frames)
    assert len(shown.unique()) == 256
    assert (shown - frames.clamp(-1, 1)).abs().max() <= 1.001 / 255
    torch.testing.assert_close(as_shown(shown), shown)
