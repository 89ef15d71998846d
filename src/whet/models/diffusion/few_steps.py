"""Choose a sampler's steps for frames that are changed by a few of them, from a name, a number and a strength."""

from collections.abc import Callable, Sequence

from whet.errors import OptionError
from whet.models import samplers
from whet.models.diffusion.names import SAMPLER_NAMES, check_sampler, check_strength
from whet.models.diffusion.pipeline import StepsOf
from whet.models.samplers import Schedule, Steps, lcm_spaced, trailing

_Build = Callable[..., Steps]

_BUILDS = (
    samplers.lcm,
    samplers.tcd,
    samplers.ddim,
    samplers.dpm_solver_2m,
    samplers.euler,
    samplers.euler_ancestral,
)
SAMPLERS: dict[str, _Build] = dict(zip(SAMPLER_NAMES, _BUILDS, strict=True))
"""The samplers for models of a variance-preserving process, by the names that users type."""

_DISTILLED = ("lcm", "tcd")  # their timesteps are those of the teacher

_BY_CLASS = {
    "LCMScheduler": "lcm",
    "TCDScheduler": "tcd",
    "DPMSolverMultistepScheduler": "dpm++2m",
    "EulerDiscreteScheduler": "euler",
    "EulerAncestralDiscreteScheduler": "euler-ancestral",
}


def sampler_of(scheduler_class: str | None) -> str:
    """Return the sampler that fits a scheduler of diffusers; ddim where none is closer."""
    return _BY_CLASS.get(scheduler_class or "", "ddim")


def is_known(scheduler_class: str | None) -> bool:
    """Return whether a sampler makes the steps of a scheduler of diffusers. DDPM's are made by ddim, without noise."""
    return scheduler_class in (None, "DDIMScheduler", "DDPMScheduler", *_BY_CLASS)


def few_steps(name: str, schedule: Schedule, prediction: str, strength: float, clip: float | None = None) -> StepsOf:
    """Return a function from a number of steps to a sampler's steps.

    Args:
        name: The sampler; see SAMPLERS.
        strength: The share of all timesteps that a frame goes back by, above 0 to 1. At 1, almost nothing of the frame
            is left. The timesteps are spread evenly below it.
        clip: The limit of what a step estimates as the clean sample; None without one.

    Raises:
        OptionError: There is no such sampler, or the strength is out of its range.
    """
    check_sampler(name)
    check_strength(strength)

    def steps_of(num_steps: int) -> Steps:
        return SAMPLERS[name](
            schedule, _timesteps(name, num_steps, len(schedule), strength), prediction=prediction, clip=clip
        )

    return steps_of


def _timesteps(name: str, num_steps: int, num_timesteps: int, strength: float) -> Sequence[int]:
    if num_steps < 1:
        raise OptionError(f"--steps is at least 1; got {num_steps}")
    if name in _DISTILLED:
        original = min(50, num_timesteps)
        most = max(1, int(original * strength))
        if num_steps > most:
            raise OptionError(f"--sampler {name} has at most {most} steps at strength {strength:g}; got {num_steps}")
        return lcm_spaced(
            num_steps, original_steps=original, num_train_timesteps=num_timesteps, strength=max(strength, 1 / original)
        )
    used = max(1, round(num_timesteps * strength))
    if num_steps > used:
        raise OptionError(f"--steps is at most {used} at strength {strength:g}; got {num_steps}")
    return trailing(num_steps, num_train_timesteps=used)
