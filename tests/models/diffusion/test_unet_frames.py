"""whet's own U-Net turns a stream of frames into frames as its training script draws them."""

import pytest
import torch
from benchmarks.built_in_weights.signs_noise import SCHEDULE, as_shown, student_steps

from whet.errors import OptionError
from whet.models.diffusion.few_steps import few_steps
from whet.models.diffusion.guidance import Guidance
from whet.models.diffusion.pipeline import DiffusionStep
from whet.models.diffusion.unet import FrameUNet, UNetConfig
from whet.models.diffusion.unet_frames import UNetFrames
from whet.workloads.signs_data import camera_frames


@pytest.fixture(scope="module")
def unet():
    torch.manual_seed(0)
    network = FrameUNet(UNetConfig(widths=(16, 24), embedding=32)).eval()
    with torch.no_grad():
        for parameter in network.parameters():  # new ones end in zeros, with which nothing shows
            parameter.add_(0.05 * torch.randn(parameter.shape))
    return network


def stream_step(unet, num_steps, **options) -> DiffusionStep:
    model = UNetFrames(unet, digit=3)
    return DiffusionStep(model, few_steps("lcm", model.schedule, "v", 1.0), num_steps, **options)


def by_hand(unet, frame, previous, num_steps):
    """Draw one frame as the training script does, with the noise of the stream's slots."""
    from whet.models.samplers import model_input, step

    steps = student_steps(num_steps)
    noise = torch.randn(num_steps, 2, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    grey, digit = camera_frames(frame[None] * 2 - 1), torch.tensor([3])
    x = noise[:1, 0] * steps.noise[0].float()
    for slot in range(num_steps):
        rows = steps.at(torch.tensor([slot]))
        v = unet(model_input(rows, x), rows.timesteps.float(), grey, previous, digit)
        x, _, _ = step(rows, x, v, noise[slot : slot + 1, 1])
    return x.clamp(-1, 1)


@pytest.mark.parametrize("num_steps", [1, 2, 4])
def test_frames_are_drawn_as_in_training_with_the_last_finished_frame(unet, num_steps):
    stepper = stream_step(unet, num_steps, is_rolling=False, feeds_back=True)
    previous = torch.zeros(1, 3, 64, 64)
    with torch.no_grad():
        for k in range(3):
            frame = torch.rand(3, 64, 64, generator=torch.Generator().manual_seed(k))
            drawn = by_hand(unet, frame, previous, num_steps)
            torch.testing.assert_close(stepper(frame), drawn[0] / 2 + 0.5, rtol=0, atol=1e-5)
            previous = as_shown(drawn)


def test_a_rolling_batch_feeds_back_what_is_finished_when_a_frame_enters(unet):
    stepper = stream_step(unet, 2, feeds_back=True)
    frames = [torch.rand(3, 64, 64, generator=torch.Generator().manual_seed(k)) for k in range(5)]
    with torch.no_grad():
        outputs = [stepper(frame) for frame in frames]
        for k in (0, 1, 2, 3):
            fed = torch.zeros(1, 3, 64, 64) if k < 2 else as_shown(outputs[k - 1][None] * 2 - 1)
            torch.testing.assert_close(outputs[k + 1], by_hand(unet, frames[k], fed, 2)[0] / 2 + 0.5, rtol=0, atol=2e-5)


def test_the_schedule_is_that_of_training():
    assert torch.equal(UNetFrames.schedule.alphas_cumprod, SCHEDULE.alphas_cumprod)
    steps = few_steps("lcm", UNetFrames.schedule, "v", 1.0)(4)
    assert torch.equal(steps.timesteps, student_steps(4).timesteps)


def test_guidance_asks_without_the_digit(unet):
    model = UNetFrames(unet, digit=7)
    conditions = {"grey": torch.rand(2, 1, 16, 16), "previous": torch.rand(2, 3, 64, 64)}
    sample, times = torch.randn(2, 3, 64, 64), torch.tensor([100, 900])
    with torch.no_grad():
        found = model.predict(sample, times, conditions, torch.tensor([False, True]))
        known = unet(sample, times.float(), conditions["grey"], conditions["previous"], torch.tensor([7, 10]))
        full = stream_step(unet, 1, guidance=Guidance("full", 2.0))(torch.rand(3, 64, 64))
    torch.testing.assert_close(found, known, rtol=0, atol=1e-6)
    assert full.shape == (3, 64, 64)


def test_digits_beyond_the_prompts_are_refused(unet):
    model = UNetFrames(unet)
    assert model.digit is None
    for digit in (-1, 10):
        with pytest.raises(OptionError, match="a digit from 0 to 9"):
            model.digit = digit
