"""Where a model's time goes, layer by layer, and what bounds it."""

from whet.profiler.diagnosis import Bound, Diagnosis, diagnose
from whet.profiler.layers import LayerCost, Profile, profile_layers

__all__ = ["Bound", "Diagnosis", "LayerCost", "Profile", "diagnose", "profile_layers"]
