"""Free dimensions of size 1 and 0, which torch.export takes to be 2 or more without a word.

`if x.shape[0] == 1` is answered once, with no, and leaves no condition behind: a graph called with 1 would silently
take the wrong path. So both sizes are tried, beside the code the graph was made from.
"""

from collections.abc import Sequence

from torch import Tensor

from whet.core.artefact.probes import Run, misleads
from whet.core.signature import free_dimensions
from whet.core.workload import ExaminedWorkload


def conditions_on_ones(
    model: Run, graph: Run, examined: ExaminedWorkload, batches: Sequence[Sequence[Tensor]] = ()
) -> list[str]:
    """Find the free dimensions in which a graph of flat tensors answers otherwise than its model for size 1 or 0.

    Args:
        batches: Flat inputs, in place of the workload's. All must lie on the CPU: cut inputs may hold indices of
            elements that were cut away, and a GPU does not recover from those.

    Returns:
        `size >= 2` or `size >= 1`, in the guards' notation, for each such dimension.
    """
    batches = batches or [*examined.flat_inputs, *examined.flat_calibration]
    conditions = []
    for sizes, group in free_dimensions(examined.signature, batches).items():
        if not min(sizes):
            continue
        for size in (1, 0):
            cut = list(batches[sizes.index(min(sizes))])
            for i, dim in group:
                cut[i] = cut[i].narrow(dim, 0, size)
            if misleads(model, graph, [x.contiguous() for x in cut]):
                conditions += [f"L['tensors'][{i}].size()[{dim}] >= {size + 1}" for i, dim in group]
                break
    return conditions
