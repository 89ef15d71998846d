"""Divide a linear layer among a cube of q x q x q processes: each holds 1/q^3 of X, W and Y.

The process (j, l, i) holds of X the rows (j, i) and the input features l, and of W the output features (j, i) and the
input features l. Where two letters divide one dimension, the first makes q parts and the second q parts of each of
these. Forward gathers X over j, so that the rows i of all j are there, and W over i, so that all output features j are
there. Their product is one of q terms, for input features l. A reduce-scatter over l sums these terms, and leaves Y
with the rows (l, i) and the output features j. So l and j have changed places, and the next layer must be swapped.

Backward gathers dY over l, and W and X again, since only the process's own parts are kept: saved tensors have 1/q^3 of
the elements in the place of 1/q^2. Forward and backward are 8 collectives, 5 all-gathers and 3 reduce-scatters. A
process sends or receives (q-1)/q^3 (3 mk + 3 kn + 2 mn) elements. Of these, (q-1)/q^3 (mk + kn) are the second gathers,
without which they would be 2 (q-1)/q^3 (mk + kn + mn). For the bias, of which q^2 processes hold copies, two
all-reduces sum its gradient over l and i: 4 (q-1)/q^2 n elements. Where X needs no gradient, two collectives are left
out.

Source: Agarwal et al., 1995, "A three-dimensional approach to parallel matrix multiplication"; for layers with their
gradients, Bian et al., 2021, arXiv:2105.14450. Unlike there, i divides the output features of W and not its input
features, so that what is gathered lies in one piece as nn.Linear stores W. What is sent is the same.

Shape suffixes: M rows, K input features and N output features of a process's part; R = q M gathered rows, F = q N
gathered output features.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.autograd.function import once_differentiable
from torch.distributed.device_mesh import DeviceMesh

from whet.errors import OptionError
from whet.parallel.grids.layout import COLUMNS, COPIES, ROWS, Layout, shape_of
from whet.parallel.grids.linear import GridLinear

Group = distributed.ProcessGroup

_DIVIDED = (ROWS, COLUMNS, ROWS)  # over (j, l, i)
_SWAPPED = (COLUMNS, ROWS, ROWS)
_LAYOUTS = {
    False: Layout(input=_DIVIDED, weight=_DIVIDED, bias=(ROWS, COPIES, COPIES), output=_SWAPPED),
    True: Layout(input=_SWAPPED, weight=_SWAPPED, bias=(COPIES, ROWS, COPIES), output=_DIVIDED),
}


class Linear3d(GridLinear):
    """Compute a linear layer on a mesh (j, l, i) of q x q x q processes.

    Each second layer of a model must be swapped, so that it takes X as the layer before it has left Y.
    """

    def __init__(self, linear: nn.Linear, mesh: DeviceMesh, *, swapped: bool = False) -> None:
        """Divide a whole layer, which each process passes; the weights of the first process of the grid count.

        Args:
            linear: The whole layer.
            mesh: The processes (j, l, i).
            swapped: Whether j and l have each other's place.

        Raises:
            OptionError: The mesh is no cube, q does not divide in_features, or q^2 does not divide out_features.
        """
        if mesh.ndim != 3 or len(set(mesh.shape)) > 1:
            raise OptionError(f"Linear3d takes a mesh of q x q x q processes, and got {shape_of(mesh)}; make it a cube")
        super().__init__(linear, mesh, _LAYOUTS[swapped])
        self.swapped = swapped

    def multiply(self, x_MK: Tensor, w_NK: Tensor, b_N: Tensor | None) -> Tensor:
        """Return this process's part of Y, from its parts of X, W and b."""
        cube = _Cube(
            input=self.mesh.get_group(1 if self.swapped else 0),
            output=self.mesh.get_group(0 if self.swapped else 1),
            weight=self.mesh.get_group(2),
            bias_copies=self.groups_of_copies(self.layout.bias),
        )
        found: Tensor = _Multiply3d.apply(x_MK, w_NK, b_N, cube)  # type: ignore[no-untyped-call]
        return found

    def extra_repr(self) -> str:
        """Return what is shown between the parentheses of the printed module."""
        return f"{super().extra_repr()}, swapped={self.swapped}"


@dataclass(frozen=True)
class _Cube:
    """Hold the groups of a process: over which X and W are gathered, Y is summed, and the gradient of b."""

    input: Group
    weight: Group
    output: Group
    bias_copies: Sequence[Group]


class _Multiply3d(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_MK: Tensor, w_NK: Tensor, b_F: Tensor | None, cube: _Cube) -> Tensor:
        needs_x, needs_w, *_ = ctx.needs_input_grad
        ctx.save_for_backward(x_MK if needs_w else None, w_NK if needs_x else None)
        ctx.cube = cube
        gathered_x, gathered_w = _gathering(x_MK, cube.input), _gathering(w_NK, cube.weight)
        y_MF = _scattered_sum(gathered_x() @ gathered_w().T, cube.output)
        return y_MF if b_F is None else y_MF.add_(b_F)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *outer: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None, None]:
        [dy_MF], cube = outer, ctx.cube
        x_MK, w_NK = ctx.saved_tensors
        dx_MK = dw_NK = db_F = None
        if x_MK is not None or w_NK is not None:
            gathered_dy = _gathering(dy_MF, cube.output)
            gathered_w = _gathering(w_NK, cube.weight) if w_NK is not None else None
            dy_RF = gathered_dy()
            if gathered_w is not None:
                dx_MK = _scattered_sum(dy_RF @ gathered_w(), cube.input)
                gathered_w = None  # and its memory, before X is gathered
            if x_MK is not None:
                dw_NK = _scattered_sum(dy_RF.T @ _gathering(x_MK, cube.input)(), cube.weight)
        if ctx.needs_input_grad[2]:
            db_F = dy_MF.sum(0)
            for group in cube.bias_copies:
                distributed.all_reduce(db_F, group=group)
        return dx_MK, dw_NK, db_F, None


def _gathering(part: Tensor, group: Group) -> Callable[[], Tensor]:
    """Begin to gather parts along the first dimension; what is returned waits for it, and returns the whole."""
    part = part.detach().contiguous()
    whole = part.new_empty(group.size() * part.shape[0], *part.shape[1:])
    work: Any = distributed.all_gather_single(whole, part, group=group, async_op=True)

    def gathered() -> Tensor:
        work.wait()
        return whole

    return gathered


def _scattered_sum(term: Tensor, group: Group) -> Tensor:
    """Return this process's part, along the first dimension, of the sum of a group's terms."""
    part = term.new_empty(term.shape[0] // group.size(), *term.shape[1:])
    distributed.reduce_scatter_single(part, term.contiguous(), group=group)
    return part
