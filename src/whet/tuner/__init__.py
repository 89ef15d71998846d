"""The search for what makes a model faster here, and the proof."""

from whet.tuner.apply import apply_recipe
from whet.tuner.result import Point, Result, TrialRecord
from whet.tuner.tuning import Listener, tune

__all__ = ["Listener", "Point", "Result", "TrialRecord", "apply_recipe", "tune"]
