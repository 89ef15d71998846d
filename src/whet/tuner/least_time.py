"""Compute the least time that the machine's limits allow a recipe. `share_of_limit` is measured against it."""

from collections.abc import Sequence

from whet.core.recipe import Step
from whet.measure.machine import Limits
from whet.measure.machine.limits import element_bytes
from whet.profiling.model import Profile, least_time_s
from whet.tuner.build import technique_of


def mean_least_time_s(profiles: Sequence[tuple[Profile, int]], limits: Limits, steps: Sequence[Step]) -> float:
    """Return the average least seconds of a call, each profile weighted by its number of batches, as latency is."""
    total_s = sum(count * recipe_time_s(profile, limits, steps) for profile, count in profiles)
    return total_s / sum(count for _, count in profiles)


def recipe_time_s(profile: Profile, limits: Limits, steps: Sequence[Step]) -> float:
    """Return the seconds that the model's operations and bytes need at the machine's limits, in the recipe's dtype."""
    dtype, weight_scale, work_scale = profile.dtype, None, 1.0
    for step in steps:
        technique = technique_of(step)
        options = technique.options(**step.options)
        if technique.dtype_of is not None:
            dtype = technique.dtype_of(options)
        if technique.weight_scale_of is not None:
            weight_scale = technique.weight_scale_of(options)
        if technique.work_scale_of is not None:
            work_scale *= technique.work_scale_of(options)
    scale = element_bytes(dtype) / element_bytes(profile.dtype)
    return work_scale * least_time_s(
        profile,
        limits,
        dtype=limits.faster(dtype),
        weight_scale=scale if weight_scale is None else weight_scale,
        activation_scale=scale,
    )
