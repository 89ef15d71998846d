"""Measure where a model's time goes, layer by layer, and find what bounds it."""

from whet.profiling.bounds import Bound
from whet.profiling.model.diagnosis import Diagnosis, attainable_s, diagnose, layer_bound, least_time_s, speedup_bound
from whet.profiling.model.layers import LayerCost, Profile, profile_layers, profile_sizes

__all__ = [
    "Bound",
    "Diagnosis",
    "LayerCost",
    "Profile",
    "attainable_s",
    "diagnose",
    "layer_bound",
    "least_time_s",
    "profile_layers",
    "profile_sizes",
    "speedup_bound",
]
