"""Save and restore the generators of random numbers, so that a resumed training draws what it would have drawn."""

import random
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from whet.errors import CheckpointError, OptionError, foreign, type_name
from whet.trainer.checkpoints.encoding import decoded, encoded
from whet.trainer.checkpoints.state import TrainingState, saved_part

RANDOM = "random"
Generator = torch.Generator | np.random.Generator | np.random.RandomState | random.Random
_NONE: Mapping[str, Generator] = MappingProxyType({})


def generator_state(own: Mapping[str, Generator] = _NONE) -> TrainingState:
    """Return the states of the generators of Python, NumPy, PyTorch on the CPU, and PyTorch on each GPU in use.

    Args:
        own: Further generators of the training by name, such as that of a sampler.

    Returns:
        The tensors "random.torch", "random.cuda.0", ... and "random.own.NAME", and the value "random".

    Raises:
        OptionError: One of `own` is of an unknown class.
    """
    tensors = {f"{RANDOM}.torch": torch.get_rng_state()}
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        for index, state in enumerate(torch.cuda.get_rng_state_all()):
            tensors[f"{RANDOM}.cuda.{index}"] = state
    value = {
        "python": encoded(random.getstate(), {}, f"{RANDOM}.python"),
        "numpy": encoded(np.random.get_state(legacy=False), {}, f"{RANDOM}.numpy"),
        "own": {name: encoded(_state(one), tensors, f"{RANDOM}.own.{name}") for name, one in own.items()},
    }
    return TrainingState(tensors, {RANDOM: value})


def load_generators(state: TrainingState, own: Mapping[str, Generator] = _NONE) -> tuple[str, ...]:
    """Restore the generators. Call it after everything else that draws random numbers, such as skipping samples.

    Args:
        own: The training's own generators, under the names under which they were saved.

    Returns:
        What could not be restored here, a sentence each. A checkpoint of a GPU may be loaded on a CPU.

    Raises:
        CheckpointError: The states are missing or damaged.
    """
    saved = saved_part(state, RANDOM)
    with foreign(CheckpointError, "the checkpoint's part 'random' is damaged"):
        states = {name: decoded(saved[name], {}) for name in ("python", "numpy")}
        for_own = decoded(saved["own"], state.tensors)
        on_cpu = state.tensors[f"{RANDOM}.torch"].clone()
    if missing := sorted(own.keys() - for_own.keys()):
        raise CheckpointError(
            f"the checkpoint has no generator {missing[0]!r}; load one that the same training saved, or leave it out"
        )
    with foreign(CheckpointError, "a generator does not take the state in the checkpoint"):
        for name, one in own.items():
            _set_state(one, for_own[name])
        random.setstate(states["python"])
        np.random.set_state(states["numpy"])
        torch.set_rng_state(on_cpu)
        notes = _load_gpus(state.tensors)
    notes += [
        f"the checkpoint's generator {name!r} was not restored: the training has none of this name"
        for name in sorted(for_own.keys() - own.keys())
    ]
    return tuple(notes)


def _load_gpus(tensors: Mapping[str, Tensor]) -> list[str]:
    """Restore the generators of the GPUs that are here, and return what could not be restored."""
    prefix = f"{RANDOM}.cuda."
    num_here = torch.cuda.device_count() if torch.cuda.is_available() else 0
    notes = []
    for name in sorted(name for name in tensors if name.startswith(prefix)):
        index = int(name.removeprefix(prefix))
        if index < num_here:
            torch.cuda.set_rng_state(tensors[name].clone(), index)
        else:
            notes.append(
                f"the checkpoint's generator of GPU {index} was not restored: PyTorch sees {num_here} GPUs here, so "
                "that dropout draws other numbers than it would have drawn"
            )
    return notes


def _state(one: Generator) -> Any:
    if isinstance(one, torch.Generator):
        return one.get_state()
    if isinstance(one, np.random.Generator):
        return one.bit_generator.state
    if isinstance(one, np.random.RandomState):
        return one.get_state(legacy=False)
    if isinstance(one, random.Random):
        return one.getstate()
    raise OptionError(f"a generator is {type_name(one)}; give those of Python, NumPy or PyTorch")


def _set_state(one: Generator, state: Any) -> None:
    if isinstance(one, torch.Generator):
        one.set_state(state.clone())
    elif isinstance(one, np.random.Generator):
        one.bit_generator.state = state
    elif isinstance(one, np.random.RandomState):
        one.set_state(state)
    else:
        one.setstate(state)
