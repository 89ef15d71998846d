"""Name the training that goes with a model to run: `TARGET?training=TRAINING`, for techniques that train it further."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache

from whet.core.workload import InferenceWorkload, TrainingWorkload
from whet.core.workload.training import kept_generators
from whet.errors import TargetError
from whet.workloads.device import training_on_device


@dataclass(frozen=True)
class NamedTraining:
    """Open a training when it is asked for, once in a process. Other workloads are built without it.

    Attributes:
        name: The name or address of the training.
        device: The device of the model that it goes with; "" for the training's own.
    """

    name: str
    device: str = ""

    def __call__(self) -> TrainingWorkload:
        """Return the training.

        Raises:
            TargetError: There is no such training.
        """
        return _opened(self.name, self.device)


@lru_cache(maxsize=1)
def _opened(name: str, device: str) -> TrainingWorkload:
    from whet.workloads.handover import open_any  # it builds on this module

    with kept_generators():
        found = open_any(name)
    if not isinstance(found, TrainingWorkload):
        raise TargetError(f"{name} is a {type(found).__name__}; --training takes a TrainingWorkload")
    return training_on_device(found, device) if device else found


def trained_by(
    workload: InferenceWorkload, training: str | TrainingWorkload | Callable[[], TrainingWorkload], device: str = ""
) -> InferenceWorkload:
    """Return a workload with the training that goes with it, by name or as it is."""
    return replace(workload, training=NamedTraining(training, device) if isinstance(training, str) else training)
