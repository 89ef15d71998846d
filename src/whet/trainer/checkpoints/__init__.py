"""Save the state of a training so that it can go on exactly after it was cut off, however that happened."""

from whet.trainer.checkpoints.checkpoints import Checkpoints, Found, Saving, Written
from whet.trainer.checkpoints.generators import generator_state, load_generators
from whet.trainer.checkpoints.locks import RunLock
from whet.trainer.checkpoints.manifest import SavedStep, step_directories
from whet.trainer.checkpoints.optimizer_state import load_optimizer, optimizer_tensors
from whet.trainer.checkpoints.state import TrainingState, load_model, load_state_of, model_tensors, state_of

__all__ = [
    "Checkpoints",
    "Found",
    "RunLock",
    "SavedStep",
    "Saving",
    "TrainingState",
    "Written",
    "generator_state",
    "load_generators",
    "load_model",
    "load_optimizer",
    "load_state_of",
    "model_tensors",
    "optimizer_tensors",
    "state_of",
    "step_directories",
]
