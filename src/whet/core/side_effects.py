"""Find how a model behaves beyond its outputs: what a graph of it would not repeat.

Every function here runs the model, on inputs that were given or on others of the same kinds.
"""

import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from whet.errors import ModelError
from whet.measure.effects import find_effects

Tensors = Sequence[Tensor]
Run = Callable[..., Tensors]


@dataclass(frozen=True)
class Behaviour:
    """Hold what ExaminedWorkload keeps of a model's behaviour, in fields of the same names."""

    effects: tuple[str, ...] = ()
    shared: tuple[int, ...] = ()
    depends_on_grad_mode: bool = False


def behaviour_of(
    model: nn.Module, run: Run, batch: Tensors, agree: Callable[[Tensors, Tensors], bool], *, with_effects: bool = True
) -> Behaviour:
    """Observe a model that has been called before.

    Args:
        run: Calls it with flat tensors.
        agree: Whether two sets of outputs are equal up to rounding.
        with_effects: Whether to look for what a graph would leave out, which takes about ten calls.

    Raises:
        ModelError: The model writes into its inputs, or its outputs depend on earlier calls.
    """
    given = [x.clone() for x in batch]
    outputs = run(*given)
    _check_inputs_are_kept(given, batch)
    kept = [y.clone() for y in outputs]

    def call_others() -> None:
        on_cpu = all(x.device.type == "cpu" for x in batch)  # on a GPU, an index out of range would end the process
        for _, other in altered(batch) if on_cpu else ():
            inputs = [x.clone() for x in other]
            try:
                run(*inputs)
            except Exception:  # noqa: BLE001 - values that the model is not made for
                continue
            _check_inputs_are_kept(inputs, other)

    effects = []
    if with_effects:
        effects = find_effects(model, lambda: run(*(x.clone() for x in batch)), call_others)
        call_others()
    if not agree(kept, run(*(x.clone() for x in batch))):
        raise ModelError(
            "the model gives other outputs for the same inputs after it was called with other inputs: it remembers "
            "them; let forward depend on its inputs and weights alone"
        )
    return Behaviour(
        effects=tuple(map(str, effects)),
        shared=tuple(_shared(outputs, [*given, *model.parameters(), *model.buffers()])),
        depends_on_grad_mode=not _agrees_with_gradients(run, batch, kept),
    )


def altered(batch: Tensors) -> Iterator[tuple[str, list[Tensor]]]:
    """Yield other inputs of the same kinds and sizes, each with its name: "negated" ones, then "shuffled" ones.

    Only floating-point and complex values are negated. All tensors are shuffled. Integers and booleans keep their
    values in another order, so that an index stays within its table.
    """
    if any(x.is_floating_point() or x.is_complex() for x in batch):
        yield "negated", [-x if x.is_floating_point() or x.is_complex() else x.clone() for x in batch]
    yield "shuffled", [shuffled(x, torch.Generator().manual_seed(x.numel())) for x in batch]


def shuffled(x: Tensor, generator: torch.Generator) -> Tensor:
    """Return the values in an order that the generator draws on the CPU."""
    order = torch.randperm(x.numel(), generator=generator).to(x.device)
    return x.reshape(-1)[order].reshape(x.shape)


def _check_inputs_are_kept(given: Tensors, batch: Tensors) -> None:
    """Raise ModelError where the model changed one of its inputs."""
    for i, (x, before) in enumerate(zip(given, batch, strict=True)):
        if version_of(x) > 0 or not _equal(x, before):
            raise writes_into(i)


def version_of(x: Tensor) -> int:
    """Return how often a tensor was written to; 0 where PyTorch does not count."""
    return 0 if x.is_inference() else x._version


def writes_into(i: int) -> ModelError:
    return ModelError(
        f"the model writes into its input {i}, so whoever calls it finds it changed; let forward work on a copy "
        "(x = x.clone())"
    )


def _equal(a: Tensor, b: Tensor) -> bool:
    return torch.equal(a, b) or (a.is_floating_point() and torch.allclose(a, b, rtol=0, atol=0, equal_nan=True))


def _shared(outputs: Tensors, held: Tensors) -> Iterator[int]:
    """Yield the positions of outputs that overlap the memory of `held` or of an earlier output."""
    taken = [_place(x) for x in held]
    for i, y in enumerate(outputs):
        place = _place(y)
        if place is None:
            continue
        if any(other and other[0] == place[0] and other[1] < place[2] and place[1] < other[2] for other in taken):
            yield i
        taken.append(place)


def _place(x: Tensor) -> tuple[int, int, int] | None:
    """Return a tensor's memory as (storage, first byte, end); None for a tensor without memory of its own."""
    if x.layout is not torch.strided or x.is_meta or not x.numel():
        return None
    reach = 1 + sum((size - 1) * stride for size, stride in zip(x.shape, x.stride(), strict=True))
    return x.untyped_storage().data_ptr(), x.data_ptr(), x.data_ptr() + reach * x.element_size()


def _agrees_with_gradients(run: Run, batch: Tensors, kept: Tensors) -> bool:
    """Return whether the model gives the same outputs while gradients are on. Nothing is saved for a backward pass."""
    nothing = torch.empty(0)
    try:
        with (
            warnings.catch_warnings(),
            torch.enable_grad(),
            torch.autograd.graph.saved_tensors_hooks(lambda _: nothing, lambda held: held),
        ):
            warnings.simplefilter("ignore")  # PyTorch warns about access to gradients
            found = [y.detach() for y in run(*(x.clone() for x in batch))]
    except Exception:  # noqa: BLE001 - a model may be written for inference only
        return False
    return len(found) == len(kept) and all(map(_resembles, found, kept))


def _resembles(a: Tensor, b: Tensor) -> bool:
    """Return whether tensors differ by what other kernels explain, even in 16 bits; another branch differs far more."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    if not (b.is_floating_point() or b.is_complex()):
        return torch.equal(a, b)
    return not b.numel() or float((a - b).abs().max()) <= 0.05 * float(b.abs().max())
