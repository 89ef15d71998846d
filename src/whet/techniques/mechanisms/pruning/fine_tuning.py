"""Train a pruned model further, and keep what came of it, so that the same pruning need not be trained twice."""

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR
from torch.utils._pytree import tree_leaves

from whet.core.workload import TrainingWorkload
from whet.core.workload.training import Trainer, kept_generators
from whet.errors import ModelError
from whet.techniques.mechanisms.pruning.importance import first_batches

_WARM_UP = 0.05  # of the steps
_LAST = 20  # losses that the mean at the end is over


def fine_tune(model: nn.Module, workload: TrainingWorkload, num_steps: int, rate: float = 1.0) -> float:
    """Train a model in place by a training's loss, batches and optimiser, and return the mean of its last losses.

    The learning rate rises to its highest over the first twentieth of the steps, and falls to zero at the end.
    No score on held-out data chooses between steps, so that the held-out score stays one.

    Args:
        model: The model, whose weights are those of a trained one.
        workload: The training that the model came from. Its own model and schedule are not used.
        rate: The highest learning rate over that of the training's optimiser.

    Raises:
        ModelError: The loss is not finite.
    """

    def schedule(optimizer: Optimizer) -> LambdaLR:
        warm_up = max(1, round(_WARM_UP * num_steps))
        return LambdaLR(optimizer, lambda step: rate * min((step + 1) / warm_up, (num_steps - step) / num_steps))

    with kept_generators(), torch.enable_grad():
        trainer = Trainer(replace(workload, model=model, schedule=schedule))
        for _ in range(num_steps):
            trainer.step()
    model.eval()
    last = torch.stack(trainer.losses[-_LAST:]).float().mean() if trainer.losses else torch.zeros(())
    if not last.isfinite():
        raise ModelError("the loss of the pruned model is not finite; train it with a lower learning rate")
    return float(last)


def key_of(
    model: nn.Module, small: nn.Module, workload: TrainingWorkload, num_steps: int, options: Mapping[str, Any]
) -> str:
    """Return a digest of everything that decides the weights of a pruned and fine-tuned model.

    Args:
        model: The original.
        small: What is trained, before its first step.
        options: How it was pruned.
    """
    found = hashlib.blake2b(digest_size=12)
    optimizer = workload.optimizer(small.parameters())
    groups = [{k: v for k, v in group.items() if k != "params"} for group in optimizer.param_groups]
    settings = [type(optimizer).__name__, groups, num_steps, dict(options), workload.seed, workload.num_accumulated]
    settings += [workload.clip_norm, torch.__version__, torch.get_num_threads()]
    found.update(json.dumps(settings, sort_keys=True, default=repr).encode())
    for tensors in (model.state_dict(), small.state_dict()):
        _add(found, (value for value in tensors.values() if isinstance(value, Tensor)))
    _add(found, (leaf for leaf in tree_leaves(first_batches(workload, 1)) if isinstance(leaf, Tensor)))
    return found.hexdigest()


def _add(digest: Any, tensors: Iterable[Tensor]) -> None:
    for tensor in tensors:
        digest.update(f"{tensor.dtype}{tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)


def fine_tuned_once(small: nn.Module, directory: Path | None, key: str, train: Callable[[nn.Module], object]) -> bool:
    """Train a model in place, or load what came of the same training before. Return whether it was trained now.

    Args:
        directory: Where the weights are kept; None keeps nothing.
        key: Stands for everything that decides the weights.
    """
    file = None if directory is None else directory / f"pruned-{key}.safetensors"
    if file is not None and _loaded(small, file):
        return False
    train(small)
    if file is not None:
        file.parent.mkdir(parents=True, exist_ok=True)
        partial = file.with_suffix(".partial")
        save_file({name: value.detach().contiguous().clone() for name, value in small.state_dict().items()}, partial)
        partial.replace(file)
    return True


def _loaded(small: nn.Module, file: Path) -> bool:
    """Load a model's tensors from a file, and return whether that was done."""
    if not file.is_file():
        return False
    try:
        tensors = load_file(file)
        own = small.state_dict()
        if {name: x.shape for name, x in tensors.items()} != {name: x.shape for name, x in own.items()}:
            return False
        small.load_state_dict(tensors)
    except (OSError, SafetensorError, RuntimeError):
        return False
    small.eval()
    return True
