"""Sample from diffusion models with pure functions of tensors, where each row of a batch may be at another step.

A builder (`ddim`, `dpm_solver_2m`, `euler`, `euler_ancestral`, `flow_euler`, `lcm`, `tcd`, `consistency`) computes all
coefficients once and returns `Steps`. `steps.at(slots)` gathers those of a batch, and `noised`, `model_input` and
`step` apply them. Nothing holds state, reads a tensor's value in Python, or waits for a device.
"""

from whet.models.samplers.distilled import consistency, lcm, tcd
from whet.models.samplers.schedule import Schedule
from whet.models.samplers.solvers import ddim, dpm_solver_2m, euler, euler_ancestral, flow_euler
from whet.models.samplers.spacing import (
    flow_spaced,
    karras_sigmas,
    lcm_spaced,
    leading,
    linspace,
    linspace_exact,
    trailing,
)
from whet.models.samplers.steps import Rows, Steps, model_input, noised, step

__all__ = [
    "Rows",
    "Schedule",
    "Steps",
    "consistency",
    "ddim",
    "dpm_solver_2m",
    "euler",
    "euler_ancestral",
    "flow_euler",
    "flow_spaced",
    "karras_sigmas",
    "lcm",
    "lcm_spaced",
    "leading",
    "linspace",
    "linspace_exact",
    "model_input",
    "noised",
    "step",
    "tcd",
    "trailing",
]
