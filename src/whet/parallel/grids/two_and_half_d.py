"""Divide a linear layer among d squares of q x q processes: each holds 1/(d q^2) of X and Y, and 1/q^2 of W.

Each square has rows of its own, and multiplies them as in two_d.py. All squares hold the same W, whose gradient is
summed over them by one all-reduce more. Forward and backward are 6q + 1 collectives, in which a process sends or
receives 3 (q-1)/q^2 (mk/d + kn) + 2 (d-1)/d kn/q^2 elements. For the bias, two all-reduces sum its gradient over the
q processes of a column and over the d squares: 2 ((q-1)/q + (d-1)/d) n/q elements.

Source: Wang et al., 2021, arXiv:2105.14500.
"""

from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from whet.errors import OptionError
from whet.parallel.grids.layout import COLUMNS, COPIES, ROWS, Layout, shape_of
from whet.parallel.grids.linear import GridLinear
from whet.parallel.grids.summa import Square, summa

_LAYOUT = Layout(
    input=(ROWS, ROWS, COLUMNS),
    weight=(COPIES, COLUMNS, ROWS),
    bias=(COPIES, COPIES, ROWS),
    output=(ROWS, ROWS, COLUMNS),
)


class Linear25d(GridLinear):
    """Compute a linear layer on a mesh (depth, row, column) of d x q x q processes.

    The process at depth e, in row i and column j holds the part e q + i of the d q parts of X's rows, and features j.
    It holds the same rows of Y. Layers follow each other without any exchange between them.
    """

    def __init__(self, linear: nn.Linear, mesh: DeviceMesh) -> None:
        """Divide a whole layer, which each process passes; the weights of the first process of the grid count.

        Raises:
            OptionError: The mesh is not d x q x q, or q does not divide in_features or out_features.
        """
        if mesh.ndim != 3 or mesh.size(1) != mesh.size(2):
            raise OptionError(
                f"Linear25d takes a mesh of d x q x q processes, and got {shape_of(mesh)}; make its last two sizes "
                "equal"
            )
        super().__init__(linear, mesh, _LAYOUT)

    def multiply(self, x_MK: Tensor, w_NK: Tensor, b_N: Tensor | None) -> Tensor:
        """Return this process's part of Y, from its parts of X, W and b."""
        square = Square(
            row=self.mesh.get_group(2),
            column=self.mesh.get_group(1),
            weight_copies=self.groups_of_copies(self.layout.weight),
            bias_copies=self.groups_of_copies(self.layout.bias),
        )
        return summa(x_MK, w_NK, b_N, square)
