"""Hold a linear layer's weight and bias in parts on a grid of processes, and check what goes through the layer."""

import torch
from torch import Tensor, distributed, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

from whet.errors import OptionError
from whet.parallel.clipping import local_of
from whet.parallel.grids.layout import (
    COLUMNS,
    COPIES,
    Layout,
    Placements,
    divided,
    fitted,
    local_part,
    num_parts,
    parameter_of,
    refuse_uneven,
    shape_of,
)


class GridLinear(nn.Module):
    """Compute Y = X W^T + b as `nn.Linear` does, where no process holds X, W or Y as a whole.

    Its parameters have the names and shapes of `nn.Linear`'s. They are DTensors, so that optimisers, the clipping of
    gradients and sharded checkpoints work as they do for those of FSDP. Under autocast, the operands are cast before
    they are sent, and each sum over processes is rounded to their dtype.

    Attributes:
        layout: Which process holds which part.
        in_features: k.
        out_features: n.
    """

    def __init__(self, linear: nn.Linear, mesh: DeviceMesh, layout: Layout) -> None:
        """Divide a whole layer, which each process passes; the weights of the first process of the grid count.

        Raises:
            OptionError: The grid does not divide its sizes.
        """
        super().__init__()
        self.mesh, self.layout = mesh, layout
        self.in_features, self.out_features = linear.in_features, linear.out_features
        names = {0: "out_features", -1: "in_features"}
        refuse_uneven(linear.weight.shape, names, mesh, layout.weight, self._name)
        self.weight = parameter_of(linear.weight, mesh, layout.weight)
        self.bias = None if linear.bias is None else parameter_of(linear.bias, mesh, layout.bias)

    def distribute_input(self, x: Tensor) -> DTensor:
        """Return an input [rows, ..., k], which each process has as a whole, as this layer takes it; nothing is sent.

        Raises:
            OptionError: The grid does not divide its sizes.
        """
        self._refuse_features(x, self.in_features)
        return divided(x, _INPUT, self.mesh, self.layout.input, self._name)

    def distribute_output(self, y: Tensor) -> DTensor:
        """Return a tensor [rows, ..., n], such as a target, divided as this layer's output is; nothing is sent.

        Raises:
            OptionError: The grid does not divide its sizes.
        """
        self._refuse_features(y, self.out_features)
        return divided(y, _OUTPUT, self.mesh, self.layout.output, self._name)

    def gather_output(self, y: Tensor) -> Tensor:
        """Return the whole of what this layer returned, on each process; what follows must be the same on each."""
        if not isinstance(y, DTensor):
            y = DTensor.from_local(y, self.mesh, fitted(self.layout.output, y.ndim), run_check=False)
        for axis in reversed(range(self.mesh.ndim)):  # full_tensor() does the same in one call, and warns of it
            y = y.redistribute(placements=(*y.placements[:axis], *[COPIES] * (self.mesh.ndim - axis)))
        whole: Tensor = y.to_local()
        return whole

    def forward(self, x: Tensor) -> Tensor:
        """Return Y, divided as `layout.output` says: of a DTensor [rows, ..., k] a DTensor, else this process's part.

        Args:
            x: A DTensor, or this process's part of one, with as many rows as each other process has.

        Raises:
            OptionError: X is not divided as `layout.input` says.
        """
        local = self._part_of(x)
        weight, bias = local_of(self.weight), None if self.bias is None else local_of(self.bias)
        product = self.multiply(
            _autocast(local).flatten(0, -2), _autocast(weight), None if bias is None else _autocast(bias)
        )
        y: Tensor = product.unflatten(0, local.shape[:-1])
        if not isinstance(x, DTensor):
            return y
        return DTensor.from_local(y, self.mesh, fitted(self.layout.output, y.ndim), run_check=False)

    def multiply(self, x_MK: Tensor, w_NK: Tensor, b_N: Tensor | None) -> Tensor:
        """Return this process's part of Y, from its parts of X, W and b."""
        raise NotImplementedError

    def groups_of_copies(self, placements: Placements) -> list[distributed.ProcessGroup]:
        """Return the groups over which the gradient of what has these placements is summed."""
        return [self.mesh.get_group(axis) for axis, placement in enumerate(placements) if placement == COPIES]

    def extra_repr(self) -> str:
        """Return what is shown between the parentheses of the printed module."""
        return (
            f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}, "
            f"grid={shape_of(self.mesh)}"
        )

    @property
    def _name(self) -> str:
        return type(self).__name__

    def _part_of(self, x: Tensor) -> Tensor:
        if isinstance(x, DTensor):
            self._refuse_features(x, self.in_features)
            return local_part(x, _INPUT, self.mesh, self.layout.input, self._name)
        part = self.in_features // num_parts(self.mesh, self.layout.input, COLUMNS.dim)
        if x.ndim < 2 or x.shape[-1] != part:
            raise OptionError(
                f"{self._name} takes a DTensor or this process's part of one, [rows, ..., {part}], and got the shape "
                f"{list(x.shape)}; pass a whole tensor through distribute_input"
            )
        return x

    def _refuse_features(self, tensor: Tensor, features: int) -> None:
        if tensor.ndim < 2 or tensor.shape[-1] != features:
            raise OptionError(
                f"{self._name} expects the shape [rows, ..., {features}], and got {list(tensor.shape)}; give the "
                "tensor a first dimension that processes can divide, and as many features"
            )


def _autocast(tensor: Tensor) -> Tensor:
    """Return a tensor in autocast's dtype where autocast is on; as nn.Linear's, float64 stays."""
    kind = tensor.device.type
    if not torch.is_autocast_enabled(kind) or tensor.dtype == torch.float64:
        return tensor
    return tensor.to(torch.get_autocast_dtype(kind))


_INPUT = {0: "rows", -1: "in_features"}
_OUTPUT = {0: "rows", -1: "out_features"}
