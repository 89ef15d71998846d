"""Define what signs-stream's networks learn: the classifier, the teacher, the student, and one-pass regression.

The random numbers of a step depend on the seed, the stage and the step's number alone.

Shape suffixes: B batch, C channels, H height, W width.
"""

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from whet.models.diffusion.unet import FrameUNet
from whet.models.resnet import ResNet
from whet.models.samplers import step as sampler_step
from whet.workloads.signs_data import ClipMaker, Photos, seeded

from .resumable import Stage, average
from .signs_noise import NUM_TAUGHT, SCHEDULE, as_shown, noised_with_velocity, taught_steps

MOST_NOISE = 0.7  # standard deviation of the noise on a previous frame (Valevski et al., 2024, arXiv:2408.14837)
MOST_LAG = 4  # frames between a frame and the previous one that the network sees
NO_PREVIOUS = 0.15  # share of samples without a previous frame
NO_DIGIT = 0.1  # share of samples without a digit
HUBER = 0.001  # where the loss of distillation turns from squares to magnitudes
TARGET_DECAY = 0.95  # of the average that gives the targets of distillation
TEACHER_DECAY = 0.998

_NUM_TIMES = 64  # frames of a clip that are used
_NUM_CLIPS = 2**40
_CLASSIFIER, _DENOISER, _STUDENT = 1, 2, 3  # what the random numbers are for


@dataclass(frozen=True)
class Samples:
    """Hold what a denoiser learns from. Images are in [-1, 1].

    Attributes:
        frames_BCHW: The true frames, [B, 3, 64, 64].
        grey_BCHW: The camera's frames, [B, 1, 16, 16].
        previous_BCHW: Earlier frames with noise, or zeros, [B, 3, 64, 64].
        digits_B: The digits, or the number that stands for none, int64 [B].
    """

    frames_BCHW: Tensor
    grey_BCHW: Tensor
    previous_BCHW: Tensor
    digits_B: Tensor


def draw_samples(clips: ClipMaker, size: int, null_digit: int, generator: torch.Generator) -> Samples:
    """Draw samples: a frame each, with a frame of 1 to 4 earlier as the previous one."""
    numbers = torch.randint(_NUM_CLIPS, (size,), generator=generator).tolist()
    times_B = torch.randint(MOST_LAG, _NUM_TIMES, (size,), generator=generator)
    lags_B = torch.randint(1, MOST_LAG + 1, (size,), generator=generator)
    made = clips.make(numbers, torch.stack([times_B, times_B - lags_B], 1))
    frames_BCHW, previous_BCHW = made.frames_BTCHW.unbind(1)
    level_B, kept_B, told_B = torch.rand(3, size, generator=generator)
    noise_BCHW = torch.randn(previous_BCHW.shape, generator=generator)
    previous_BCHW = as_shown(previous_BCHW) + MOST_NOISE * level_B[:, None, None, None] * noise_BCHW
    previous_BCHW = previous_BCHW * (kept_B >= NO_PREVIOUS)[:, None, None, None]
    digits_B = torch.where(told_B < NO_DIGIT, null_digit, made.digits_B)
    return Samples(frames_BCHW, made.grey_BTCHW[:, 0], previous_BCHW, digits_B)


def classifier_stage(model: ResNet, photos: Photos, *, batch_size: int, seed: int = 0) -> Stage:
    """Return the stage in which the classifier learns the digits of frames, some of them blurred or noisy."""
    clips = ClipMaker(photos, seed)

    def loss(step: int) -> Tensor:
        generator = seeded(seed, _CLASSIFIER, step)
        numbers = torch.randint(_NUM_CLIPS, (batch_size,), generator=generator).tolist()
        made = clips.make(numbers, torch.randint(_NUM_TIMES, (batch_size, 1), generator=generator))
        frames_BCHW = made.frames_BTCHW[:, 0]
        blur_B, level_B = torch.rand(2, batch_size, 1, 1, 1, generator=generator)
        blurred_BCHW = F.avg_pool2d(frames_BCHW, 3, stride=1, padding=1, count_include_pad=False)
        frames_BCHW = torch.lerp(frames_BCHW, blurred_BCHW, blur_B)
        frames_BCHW = frames_BCHW + 0.1 * level_B * torch.randn(frames_BCHW.shape, generator=generator)
        return F.cross_entropy(model(frames_BCHW), made.digits_B, label_smoothing=0.1)

    return Stage(
        name="classifier",
        modules={"model": model},
        learner="model",
        loss=loss,
        batch_size=batch_size,
        learning_rate=2e-3,
        settings={"seed": seed, "photos": len(photos)},
        weight_decay=0.05,
    )


def teacher_stage(model: FrameUNet, photos: Photos, *, batch_size: int, seed: int = 0) -> Stage:
    """Return the stage in which a U-Net learns the velocities of noisy frames. Its result is the module "average"."""

    def error(samples: Samples, generator: torch.Generator) -> Tensor:
        timestep_B = torch.randint(len(SCHEDULE), (batch_size,), generator=generator)
        noise_BCHW = torch.randn(samples.frames_BCHW.shape, generator=generator)
        noisy_BCHW, velocity_BCHW = noised_with_velocity(samples.frames_BCHW, noise_BCHW, timestep_B)
        found_BCHW = model(noisy_BCHW, timestep_B.float(), samples.grey_BCHW, samples.previous_BCHW, samples.digits_B)
        return F.mse_loss(found_BCHW, velocity_BCHW)

    return _averaged_stage("teacher", model, photos, error, batch_size, seed)


