"""Check views, and join their dimensions, for the kernels: they take few long rows faster than many short ones."""

import dataclasses
from collections.abc import Sequence

import torch

from whet.errors import InputsError
from whet.kernels.graph.operations import View
from whet.kernels.graph.structs import DIMS, TYPES, ViewStruct

_FLOAT = (torch.float32,)


def check(name: str, view: View, shape: Sequence[int] | None = None, dtypes: Sequence[torch.dtype] = _FLOAT) -> None:
    """Raise InputsError unless a view has the shape, one of the types, and numbers in memory.

    Args:
        name: What the view is to its operation, for the message.
    """
    if view.dtype not in dtypes:
        raise InputsError(f"{name} is {view.dtype}; it must be {' or '.join(map(str, dtypes))}")
    if shape is not None and view.shape != tuple(shape):
        raise InputsError(f"{name} has the shape {list(view.shape)}, not {list(shape)}")
    if len(view.strides) != len(view.shape) or min((0, *view.strides, *view.shape)) < 0:
        raise InputsError(f"{name} has the shape {list(view.shape)} and the strides {list(view.strides)}")
    if not view.address and 0 not in view.shape:
        raise InputsError(f"{name} has no address")


def expanded(name: str, view: View, shape: Sequence[int]) -> View:
    """Return a view broadcast to a shape.

    Raises:
        InputsError: It cannot be.
    """
    more = len(shape) - len(view.shape)
    sizes, strides = [1] * more + list(view.shape), [0] * more + list(view.strides)
    if more < 0 or any(size not in (1, wanted) for size, wanted in zip(sizes, shape, strict=True)):
        raise InputsError(f"{name} {list(view.shape)} cannot be broadcast to {list(shape)}")
    kept = tuple(0 if size != wanted else stride for size, wanted, stride in zip(sizes, shape, strides, strict=True))
    return dataclasses.replace(view, shape=tuple(shape), strides=kept)


def joined(views: Sequence[View], num_kept: int = 0, num_first: int = 0) -> list[View]:
    """Return views of one shape with those neighbouring dimensions joined that lie one in the other in all of them.

    Args:
        num_kept: This many last dimensions stay as they are.
        num_first: So do this many first ones. Behind them at least one dimension is given.
    """
    shape = views[0].shape
    end = len(shape) - num_kept
    dims: list[list[int]] = []  # size, then the stride in each view
    for d in range(num_first, end):
        strides = [view.strides[d] for view in views]
        if shape[d] == 1:
            continue
        if dims and all(outer == inner * shape[d] for outer, inner in zip(dims[-1][1:], strides, strict=True)):
            dims[-1] = [dims[-1][0] * shape[d], *strides]
        else:
            dims.append([shape[d], *strides])
    if num_first and not dims:
        dims.append([1] * (1 + len(views)))
    return [
        dataclasses.replace(
            view,
            shape=(*shape[:num_first], *(dim[0] for dim in dims), *shape[end:]),
            strides=(*view.strides[:num_first], *(dim[1 + i] for dim in dims), *view.strides[end:]),
        )
        for i, view in enumerate(views)
    ]


def struct_of(view: View | None) -> ViewStruct:
    """Return the C structure of a view, or an empty one.

    Raises:
        InputsError: It has too many dimensions.
    """
    if view is None:
        return ViewStruct()
    more = DIMS - len(view.shape)
    if more < 0:
        raise InputsError(f"numbers of the shape {list(view.shape)} lie in memory in more than {DIMS} dimensions")
    found = ViewStruct(view.address)
    found.shape[:] = [1] * more + list(view.shape)
    found.stride[:] = [0] * more + list(view.strides)
    found.type = TYPES[view.dtype]
    return found


def rows_struct(name: str, view: View | None) -> ViewStruct:
    """Return the C structure of rows, in which the numbers of a row lie side by side.

    Raises:
        InputsError: They don't, or they are not floats.
    """
    if view is None:
        return ViewStruct()
    check(name, view)
    if not view.shape:
        raise InputsError(f"{name} is one number, not rows")
    if view.shape[-1] > 1 and view.strides[-1] != 1:
        raise InputsError(f"the numbers of a row of {name} are {view.strides[-1]} apart; they must lie side by side")
    (rows,) = joined([view], num_kept=1)
    return struct_of(dataclasses.replace(rows, strides=(*rows.strides[:-1], 1)))
