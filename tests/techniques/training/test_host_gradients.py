"""Gradients in the host's memory are, for the loop and the update, the gradients that they are elsewhere."""

import copy
import io
import pickle
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from test_offload import InCopies
from tiny_training import TinyLM, adamw, tiny_workload
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from whet.core.workload import TrainingWorkload
from whet.core.workload.training import Trainer
from whet.techniques.costs.memory import step_memory
from whet.techniques.mechanisms import cpu_offloaded_gradients
from whet.techniques.mechanisms.cpu_offloaded_gradients import HostGradient, keep_gradients_on_host, numbers_of
from whet.techniques.mechanisms.host_copies import HostCopy
from whet.techniques.mechanisms.master_weights import keep_in_bfloat16
from whet.techniques.mechanisms.parts import Parts
from whet.techniques.proof.updates import prove_updates

CPU = torch.device("cpu")


def on_host(model: nn.Module, optimizer: torch.optim.Optimizer, batches: Any) -> Parts:
    """Do what optimizer_offload with gradients=True does, with the CPU in the GPU's place."""
    InCopies(optimizer)
    keep_gradients_on_host(model.parameters(), device_type="cpu")
    return Parts(model, optimizer, batches)


def trained(workload: TrainingWorkload, *, moves: bool, num_steps: int = 6) -> list[Tensor]:
    trainer = Trainer(workload, change=on_host if moves else None)
    losses = [trainer.step() for _ in range(num_steps)]
    assert all(isinstance(p.grad, HostGradient) == moves for p in trainer.model.parameters())
    return [torch.stack(losses), *(p.detach() for p in trainer.model.parameters())]


@pytest.mark.parametrize("clip_norm", [None, 0.1])
@pytest.mark.parametrize("num_accumulated", [1, 3])
@pytest.mark.parametrize("make", [adamw, lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.1)])
def test_training_is_the_same_bit_by_bit(make: Any, num_accumulated: int, clip_norm: float | None) -> None:
    found = [
        trained(tiny_workload(optimizer=make, num_accumulated=num_accumulated, clip_norm=clip_norm), moves=moves)
        for moves in (False, True)
    ]
    for mine, theirs in zip(found[1], found[0], strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=0)


def test_clipping_reaches_the_update() -> None:
    """With a tiny norm, SGD does nearly nothing; without clipping it would."""
    moved = []
    for clip_norm in (1e-6, None):
        workload = tiny_workload(clip_norm=clip_norm, optimizer=lambda p: torch.optim.SGD(p, lr=1.0))
        before = copy.deepcopy(list(workload.model.parameters()))
        trained(workload, moves=True, num_steps=1)
        squares = [(a - b).detach().square().sum() for a, b in zip(before, workload.model.parameters(), strict=True)]
        moved.append(float(torch.stack(squares).sum().sqrt()))
    assert moved[0] == pytest.approx(1e-6, rel=0.05)
    assert moved[1] > 0.1


@pytest.mark.parametrize("sets_to_none", [False, True])
@pytest.mark.parametrize("clip", ["norm", "inf", "value", "foreach"])
def test_loops_of_users(clip: str, sets_to_none: bool) -> None:
    """The loop keeps its own zero_grad and clipping; it looks at the gradients, and skips a step by them."""
    found = []
    for moves in (False, True):
        workload = tiny_workload()
        model, optimizer = workload.model.train(), workload.optimizer(workload.model.parameters())
        if moves:
            on_host(model, optimizer, [])
        seen: list[Any] = []
        for _ in range(2):
            for batch in workload.batches:
                model.zero_grad(set_to_none=sets_to_none)
                workload.loss(model, batch).backward()
                if clip == "value":
                    nn.utils.clip_grad_value_(model.parameters(), 1e-3)
                else:
                    options = {"norm_type": float("inf")} if clip == "inf" else {}
                    options |= {"foreach": True} if clip == "foreach" else {}
                    seen.append(float(nn.utils.clip_grad_norm_(model.parameters(), 0.1, **options)))
                seen += [float(p.grad.abs().max()) for p in model.parameters()]  # type: ignore[union-attr]
                if all(bool(torch.isfinite(p.grad).all()) for p in model.parameters()):  # type: ignore[arg-type]
                    optimizer.step()
        found.append((seen, [p.detach() for p in model.parameters()]))
    assert found[0][0] == found[1][0]
    torch.testing.assert_close(found[1][1], found[0][1], rtol=0, atol=0)


def test_a_gradient_scaler_divides_them() -> None:
    found = []
    for moves in (False, True):
        workload = tiny_workload()
        model, optimizer = workload.model.train(), workload.optimizer(workload.model.parameters())
        if moves:
            on_host(model, optimizer, [])
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=3)
        scales = []
        for i, batch in enumerate(workload.batches):
            optimizer.zero_grad()
            scaler.scale(workload.loss(model, batch) * (float("inf") if i == 1 else 1.0)).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            scaler.step(optimizer)
            scaler.update()
            scales.append(scaler.get_scale())
        found.append((scales, [p.detach() for p in model.parameters()]))
    assert found[0][0] == found[1][0] == [1024.0, 512.0, 512.0, 512.0]
    torch.testing.assert_close(found[1][1], found[0][1], rtol=0, atol=0)


