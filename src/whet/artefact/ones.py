"""Free dimensions of size 1, which torch.export takes to be 2 or more without a word.

`if x.shape[0] == 1` is answered once, with no, and leaves no condition behind: a graph called with 1 would silently
take the wrong path. So it is tried, beside the code it was made from.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from whet.workload import Subject

Run = Callable[..., Sequence[Tensor]]
_NEAR = 1e-3


def conditions_on_ones(model: Run, graph: Run, subject: Subject) -> list[str]:
    """`size >= 2`, as guards read it, for each free dimension in which the graph gives other answers for 1 than the
    model does, or the model none. Both take and return flat tensors."""
    batches = [*subject.flat_inputs, *subject.flat_calibration]
    conditions = []
    for group in _free_dimensions(subject, batches):
        cut = list(batches[0])
        for i, dim in group:
            cut[i] = cut[i].narrow(dim, 0, 1)
        if not _agree(model, graph, [x.contiguous() for x in cut]):
            conditions += [f"L['tensors'][{i}].size()[{dim}] >= 2" for i, dim in group]
    return conditions


def _free_dimensions(subject: Subject, batches: Sequence[Sequence[Tensor]]) -> list[list[tuple[int, int]]]:
    """(input, dimension) of each free dimension, those together whose sizes go together; none that 1 was seen in."""
    groups: dict[tuple[int, ...], list[tuple[int, int]]] = defaultdict(list)
    for i, argument in enumerate(subject.signature.inputs):
        for dim, size in enumerate(argument.shape):
            if size is None:
                groups[tuple(batch[i].shape[dim] for batch in batches)].append((i, dim))
    return [group for sizes, group in groups.items() if min(sizes) > 1]


def _agree(model: Run, graph: Run, inputs: Sequence[Tensor]) -> bool:
    try:
        with torch.no_grad():
            expected, found = tuple(model(*inputs)), tuple(graph(*inputs))
    except Exception:  # noqa: BLE001 - the user's code may raise anything for a size that it is not made for
        return False
    return len(expected) == len(found) and all(map(_is_near, expected, found))


def _is_near(a: Tensor, b: Tensor) -> bool:
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    if not a.is_floating_point() or not a.numel():
        return torch.equal(a, b)
    return torch.allclose(a, b, rtol=_NEAR, atol=_NEAR * float(a.nan_to_num().abs().max()), equal_nan=True)
