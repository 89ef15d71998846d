"""What processes do in the tests of parallel/grids: products on a grid, and counts of what they send for them."""

import math
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, distributed, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode

from whet.errors import OptionError
from whet.parallel.clipping import clip_gradients, local_of
from whet.parallel.grids import Linear2d, Linear3d, Linear25d
from whet.parallel.pieces import part_for, whole_of
from whet.parallel.ranks import Ranks

LAYERS: dict[str, Callable[..., Any]] = {
    "2d": Linear2d,
    "2.5d": Linear25d,
    "3d": Linear3d,
    "3d swapped": partial(Linear3d, swapped=True),
}
STACKS = {"2d": ["2d"] * 3, "2.5d": ["2.5d"] * 3, "3d": ["3d", "3d swapped", "3d"]}
DEPTH_WIDTHS = (8, 12, 20, 4)  # of three layers in a row
LR = 0.5

Case = tuple[tuple[int, ...], int, bool]
"""The shape of X, the number of output features, and whether there is a bias."""


class Sent(TorchDispatchMode):
    """Count collectives by name, and the elements that this process sends or receives in them."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[str] = Counter()
        self.moved = 0.0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace in ("c10d", "_c10d_functional"):
            self._count(str(func.overloadpacket).removeprefix("c10d."), args)
        return func(*args, **(kwargs or {}))

    def _count(self, name: str, args: Any) -> None:
        self.calls[name] += 1
        size = args[0][0].numel() if isinstance(args[0], list) else 0
        group = next(distributed.ProcessGroup.unbox(one) for one in args if isinstance(one, torch.ScriptObject))
        p, own = group.size(), group.rank()
        if name == "broadcast_":
            self.moved += size if args[2] != own else 0
        elif name == "reduce_":
            self.moved += size if args[3] != own else 0
        elif name == "allreduce_":
            self.moved += 2 * (p - 1) / p * size
        elif name == "_allgather_base_":
            self.moved += (p - 1) * args[1].numel()
        elif name == "_reduce_scatter_base_":
            self.moved += (p - 1) * args[0].numel()
        else:
            raise AssertionError(f"{name} is not counted")


def whole_layer(features: tuple[int, int], bias: bool, seed: int, dtype: torch.dtype = torch.float64) -> nn.Linear:
    torch.manual_seed(seed)
    return nn.Linear(*features, bias=bias, dtype=dtype)


def drawn(*shape: int, seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def one_process(case: Case) -> dict[str, Tensor]:
    """Return Y and all gradients of one process."""
    shape, n, bias = case
    linear = whole_layer((shape[-1], n), bias, seed=0)
    x = drawn(*shape, seed=1).requires_grad_()
    y = linear(x)
    y.backward(drawn(*y.shape, seed=2))
    found = {"y": y.detach(), "dx": x.grad, "dw": linear.weight.grad}
    return {**found, "db": linear.bias.grad} if bias else found


def products(ranks: Ranks, name: str, mesh_shape: tuple[int, ...], cases: list[Case]) -> list[dict[str, Any]]:
    """Return for each case Y and all gradients as whole tensors, the collectives, and what autograd saved."""
    mesh = init_device_mesh("cpu", mesh_shape)
    return [_product(ranks, LAYERS[name], mesh, case) for case in cases]


def _product(ranks: Ranks, make: Callable[..., Any], mesh: DeviceMesh, case: Case) -> dict[str, Any]:
    shape, n, bias = case
    layer = make(whole_layer((shape[-1], n), bias, seed=ranks.rank), mesh)  # only the first process's draws count
    x = layer.distribute_input(drawn(*shape, seed=1)).requires_grad_()
    dy = layer.distribute_output(drawn(*shape[:-1], n, seed=2))
    saved: list[Tensor] = []

    def keep(tensor: Tensor) -> Tensor:
        saved.append(tensor)
        return tensor

    with Sent() as sent:
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            y = layer(x)
        assert isinstance(y, DTensor) and y.shape == (*shape[:-1], n)
        y.backward(dy)
    assert layer.weight.grad.placements == layer.weight.placements
    for parameter in layer.parameters():  # as checkpoints take them apart and together
        assert torch.equal(part_for(whole_of(parameter), parameter).to_local(), parameter.to_local())
    found = {"y": y.detach(), "dx": x.grad, "dw": layer.weight.grad}
    if bias:
        found["db"] = layer.bias.grad
    return {
        "whole": {key: value.full_tensor().tolist() for key, value in found.items()},
        "calls": dict(sent.calls),
        "moved": sent.moved,
        "saved": sum(tensor.numel() for tensor in saved),
    }


def stack_steps(
    model: nn.Module, weigh: Callable[[], Tensor], update: Callable[[], Any] | None = None
) -> dict[str, Any]:
    """Make 2 clipped steps of SGD, and return losses, norms and all weights."""
    update = update or torch.optim.SGD(model.parameters(), lr=LR).step
    losses, norms = [], []
    for _ in range(2):
        model.zero_grad()
        loss = weigh()
        loss.backward()
        norms.append(float(clip_gradients(model.parameters(), 0.05)))
        update()
        losses.append(float(loss.detach()))
    weights = {
        key: (value.full_tensor() if isinstance(value, DTensor) else value).flatten().tolist()
        for key, value in model.state_dict().items()
    }
    return {"losses": losses, "norms": norms, "weights": weights}


def whole_stack() -> nn.Sequential:
    """Return three layers with activations between them."""
    a, b, c, d = DEPTH_WIDTHS
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(a, b), nn.GELU(), nn.Linear(b, c), nn.Tanh(), nn.Linear(c, d)).double()


def stack_of_one() -> dict[str, Any]:
    model = whole_stack()
    x, target = drawn(16, DEPTH_WIDTHS[0], seed=1), drawn(16, DEPTH_WIDTHS[-1], seed=2)
    return stack_steps(model, lambda: F.mse_loss(model(x), target))


def stacked(ranks: Ranks, name: str, mesh_shape: tuple[int, ...], as_dtensor: bool) -> dict[str, Any]:
    """Train a stack of layers on parts of a batch that each process has itself, which are DTensors or plain."""
    mesh = init_device_mesh("cpu", mesh_shape)
    model = whole_stack()
    for place, layer in zip((0, 2, 4), STACKS[name], strict=True):
        model[place] = LAYERS[layer](model[place], mesh)
    whole, target = drawn(16, DEPTH_WIDTHS[0], seed=1), drawn(16, DEPTH_WIDTHS[-1], seed=2)
    part = model[0].distribute_input(whole).to_local()
    x = DTensor.from_local(part, mesh, model[0].layout.input) if as_dtensor else part
    # On three dimensions, DTensor takes seconds to find out how each operator of an optimiser divides each shape.
    update = partial(_update_parts, model) if mesh.ndim == 3 else None
    return stack_steps(model, lambda: F.mse_loss(model[4].gather_output(model(x)), target), update)


@torch.no_grad()
def _update_parts(model: nn.Module) -> None:
    for parameter in model.parameters():
        assert parameter.grad is not None
        local_of(parameter).sub_(local_of(parameter.grad), alpha=LR)


def under_autocast(ranks: Ranks, name: str, mesh_shape: tuple[int, ...]) -> dict[str, Any]:
    """Return the greatest error of a product in bfloat16, relative to float64, and dtypes."""
    mesh = init_device_mesh("cpu", mesh_shape)
    layer = LAYERS[name](whole_layer((8, 12), True, seed=0, dtype=torch.float32), mesh)
    exact = LAYERS[name](whole_layer((8, 12), True, seed=0), mesh)
    reference = whole_layer((8, 12), True, seed=0, dtype=torch.float32).double()
    x = drawn(16, 8, seed=1)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = layer(layer.distribute_input(x.float()))
        y_double = exact(layer.distribute_input(x))
    y.full_tensor().float().square().sum().backward()
    reference(x).square().sum().backward()
    errors = {
        key: float((got.full_tensor().double() - want).norm() / want.norm())
        for key, got, want in (
            ("y", y.detach(), reference(x).detach()),
            ("dw", layer.weight.grad, reference.weight.grad),
            ("db", layer.bias.grad, reference.bias.grad),
        )
    }
    return {"errors": errors, "dtypes": [str(one.dtype) for one in (y, layer.weight.grad, y_double)]}


def everything(ranks: Ranks, name: str, mesh_shape: tuple[int, ...], cases: list[Case]) -> dict[str, Any]:
    """Run all that one launch of processes is needed for."""
    layers = sorted(set(STACKS[name]))
    return {
        "products": {layer: products(ranks, layer, mesh_shape, cases) for layer in layers},
        "stacks": [stacked(ranks, name, mesh_shape, as_dtensor) for as_dtensor in (False, True)],
        "autocast": under_autocast(ranks, name, mesh_shape),
    }


def imagine(world_size: int, rank: int) -> None:
    """Stand for one of so many processes, of which the others do not exist; what it receives is undefined."""
    if distributed.is_initialized():
        distributed.destroy_process_group()
    distributed.init_process_group("fake", store=FakeStore(), rank=rank, world_size=world_size)


def counted(
    ranks: Ranks, runs: list[tuple[str, tuple[int, ...], Case, bool, bool]]
) -> list[tuple[dict[str, int], float, int]]:
    """Return the collectives, the elements moved and those saved, of the last process of each grid."""
    found = []
    for name, mesh_shape, (shape, n, bias), needs_x, needs_w in runs:
        world_size = math.prod(mesh_shape)
        imagine(world_size, world_size - 1)
        layer = LAYERS[name](whole_layer((shape[-1], n), bias, seed=0), init_device_mesh("cpu", mesh_shape))
        layer.weight.requires_grad_(needs_w)
        saved: list[int] = []

        def keep(tensor: Tensor, saved: list[int] = saved) -> Tensor:
            saved.append(tensor.numel())
            return tensor

        with Sent() as sent, torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            x = layer.distribute_input(drawn(*shape, seed=1)).requires_grad_(needs_x)
            layer(x).backward(layer.distribute_output(drawn(*shape[:-1], n, seed=2)))
        found.append((dict(sent.calls), sent.moved, sum(saved)))
    return found


def refused(
    ranks: Ranks, runs: list[tuple[str, tuple[int, ...], tuple[int, int], tuple[str, tuple[int, ...]]]]
) -> list[str]:
    """Return the message of the refusal of each run: a layer, its mesh, its features, and what is done with it."""
    found = []
    for name, mesh_shape, features, what in runs:
        imagine(math.prod(mesh_shape), 0)
        mesh = init_device_mesh("cpu", mesh_shape)
        try:
            layer = LAYERS[name](whole_layer(features, True, seed=0), mesh)
            _act(layer, mesh, what)
        except OptionError as error:
            found.append(str(error))
        else:
            found.append("it was not refused")
    return found


def _act(layer: Any, mesh: DeviceMesh, what: tuple[str, tuple[int, ...]]) -> None:
    action, shape = what
    x = torch.zeros(shape, dtype=torch.float64)
    if action == "input":
        layer.distribute_input(x)
    elif action == "output":
        layer.distribute_output(x)
    elif action == "twice":
        layer.distribute_input(layer.distribute_input(x))
    elif action == "plain":
        layer(x)
    elif action == "uneven":
        layer(distribute_tensor(x, mesh, [Shard(0), Shard(1)], src_data_rank=None))
    elif action == "copies":
        layer(distribute_tensor(x, mesh, [Replicate()] * mesh.ndim, src_data_rank=None))
    elif action == "again":
        layer(layer(layer.distribute_input(x)))