def test_updates_are_proved_with_gradients_on_the_host() -> None:
    workload = tiny_workload()
    proof = prove_updates(workload, Trainer(workload, change=on_host))
    assert proof.is_same is True, proof.words


def test_with_weights_in_bfloat16() -> None:
    found = []
    for moves in (False, True):
        workload = tiny_workload(clip_norm=0.1)
        matrices = [p for p in workload.model.parameters() if p.dim() > 1]

        def change(
            model: nn.Module, optimizer: Any, batches: Any, matrices: Any = matrices, moves: bool = moves
        ) -> Parts:
            keep_in_bfloat16(model, optimizer, matrices)
            return on_host(model, optimizer, batches) if moves else Parts(model, optimizer, batches)

        loss = workload.loss

        def in_autocast(model: nn.Module, batch: Any, loss: Any = loss) -> Tensor:
            with torch.autocast("cpu", torch.bfloat16):
                return loss(model, batch)

        trainer = Trainer(replace(workload, loss=in_autocast), change=change)
        found.append(torch.stack([trainer.step() for _ in range(5)]))
    torch.testing.assert_close(found[1], found[0], rtol=0, atol=0)


# What a loop may do with a gradient. Each takes the gradient and another tensor of its shape, and may return something.
USES: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "norm": lambda g, x: g.norm(),
    "a norm of several": lambda g, x: torch.stack(torch._foreach_norm([g, g])),
    "several factors": lambda g, x: torch._foreach_mul_([g, x], 2.0),
    "sum": lambda g, x: g + x,
    "sum the other way": lambda g, x: x + g,
    "add": lambda g, x: g.add_(x, alpha=0.5),
    "added to another": lambda g, x: x.add_(g),
    "copied to another": lambda g, x: x.copy_(g),
    "copied from another": lambda g, x: g.copy_(x),
    "zero": lambda g, x: g.zero_(),
    "zeros": lambda g, x: torch._foreach_zero_([g, x]),
    "through a view": lambda g, x: g.view(-1)[3:7].mul_(3.0),
    "through its data": lambda g, x: g.data.clamp_(-0.5, 0.5),
    "through detach": lambda g, x: g.detach().div_(7.0),
    "written at an index": lambda g, x: g.__setitem__((slice(1, 3), 0), 9.0),
    "written by a mask": lambda g, x: g.masked_fill_(x > 0, 0.0),
    "an index": lambda g, x: g[1],
    "indices": lambda g, x: g[torch.tensor([0, 2])],
    "transposed": lambda g, x: g.t() @ x,
    "flat": lambda g, x: torch.cat([g.flatten(), x.reshape(-1)]),
    "finite": lambda g, x: torch.isfinite(g).all(),
    "an item": lambda g, x: g[0, 0].item(),
    "a list": lambda g, x: g.tolist(),
    "numpy": lambda g, x: torch.from_numpy(g.cpu().clone().numpy()),
    "another dtype": lambda g, x: g.double(),
    "another dtype, without waiting": lambda g, x: g.to(torch.bfloat16, non_blocking=True),
    "zeros like it": lambda g, x: torch.zeros_like(g),
    "noise": lambda g, x: g.add_(torch.randn_like(g)),
    "noise in its place": lambda g, x: g.normal_(),
    "dropped": lambda g, x: torch.nn.functional.dropout(g, 0.5),
    "into a given tensor": lambda g, x: torch.mul(g, 2.0, out=x),
    "a quantile": lambda g, x: g.quantile(0.5),
    "a sign": lambda g, x: g.sign_(),
    "equal": lambda g, x: torch.equal(g, x),
    "a maximum": lambda g, x: g.max(dim=1),
}


@pytest.mark.parametrize("use", USES.values(), ids=list(USES))
def test_whatever_a_loop_does_with_a_gradient(use: Callable[[Tensor, Tensor], Any]) -> None:
    torch.manual_seed(0)
    values, others = torch.randn(4, 5), torch.randn(4, 5)
    plain, theirs = values.clone(), others.clone()
    torch.manual_seed(1)
    expected = use(plain, theirs)
    gradient, mine = HostGradient(HostCopy(values), CPU), others.clone()
    assert isinstance(gradient, Tensor) and gradient.shape == (4, 5)
    torch.manual_seed(1)
    found = use(gradient, mine)
    torch.testing.assert_close(numbers_of(gradient), plain, rtol=0, atol=0)
    torch.testing.assert_close(mine, theirs, rtol=0, atol=0)
    for one, other in zip(tree_leaves(found), tree_leaves(expected), strict=True):
        if isinstance(one, Tensor):
            torch.testing.assert_close(numbers_of(one), other, rtol=0, atol=0)
        else:
            assert one == other


