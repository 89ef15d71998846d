"""Find every technique that whet knows for training. Each file ends with TECHNIQUE = TrainingTechnique(...)."""

import pkgutil
from importlib import import_module

from whet.techniques.training_technique import TrainingTechnique

__all__ = ["TRAINING_TABLE"]


def _found() -> dict[str, TrainingTechnique]:
    modules = [import_module(f"{__name__}.{entry.name}") for entry in pkgutil.iter_modules(__path__)]
    found: list[TrainingTechnique] = [module.TECHNIQUE for module in modules]
    return {technique.name: technique for technique in sorted(found, key=lambda technique: technique.place)}


TRAINING_TABLE: dict[str, TrainingTechnique] = _found()
