"""Find every technique that whet knows for training. Each file ends with TECHNIQUE = TrainingTechnique(...)."""

from whet.techniques import techniques_in
from whet.techniques.training_technique import TrainingTechnique

__all__ = ["TRAINING_TABLE"]

TRAINING_TABLE: dict[str, TrainingTechnique] = techniques_in("training")
