"""Triton's selective scans against loops in float64: on a GPU, or by Triton's interpreter on a CPU.

tests/kernels/test_triton.py runs this file by the interpreter, which takes milliseconds for each program. So inputs are
small, and few.
"""

from typing import Any

import pytest
import torch
from torch import Tensor

from scan_loops import (
    Named,
    check_all,
    doubled,
    gradients,
    in_order,
    mamba1_inputs,
    mamba1_loop,
    mamba2_inputs,
    mamba2_loop,
    off,
)
from whet.kernels.selective_scan import scan_operator, selective_scan, ssd

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(120)]


@pytest.fixture
def place(device: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """The device. A program takes so little that small inputs have several chunks, blocks and bundles."""
    from whet.kernels.selective_scan import cuda

    monkeypatch.setattr(cuda, "DIAGONAL_TOKENS", 4)
    monkeypatch.setattr(cuda, "ELEMENTS", 32)
    monkeypatch.setattr(cuda, "BUNDLE_CHANNELS", 4)
    monkeypatch.setattr(cuda, "HEAD_TOKENS", 16)
    return device


def on(device: str, function: Any, **options: Any) -> Any:
    """The operator as a function of tensors on the CPU."""

    def call(x: Named) -> tuple[Tensor, ...]:
        moved = [None if value is None else value.to(device) for value in in_order(x)]
        return tuple(part.cpu() for part in function(*moved, **options))

    return call


@pytest.mark.parametrize(("shape", "optional"), [((1, 1, 1, 1), False), ((2, 6, 3, 4), True), ((1, 5, 6, 3), False)])
def test_mamba1_is_the_loop_in_double(place: str, shape: tuple[int, ...], optional: bool) -> None:
    check_all(on(place, selective_scan), mamba1_loop, mamba1_inputs(*shape, optional=optional))


@pytest.mark.parametrize(
    ("shape", "optional"),
    [((1, 1, 1, 1, 1, 1), False), ((2, 17, 2, 5, 1, 7), True), ((1, 33, 2, 20, 2, 40), False)],
)
def test_mamba2_is_the_loop_in_double(place: str, shape: tuple[int, ...], optional: bool) -> None:
    check_all(on(place, ssd), mamba2_loop, mamba2_inputs(*shape, optional=optional))


def test_mamba2_within_limits(place: str) -> None:
    x, limits = mamba2_inputs(1, 18, 1, 4, 1, 4, gated=False), (0.3, 1.1)
    check_all(on(place, ssd, delta_limits=limits), lambda x: mamba2_loop(x, limits), x)


def test_heads_too_wide_for_products(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such heads go through the kernels for rates of each channel."""
    from whet.kernels.selective_scan import cuda

    monkeypatch.setattr(cuda, "_LARGEST_HEAD", 4)
    monkeypatch.setattr(cuda, "ELEMENTS", 64)
    check_all(on(place, ssd), mamba2_loop, mamba2_inputs(1, 5, 2, 5, 1, 3))


def test_groups_of_channels(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rates of each channel, with several heads and groups, as no model has them but the operator takes."""
    from whet.kernels.selective_scan import cuda

    monkeypatch.setattr(cuda, "ELEMENTS", 64)
    x = doubled(mamba2_inputs(1, 5, 4, 3, 2, 3, gated=True))
    g = torch.Generator().manual_seed(1)
    x |= {"delta": torch.randn(1, 5, 4, 3, generator=g).double(), "A": -torch.rand(4, 3, 3, generator=g).double() * 4}
    x |= {name: torch.randn(4, 3, generator=g).double() for name in ("D", "bias")}
    run = lambda x: scan_operator(*in_order(x), True, 0.0, 9.0, True)[:2]  # noqa: E731
    weights = torch.randn(1, 5, 4, 3, generator=g), torch.randn(1, 4, 3, 3, generator=g)
    wanted, wanted_gradients = run(x), gradients(run, x, weights)
    narrow = {name: value.float().to(place) for name, value in x.items()}
    found, of_found = run(narrow), gradients(run, narrow, tuple(weight.to(place) for weight in weights))
    assert all(off(part.cpu(), right) < 1e-5 for part, right in zip(found, wanted, strict=True))
    for name, right in wanted_gradients.items():
        assert off(of_found[name].cpu(), right) < 1e-5, name


def test_without_softplus_and_with_growth(place: str) -> None:
    x = mamba1_inputs(1, 5, 3, 2)
    x["A"] = x["A"] * 0.2  # of a negative delta, a state grows
    check_all(on(place, selective_scan, softplus=False), lambda x: mamba1_loop(x, False), x)


def test_gradients_of_the_last_states_alone(place: str) -> None:
    for function, loop, x in (
        (selective_scan, mamba1_loop, mamba1_inputs(1, 5, 2, 2)),
        (ssd, mamba2_loop, mamba2_inputs(1, 17, 1, 3, 1, 3)),
    ):
        exact = doubled(x)
        shapes = [part.shape for part in loop(exact)]
        weights = torch.zeros(shapes[0]), torch.ones(shapes[1])
        wanted = gradients(loop, exact, weights)
        for name, gradient in gradients(on(place, function), x, weights).items():
            assert off(gradient, wanted[name]) < 1e-5 or (gradient.eq(0).all() and wanted[name].eq(0).all()), name


def test_a_chunked_prompt_and_steps_are_one_call(place: str) -> None:
    """A step has a kernel of its own."""
    cases: list[tuple[Any, Named]] = [
        (selective_scan, mamba1_inputs(2, 7, 2, 3)),
        (ssd, mamba2_inputs(2, 7, 2, 2, 1, 3)),
    ]
    for function, x in cases:
        whole, whole_last = on(place, function)(x)
        parts, last = [], x["initial"]
        for begin, end in ((0, 5), (5, 6), (6, 7)):
            piece = {name: x[name][:, begin:end] for name in ("u", "delta", "B", "C", "z")}
            out, last = on(place, function)(x | piece | {"initial": last})
            parts.append(out)
        assert off(torch.cat(parts, 1), whole.double()) < 1e-6
        assert off(last, whole_last.double()) < 1e-6


def test_a_step_without_an_initial_state(place: str) -> None:
    x = mamba1_inputs(2, 1, 5, 3, optional=False)
    for found, wanted in zip(on(place, selective_scan)(x), mamba1_loop(doubled(x)), strict=True):
        assert off(found, wanted) < 1e-6


@pytest.mark.parametrize(
    ("function", "loop", "x", "dtype"),
    [
        (selective_scan, mamba1_loop, mamba1_inputs(1, 5, 3, 4), torch.float16),
        (selective_scan, mamba1_loop, mamba1_inputs(1, 5, 2, 4), torch.bfloat16),
        (ssd, mamba2_loop, mamba2_inputs(1, 17, 1, 16, 1, 16), torch.bfloat16),
    ],
)
def test_narrow_inputs(place: str, function: Any, loop: Any, x: Named, dtype: torch.dtype) -> None:
    """Outputs and gradients have their type, and the last states are in float32."""
    narrow = {name: value.to(dtype) if name in ("u", "delta", "B", "C", "z") else value for name, value in x.items()}
    exact = doubled(narrow)
    wanted = loop(exact)
    found = on(place, function)(narrow)
    assert [part.dtype for part in found] == [dtype, torch.float32]
    # The interpreter cuts off what a GPU rounds to bfloat16; a GPU's products are of TF32.
    tolerance = 8e-3 if dtype is torch.bfloat16 else 1.5e-3
    weights = torch.ones(wanted[0].shape), torch.ones(wanted[1].shape)
    assert all(off(part, right) < tolerance for part, right in zip(found, wanted, strict=True))
    right = gradients(loop, exact, weights)
    for name, gradient in gradients(on(place, function), narrow, weights).items():
        assert gradient.dtype is narrow[name].dtype
        assert off(gradient, right[name]) < tolerance, name


def test_rows_that_lie_apart_are_read_where_they_are(place: str) -> None:
    x = mamba1_inputs(2, 3, 4, 2)
    joined = torch.cat([x[name] for name in ("u", "delta", "B", "C", "z")], -1).to(place)
    parts = dict(zip(("u", "delta", "B", "C", "z"), joined.split([4, 4, 2, 2, 4], -1), strict=True))
    moved = {name: value.to(place) for name, value in x.items()} | parts
    for found, wanted in zip(selective_scan(*in_order(moved)), mamba1_loop(doubled(x)), strict=True):
        assert off(found.cpu(), wanted) < 1e-5


def test_small_and_large_steps(place: str) -> None:
    """Without decay, a state becomes softplus(delta) u."""
    raw = torch.tensor([-80.0, -30.0, -17.0, -16.0, -8.0, -1e-8, 0.0, 1e-8, 0.5, 16.0, 20.0, 80.0, 1000.0, -1000.0])
    ones = torch.ones(1, 1, len(raw), device=place)
    given = (ones, raw.to(place)[None, None], torch.zeros(len(raw), 1, device=place), ones[..., :1], ones[..., :1])
    _, last = selective_scan(*given)
    wanted = torch.logaddexp(raw.double(), torch.zeros(()).double())
    torch.testing.assert_close(last.cpu().flatten().double(), wanted, rtol=2e-6, atol=1e-38)


def test_steps_of_zero_keep_the_state(place: str) -> None:
    x = mamba1_inputs(1, 6, 3, 2)
    x["delta"] = torch.full_like(x["delta"], -1e4)
    torch.testing.assert_close(on(place, selective_scan)(x)[1], x["initial"])


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")  # of the interpreter
def test_what_is_no_number_is_not_hidden(place: str) -> None:
    for name in ("u", "delta", "B", "C", "z", "initial"):
        x = mamba1_inputs(1, 3, 2, 2)
        x[name][0, 1] = float("nan")
        assert on(place, selective_scan)(x)[0].isnan().any(), name


def test_what_a_compiler_is_told_is_what_comes(place: str) -> None:
    for x, function in ((mamba1_inputs(1, 2, 2, 2), selective_scan), (mamba2_inputs(1, 2, 1, 3, 1, 2), ssd)):
        leaves = [value.to(place).requires_grad_() for value in in_order(x)]
        arguments = [
            value[:, :, None] if function is selective_scan and value.dim() == 3 else value for value in leaves
        ]
        if function is selective_scan:
            arguments[2], arguments[8] = leaves[2][None], leaves[8][:, None]
            arguments[5], arguments[7] = leaves[5][None], leaves[7][None]
        else:
            arguments[1], arguments[2] = leaves[1][..., None], leaves[2][:, None, None]
            arguments[5], arguments[7] = leaves[5][..., None], leaves[7][..., None]
        checks = ("test_schema", "test_faketensor")
        torch.library.opcheck(scan_operator, (*arguments, True, 0.0, 9.0, True), test_utils=checks)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_layers_of_models_on_a_gpu(device: str, interpreted: bool, dtype: torch.dtype) -> None:
    """Chunks, blocks and bundles as they are used, and sizes of models."""
    if interpreted:
        pytest.skip("needs a GPU: the interpreter would take hours")
    tolerance = 1e-5 if dtype is torch.float32 else 1e-2
    for function, loop, x in (
        (selective_scan, mamba1_loop, mamba1_inputs(2, 333, 200, 16)),
        (ssd, mamba2_loop, mamba2_inputs(2, 333, 8, 64, 2, 128)),
    ):
        names = ("u", "delta", "B", "C", "z")
        narrow = {name: value.to(dtype) if name in names else value for name, value in x.items()}
        exact = doubled(narrow)
        wanted = loop(exact)
        found = on(device, function)(narrow)
        assert all(off(part, right) < tolerance for part, right in zip(found, wanted, strict=True))
        weights = torch.ones(wanted[0].shape), torch.ones(wanted[1].shape)
        right = gradients(loop, exact, weights)
        for name, gradient in gradients(on(device, function), narrow, weights).items():
            assert off(gradient, right[name]) < tolerance, name