def test_what_is_computed_lies_on_the_device_that_the_gradient_shows() -> None:
    """The meta device stands for a GPU."""
    numbers = torch.arange(20.0).reshape(4, 5)
    meta = torch.device("meta")
    gradient = HostGradient(numbers, meta)
    assert gradient.device == meta
    assert gradient.norm().device == meta
    assert gradient.to("cpu").equal(numbers)
    assert type(gradient.cpu()) is Tensor
    assert (gradient * 2).device == meta
    assert type(gradient * 2) is Tensor
    view = gradient[1:3]
    assert isinstance(view, HostGradient) and view.device == meta
    assert gradient.mul_(2.0) is gradient
    gradient[0].zero_()
    assert numbers.tolist()[:2] == [[0.0] * 5, [10.0, 12.0, 14.0, 16.0, 18.0]]
    assert torch.zeros_like(gradient).device == meta
    assert torch.zeros_like(gradient, device="cpu").device.type == "cpu"
    other = torch.zeros(4, 5)
    other.copy_(gradient)
    assert other.equal(numbers)


def test_copies_and_pickles() -> None:
    gradient = HostGradient(HostCopy(torch.arange(6.0)), CPU)
    twin = copy.deepcopy(gradient)
    twin.zero_()
    assert numbers_of(gradient).tolist() == [0, 1, 2, 3, 4, 5]
    assert isinstance(twin, HostGradient)
    read = pickle.loads(pickle.dumps(gradient))
    assert type(read) is Tensor and read.equal(torch.arange(6.0))
    file = io.BytesIO()
    torch.save({"gradient": gradient}, file)
    file.seek(0)
    assert torch.load(file)["gradient"].equal(torch.arange(6.0))
    assert "HostGradient(tensor([0., 1." in repr(gradient)


def test_a_model_with_such_gradients_is_copied_cast_and_saved() -> None:
    model = TinyLM()
    keep_gradients_on_host(model.parameters(), device_type="cpu")
    model(torch.ones(2, 3, dtype=torch.int64)).sum().backward()
    wanted = {name: numbers_of(p.grad).double() for name, p in model.named_parameters()}  # type: ignore[arg-type]
    twin = copy.deepcopy(model)
    assert twin.state_dict().keys() == model.state_dict().keys()
    pickle.loads(pickle.dumps(model))
    model.double()
    for name, p in model.named_parameters():
        assert p.grad is not None and p.grad.dtype is torch.float64
        assert p.grad.cpu().dtype is torch.float64
        torch.testing.assert_close(numbers_of(p.grad), wanted[name], rtol=0, atol=0)
    model.bfloat16()
    assert {numbers_of(p.grad).dtype for p in model.parameters()} == {torch.bfloat16}  # type: ignore[arg-type]


def test_gradients_that_stay() -> None:
    embedding = nn.Embedding(10, 4, sparse=True)
    weight = nn.Parameter(torch.ones(3))
    frozen = nn.Parameter(torch.ones(3), requires_grad=False)
    keep_gradients_on_host([embedding.weight, weight, frozen], device_type="cpu")
    embedding(torch.tensor([1, 2])).sum().backward()
    assert embedding.weight.grad is not None and embedding.weight.grad.is_sparse
    with pytest.warns(UserWarning, match="create_graph"):
        (weight**3).sum().backward(create_graph=True)
    assert type(weight.grad) is Tensor
    weight.grad = None
    other = nn.Parameter(torch.ones(3))
    keep_gradients_on_host([other])  # moves from CUDA alone
    (other * weight).sum().backward()
    assert type(other.grad) is Tensor
    assert isinstance(weight.grad, HostGradient)


def test_a_second_backward_adds_on_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    copies: list[int] = []

    class Counted(HostCopy):
        def __init__(self, x: Tensor) -> None:
            copies.append(x.numel())
            super().__init__(x)

    monkeypatch.setattr(cpu_offloaded_gradients, "HostCopy", Counted)
    weight = nn.Parameter(torch.ones(3))
    keep_gradients_on_host([weight], device_type="cpu")
    for factor in (1.0, 2.0, 4.0):
        (factor * weight).sum().backward()
    assert numbers_of(weight.grad).tolist() == [7.0] * 3  # type: ignore[arg-type]
    assert copies == [3], "the first one is copied, the others are added to it"


def test_what_lies_elsewhere_is_no_part_of_a_steps_memory() -> None:
    model = nn.Linear(8, 4, device="meta")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model.weight.grad = HostGradient(torch.zeros(4, 8), torch.device("meta"))
    model.bias.grad = torch.zeros(4, device="meta")
    optimizer.state[model.weight]["momentum_buffer"] = torch.zeros(4, 8)
    found = step_memory(model, optimizer, 1000)
    assert (found.gradient_bytes, found.optimizer_bytes) == (16, 0)
