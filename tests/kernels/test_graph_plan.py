"""Plans of many operations: a whole layer of an encoder, on any number of threads, in several threads of a program."""

import math
import threading

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from whet.errors import KernelsError
from whet.kernels import dispatch
from whet.kernels.build import Library
from whet.kernels.graph import plan as plan_module
from whet.kernels.graph.operations import Activation, Attend, Fill, Linear, Norm, Normalise, Operation, View
from whet.kernels.graph.plan import Plan
from whet.kernels.linear import pack_weights
from whet.kernels.linear.layout import Kind

B, T, H, D, WIDE = 2, 50, 4, 32, 300
WIDTH = H * D


class Layer:
    """An encoder's layer with its norms after the residuals."""

    def __init__(self, kind: Kind) -> None:
        sizes = ((3 * WIDTH, WIDTH), (WIDTH, WIDTH), (WIDE, WIDTH), (WIDTH, WIDE))
        self.weights = [torch.randn(n, k) / math.sqrt(k) for n, k in sizes]
        self.biases = [torch.randn(n) for n, _ in sizes]
        self.packed = [pack_weights(w, kind, b) for w, b in zip(self.weights, self.biases, strict=True)]

    def operations(self, x: Tensor, out: Tensor, keep: list[Tensor]) -> list[Operation]:
        shapes = ((B * T, 3 * WIDTH), (B * T, WIDTH), (B * T, WIDTH), (B * T, WIDTH), (B * T, WIDE), (B * T, WIDTH))
        keep += [torch.empty(shape) for shape in shapes]
        qkv, mixed, summed, normalised, wide, last = keep
        q, k, v = (View.of(part) for part in qkv.view(B, T, 3, H, D).permute(2, 0, 3, 1, 4))
        norm, rows = Norm(None, None, 1e-5, False), View.of(x)
        return [
            Linear(rows, self.packed[0], View.of(qkv)),
            Attend(q, k, v, View.of(mixed.view(B, T, H, D).transpose(1, 2)), 1 / math.sqrt(D)),
            Linear(View.of(mixed), self.packed[1], View.of(summed), residual=rows),
            Normalise(View.of(summed), norm, View.of(normalised)),
            Linear(View.of(normalised), self.packed[2], View.of(wide), Activation.GELU),
            Linear(View.of(wide), self.packed[3], View.of(last), residual=View.of(normalised)),
            Normalise(View.of(last), norm, View.of(out)),
        ]

    def exact(self, x: Tensor) -> Tensor:
        linear = [
            lambda y, w=w, b=b: functional.linear(y, w.double(), b.double())
            for w, b in zip(self.weights, self.biases, strict=True)
        ]
        q, k, v = linear[0](x.double()).view(B, T, 3, H, D).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(B * T, WIDTH)
        normalised = functional.layer_norm(linear[1](mixed) + x, (WIDTH,))
        return functional.layer_norm(linear[3](functional.gelu(linear[2](normalised))) + normalised, (WIDTH,))


@pytest.mark.parametrize("kind", [Kind.F32, Kind.BF16, Kind.S8], ids=lambda kind: kind.name)
def test_a_layer_on_any_number_of_threads(kernels: Library, kind: Kind) -> None:
    layer, x, results = Layer(kind), torch.randn(B * T, WIDTH), []
    keep: list[Tensor] = []
    out = torch.empty(B * T, WIDTH)
    plan = Plan(layer.operations(x, out, keep), keep)
    try:
        for num_threads in (1, 2, 4, 3, 2):
            kernels.set_threads(num_threads)
            out.fill_(7)
            plan.run()
            results.append(out.clone())
    finally:
        kernels.set_threads(torch.get_num_threads())
    assert all(torch.equal(result, results[0]) for result in results)
    assert float((out - layer.exact(x)).abs().max()) < {Kind.F32: 1e-5, Kind.BF16: 0.03, Kind.S8: 0.1}[kind]


def test_several_threads_of_a_program_run_plans_at_once(kernels: Library) -> None:
    layer = Layer(Kind.S8)
    inputs = [torch.randn(B * T, WIDTH) for _ in range(4)]
    alone, at_once = ([torch.empty(B * T, WIDTH) for _ in inputs] for _ in range(2))
    keep: list[list[Tensor]] = [[] for _ in range(8)]
    plans = [
        Plan(layer.operations(x, out, kept), kept)
        for x, out, kept in zip(inputs * 2, alone + at_once, keep, strict=True)
    ]
    for plan in plans[:4]:
        plan.run()
    threads = [threading.Thread(target=lambda plan=plan: [plan.run() for _ in range(10)]) for plan in plans[4:]]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(map(torch.equal, alone, at_once))


def test_what_is_empty_is_left_out(kernels: Library) -> None:
    out = torch.zeros(4, 3)
    empty = View(0, (0, 3), (3, 1))
    Plan(
        [Linear(View(0, (0, 8), (8, 1)), pack_weights(torch.randn(3, 8), Kind.S8), empty), Fill(View.of(out), 2)]
    ).run()
    assert bool((out == 2).all())
    Plan([]).run()


def test_without_kernels_there_is_no_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> Library:
        raise KernelsError("no compiler")

    monkeypatch.setattr(dispatch, "kernels", lambda: None)
    monkeypatch.setattr(plan_module, "library", missing)
    with pytest.raises(KernelsError, match="no compiler"):
        Plan([])
