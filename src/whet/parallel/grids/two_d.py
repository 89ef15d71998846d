"""Divide a linear layer among a square of q x q processes: each holds 1/q^2 of X, W and Y.

Forward and backward are 6q collectives: 4q broadcasts and 2q sums. A process sends or receives
3 (q-1)/q^2 (mk + kn) elements; of Y, none is sent. For the bias, the q processes of a column hold copies; one more
all-reduce sums its gradient, 2 (q-1)/q^2 n elements. Where X needs no gradient, as a model's own input, 2q collectives
are left out.

See summa.py for the algorithm, and the package for what counts as moved.
"""

from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from whet.errors import OptionError
from whet.parallel.grids.layout import COLUMNS, COPIES, ROWS, Layout, shape_of
from whet.parallel.grids.linear import GridLinear
from whet.parallel.grids.summa import Square, summa

_LAYOUT = Layout(input=(ROWS, COLUMNS), weight=(COLUMNS, ROWS), bias=(COPIES, ROWS), output=(ROWS, COLUMNS))


class Linear2d(GridLinear):
    """Compute a linear layer on a mesh (row, column) of q x q processes.

    The process in row i and column j holds rows i and features j of X, rows i and features j of Y, and of W what leads
    from input features i to output features j. Layers follow each other without any exchange between them.
    """

    def __init__(self, linear: nn.Linear, mesh: DeviceMesh) -> None:
        """Divide a whole layer, which each process passes; the weights of the first process of the grid count.

        Raises:
            OptionError: The mesh is no square, or q does not divide in_features or out_features.
        """
        if mesh.ndim != 2 or len(set(mesh.shape)) > 1:
            raise OptionError(f"Linear2d takes a mesh of q x q processes, and got {shape_of(mesh)}; make it a square")
        super().__init__(linear, mesh, _LAYOUT)

    def multiply(self, x_MK: Tensor, w_NK: Tensor, b_N: Tensor | None) -> Tensor:
        """Return this process's part of Y, from its parts of X, W and b."""
        square = Square(
            row=self.mesh.get_group(1),
            column=self.mesh.get_group(0),
            weight_copies=self.groups_of_copies(self.layout.weight),
            bias_copies=self.groups_of_copies(self.layout.bias),
        )
        return summa(x_MK, w_NK, b_N, square)