def regression_stage(model: FrameUNet, photos: Photos, *, batch_size: int, seed: int = 0) -> Stage:
    """Return the stage in which the same U-Net learns frames in one pass, by their mean squared error.

    It is what diffusion is compared with. The noisy frame is 0 and the timestep is 0.
    """

    def error(samples: Samples, generator: torch.Generator) -> Tensor:
        found_BCHW = regressed(model, samples.grey_BCHW, samples.previous_BCHW, samples.digits_B)
        return F.mse_loss(found_BCHW, samples.frames_BCHW)

    return _averaged_stage("regression", model, photos, error, batch_size, seed)


def regressed(model: FrameUNet, grey_BCHW: Tensor, previous_BCHW: Tensor, digit_B: Tensor) -> Tensor:
    """Return the frames that a U-Net of `regression_stage` finds in one pass."""
    frames_BCHW: Tensor = model(
        torch.zeros_like(previous_BCHW), torch.zeros(len(digit_B)), grey_BCHW, previous_BCHW, digit_B
    )
    return frames_BCHW


def student_stage(teacher: FrameUNet, photos: Photos, *, batch_size: int, seed: int = 0) -> Stage:
    """Return the stage in which a copy of the teacher learns to draw frames in a few steps.

    This is latent consistency distillation without guidance (Luo et al., 2023, arXiv:2310.04378): the student's frame
    at one of 50 timesteps shall be that of its own average one step of DDIM later, where the teacher makes the step.
    The result is the module "average".

    Args:
        teacher: The teacher; it is not changed.
        photos: The photos of the people to learn from.
        batch_size: Samples of a step.
        seed: Chooses the random numbers.
    """
    model, mean = deepcopy(teacher).train().requires_grad_(True), deepcopy(teacher).eval().requires_grad_(False)
    frozen = deepcopy(teacher).eval().requires_grad_(False)
    followed, boundary = taught_steps()
    clips = ClipMaker(photos, seed)

    def loss(step: int) -> Tensor:
        generator = seeded(seed, _STUDENT, step)
        samples = draw_samples(clips, batch_size, model.config.null_digit, generator)
        slots_B = torch.randint(NUM_TAUGHT, (batch_size,), generator=generator)
        noise_BCHW = torch.randn(samples.frames_BCHW.shape, generator=generator)
        timestep_B = followed.timesteps[slots_B]
        noisy_BCHW, _ = noised_with_velocity(samples.frames_BCHW, noise_BCHW, timestep_B)

        def clean(network: FrameUNet, x_BCHW: Tensor, slots_B: Tensor) -> Tensor:
            rows = boundary.at(slots_B)
            v_BCHW = _velocity(network, x_BCHW, rows.timesteps, samples)
            return sampler_step(rows, x_BCHW, v_BCHW, torch.zeros_like(x_BCHW))[1]

        with torch.no_grad():
            v_BCHW = _velocity(frozen, noisy_BCHW, timestep_B, samples)
            less_noisy_BCHW, _, _ = sampler_step(followed.at(slots_B), noisy_BCHW, v_BCHW)
            wanted_BCHW = clean(mean, less_noisy_BCHW, slots_B + 1)
        error_BCHW = clean(model, noisy_BCHW, slots_B) - wanted_BCHW
        return ((error_BCHW.square() + HUBER**2).sqrt() - HUBER).mean()

    return Stage(
        name="student",
        modules={"model": model, "average": mean, "teacher": frozen},
        learner="model",
        loss=loss,
        batch_size=batch_size,
        learning_rate=1e-4,
        after_step=lambda step: average(mean, model, TARGET_DECAY),
        settings={"seed": seed, "photos": len(photos)},
        warmup=50,
    )


def _velocity(network: FrameUNet, x_BCHW: Tensor, timestep_B: Tensor, samples: Samples) -> Tensor:
    velocity_BCHW: Tensor = network(
        x_BCHW, timestep_B.float(), samples.grey_BCHW, samples.previous_BCHW, samples.digits_B
    )
    return velocity_BCHW


def _averaged_stage(
    name: str,
    model: FrameUNet,
    photos: Photos,
    error: Callable[[Samples, torch.Generator], Tensor],
    batch_size: int,
    seed: int,
) -> Stage:
    """Return a stage that keeps an average of the weights, over fewer steps at the beginning."""
    mean = deepcopy(model).eval().requires_grad_(False)
    clips = ClipMaker(photos, seed)

    def loss(step: int) -> Tensor:
        generator = seeded(seed, _DENOISER, step)
        return error(draw_samples(clips, batch_size, model.config.null_digit, generator), generator)

    return Stage(
        name=name,
        modules={"model": model, "average": mean},
        learner="model",
        loss=loss,
        batch_size=batch_size,
        learning_rate=5e-4,
        after_step=lambda step: average(mean, model, min(TEACHER_DECAY, (1 + step) / (10 + step))),
        settings={"seed": seed, "photos": len(photos)},
    )
