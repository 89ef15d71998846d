"""Free dimensions of size 1, which torch.export takes to be 2 or more without a word.

`if x.shape[0] == 1` is answered once, with no, and leaves no condition behind: a graph called with 1 would silently
take the wrong path. So it is tried, beside the code it was made from.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from whet.workload import Subject, is_near

Run = Callable[..., Sequence[Tensor]]


def conditions_on_ones(model: Run, graph: Run, subject: Subject, batches: Sequence[Sequence[Tensor]] = ()) -> list[str]:
    """Return `size >= 2`, as guards read it, for each free dimension where the graph answers 1 as the model does not.

    model and graph take and return flat tensors. batches: flat inputs, in place of the subject's. All must lie on the
    CPU: what is cut may hold indices of what is no longer there, and a GPU does not come back from that.
    """
    batches = batches or [*subject.flat_inputs, *subject.flat_calibration]
    conditions = []
    for sizes, group in _free_dimensions(subject, batches).items():
        cut = list(batches[sizes.index(min(sizes))])
        for i, dim in group:
            cut[i] = cut[i].narrow(dim, 0, 1)
        if _misleads(model, graph, [x.contiguous() for x in cut]):
            conditions += [f"L['tensors'][{i}].size()[{dim}] >= 2" for i, dim in group]
    return conditions


def _free_dimensions(
    subject: Subject, batches: Sequence[Sequence[Tensor]]
) -> dict[tuple[int, ...], list[tuple[int, int]]]:
    """Sizes, batch by batch -> (input, dimension) of each free dimension that takes them."""
    groups: dict[tuple[int, ...], list[tuple[int, int]]] = defaultdict(list)
    for i, argument in enumerate(subject.signature.inputs):
        for dim, size in enumerate(argument.shape):
            if size is None:
                groups[tuple(batch[i].shape[dim] for batch in batches)].append((i, dim))
    return {sizes: group for sizes, group in groups.items() if min(sizes) > 0}


def _misleads(model: Run, graph: Run, inputs: Sequence[Tensor]) -> bool:
    """Whether the graph answers, and not as the model does. What neither of them takes needs no condition."""
    try:
        with torch.no_grad():
            found = tuple(graph(*inputs))
    except Exception:  # noqa: BLE001 - sizes that do not go together
        return False
    try:
        with torch.no_grad():
            expected = tuple(model(*inputs))
    except Exception:  # noqa: BLE001 - the user's code may raise anything for a size that it is not made for
        return True
    return len(expected) != len(found) or not all(map(is_near, expected, found))
