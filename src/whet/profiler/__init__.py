"""Where a model's time goes, layer by layer, and what bounds it."""

from whet.profiler.diagnosis import Bound, Diagnosis, attainable_s, diagnose, layer_bound, speedup_bound
from whet.profiler.layers import LayerCost, Profile, profile_layers

__all__ = [
    "Bound",
    "Diagnosis",
    "LayerCost",
    "Profile",
    "attainable_s",
    "diagnose",
    "layer_bound",
    "profile_layers",
    "speedup_bound",
]
