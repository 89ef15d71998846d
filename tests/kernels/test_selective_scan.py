"""Selective scans of Mamba-1 and Mamba-2, and their gradients, against plain loops in float64."""

from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

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
from whet.errors import InputsError
from whet.kernels.build import Library
from whet.kernels.selective_scan import selective_scan, ssd

CHECKS = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40)


@pytest.mark.parametrize("optional", [False, True])
@pytest.mark.parametrize("shape", [(1, 1, 1, 1), (2, 33, 20, 16), (1, 100, 70, 5), (3, 64, 16, 8), (1, 31, 130, 3)])
def test_mamba1_is_the_loop_in_double(backend: str, shape: tuple[int, int, int, int], optional: bool) -> None:
    check_all(lambda x: selective_scan(*in_order(x)), mamba1_loop, mamba1_inputs(*shape, optional=optional))


@pytest.mark.parametrize("optional", [False, True])
@pytest.mark.parametrize(
    "shape", [(1, 1, 1, 1, 1, 1), (2, 33, 4, 64, 2, 32), (1, 70, 6, 20, 3, 7), (1, 40, 8, 16, 1, 128)]
)
def test_mamba2_is_the_loop_in_double(backend: str, shape: tuple[int, ...], optional: bool) -> None:
    check_all(lambda x: ssd(*in_order(x)), mamba2_loop, mamba2_inputs(*shape, optional=optional))


def test_mamba2_without_a_gate_within_limits(backend: str) -> None:
    x, limits = mamba2_inputs(2, 50, 4, 16, 1, 16, gated=False), (0.3, 1.1)
    check_all(lambda x: ssd(*in_order(x), delta_limits=limits), lambda x: mamba2_loop(x, limits), x)


@CHECKS
@given(st.integers(1, 3), st.integers(1, 80), st.integers(1, 50), st.integers(1, 20), st.integers(0, 99), st.booleans())
def test_mamba1_of_any_shape(kernels: Library, B: int, L: int, D: int, N: int, seed: int, optional: bool) -> None:
    check_all(lambda x: selective_scan(*in_order(x)), mamba1_loop, mamba1_inputs(B, L, D, N, seed, optional), 2e-5)


@CHECKS
@given(st.data())
def test_mamba2_of_any_shape(kernels: Library, data: st.DataObject) -> None:
    B, L, P, N = (data.draw(st.integers(1, most)) for most in (2, 70, 40, 20))
    G, of_group = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 5))
    x = mamba2_inputs(B, L, G * of_group, P, G, N, data.draw(st.integers(0, 99)), gated=data.draw(st.booleans()))
    check_all(lambda x: ssd(*in_order(x)), mamba2_loop, x, 2e-5)


def test_without_softplus_and_with_growth(backend: str) -> None:
    x = mamba1_inputs(1, 20, 17, 4)
    x["A"] = x["A"] * 0.2  # of a negative delta, a state grows
    check_all(lambda x: selective_scan(*in_order(x), softplus=False), lambda x: mamba1_loop(x, False), x)


@pytest.mark.parametrize("part", [0, 1])
def test_gradients_of_the_outputs_or_of_the_last_states_alone(backend: str, part: int) -> None:
    x = mamba1_inputs(2, 40, 20, 4)
    leaves = [value.requires_grad_() for value in in_order(x)]
    exact = [value.detach().double().requires_grad_() for value in leaves]
    found = torch.autograd.grad(selective_scan(*leaves)[part].sum(), leaves)
    loop = mamba1_loop(dict(zip(("u", "delta", "A", "B", "C", "D", "z", "bias", "initial"), exact, strict=True)))
    wanted = torch.autograd.grad(loop[part].sum(), exact, allow_unused=True)
    for gradient, right in zip(found, wanted, strict=True):
        assert gradient.eq(0).all() if right is None else off(gradient, right) < 1e-5


@pytest.mark.parametrize("length", [1, 65])
def test_bf16_inputs_are_rounded_once(backend: str, length: int) -> None:
    """Inputs of bfloat16 give what the same numbers in float32 give, and outputs are rounded at the end."""
    x = mamba1_inputs(2, length, 40, 16)
    narrow = {name: value.bfloat16() if name in ("u", "delta", "B", "C", "z") else value for name, value in x.items()}
    wide = {name: None if value is None else value.float() for name, value in narrow.items()}
    weights = torch.randn(2, length, 40), torch.randn(2, 40, 16)
    out, last = selective_scan(*in_order(narrow))
    exact, exact_last = selective_scan(*in_order(wide))
    assert (out.dtype, last.dtype) == (torch.bfloat16, torch.float32)
    assert torch.equal(last, exact_last)
    assert torch.equal(out, exact.bfloat16())
    found = gradients(lambda x: selective_scan(*in_order(x)), narrow, (weights[0].bfloat16(), weights[1]))
    wanted = gradients(mamba1_loop, doubled(wide), (weights[0].bfloat16(), weights[1]))
    for name, gradient in found.items():
        assert gradient.dtype is narrow[name].dtype
        assert off(gradient, wanted[name]) < (4e-3 if gradient.dtype is torch.bfloat16 else 1e-5), name


@CHECKS
@given(st.lists(st.integers(1, 70), min_size=2, max_size=6), st.booleans())
def test_how_tokens_are_split_does_not_show(kernels: Library, lengths: list[int], one: bool) -> None:
    """Bit for bit, one call is several calls that hand on their states; so prefill and steps are one forward."""
    lengths = [1] * len(lengths) if one else lengths
    cases: list[tuple[Any, Named]] = [
        (selective_scan, mamba1_inputs(2, sum(lengths), 40, 16)),
        (ssd, mamba2_inputs(2, sum(lengths), 4, 24, 2, 33)),
    ]
    for function, x in cases:
        whole, whole_last = function(*in_order(x))
        parts, last = [], x["initial"]
        for end, length in zip(torch.tensor(lengths).cumsum(0).tolist(), lengths, strict=True):
            piece = {name: x[name][:, end - length : end] for name in ("u", "delta", "B", "C", "z")}
            out, last = function(*in_order(x | piece | {"initial": last}))
            parts.append(out)
        assert torch.equal(torch.cat(parts, 1), whole)
        assert torch.equal(last, whole_last)


def test_sequences_and_threads_do_not_show(kernels: Library) -> None:
    x, two = mamba1_inputs(3, 700, 300, 16), mamba2_inputs(3, 300, 8, 64, 2, 64)
    before = torch.get_num_threads()
    found = []
    try:
        for num_threads in (1, 3):
            torch.set_num_threads(num_threads)
            weights = torch.ones(3, 700, 300), torch.ones(3, 300, 16)
            results = [*selective_scan(*in_order(x)), *ssd(*in_order(two))]
            results += gradients(lambda x: selective_scan(*in_order(x)), x, weights).values()
            weights = torch.ones(3, 300, 8, 64), torch.ones(3, 8, 64, 64)
            results += gradients(lambda x: ssd(*in_order(x)), two, weights).values()
            found.append(results)
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))
    alone = {name: x[name][1:2] for name in ("u", "delta", "B", "C", "z", "initial")}
    assert torch.equal(selective_scan(*in_order(x | alone))[0], found[0][0][1:2])


def test_rows_that_lie_apart_are_read_where_they_are(kernels: Library) -> None:
    """As the parts of one projection do."""
    x = mamba1_inputs(2, 37, 24, 8)
    joined = torch.cat([x[name] for name in ("u", "delta", "B", "C", "z")], -1)
    parts = dict(zip(("u", "delta", "B", "C", "z"), joined.split([24, 24, 8, 8, 24], -1), strict=True))
    for found, wanted in zip(selective_scan(*in_order(x | parts)), selective_scan(*in_order(x)), strict=True):
        assert torch.equal(found, wanted)
    transposed = {name: parts[name].mT.contiguous().mT for name in parts}
    for found, wanted in zip(selective_scan(*in_order(x | transposed)), selective_scan(*in_order(x)), strict=True):
        assert torch.equal(found, wanted)


def test_the_exponentials_error(kernels: Library) -> None:
    """A state of 1 without inputs becomes exp(delta A)."""
    exponents = torch.cat(
        (-torch.logspace(-9, 1.94, 3985), torch.tensor([-0.0, -1.0, -87.0, -200.0, -1e9, -1e30]))
    ).float()
    D = len(exponents)
    zeros, ones = torch.zeros(1, 1, D), torch.ones(1, 1, D)
    _, last = selective_scan(
        zeros, ones, exponents[:, None], ones[..., :1], ones[..., :1], initial_BDN=ones.mT, softplus=False
    )
    wanted = exponents.double().exp()
    error = (last.flatten().double() - wanted).abs()
    # The rates are kept in units of log 2, rounded to float32.
    assert (error <= 2e-7 * wanted * (1 + exponents.double().abs() / 3) + 1.2e-38).all()


def test_softplus_of_small_and_large_steps(kernels: Library) -> None:
    """Without decay, a state becomes delta u."""
    raw = torch.cat((torch.linspace(-80, 80, 4001), torch.tensor([-1000.0, -1e-8, 0.0, 1e-8, 1000.0])))
    ones = torch.ones(1, 1, len(raw))
    _, last = selective_scan(ones, raw[None, None], torch.zeros(len(raw), 1), ones[..., :1], ones[..., :1])
    wanted = torch.logaddexp(raw.double(), torch.zeros(()).double())
    torch.testing.assert_close(last.flatten().double(), wanted, rtol=5e-7, atol=1e-38)


def test_steps_of_zero_keep_the_state(backend: str) -> None:
    x = mamba1_inputs(1, 50, 20, 4)
    x["delta"] = torch.full_like(x["delta"], -1e4)
    _, last = selective_scan(*in_order(x))
    torch.testing.assert_close(last, x["initial"])


@pytest.mark.parametrize("name", ["u", "delta", "B", "C", "z", "initial"])
def test_what_is_no_number_is_not_hidden(backend: str, name: str) -> None:
    x = mamba1_inputs(1, 8, 20, 4)
    x[name] = x[name].clone()
    x[name][0, 3] = float("nan")
    assert selective_scan(*in_order(x))[0].isnan().any()


def test_gradients_in_double() -> None:
    """Finite differences, through the operator's own formulas in torch."""
    one, two = doubled(mamba1_inputs(2, 5, 3, 2)), doubled(mamba2_inputs(1, 4, 4, 3, 2, 2))
    for function, x in ((selective_scan, one), (ssd, two)):
        leaves = [value.requires_grad_() for value in in_order(x)]
        torch.autograd.gradcheck(function, leaves)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("save", [False, True])
def test_is_an_operator_of_torch(dtype: torch.dtype, save: bool) -> None:
    for x in (mamba2_inputs(2, 40, 4, 20, 2, 8), mamba2_inputs(1, 3, 2, 16, 1, 4, optional=False)):
        given = [None if value is None else value.to(dtype) for value in in_order(x)]
        for place in (1, 2, 5, 7):
            given[place] = None if given[place] is None else given[place][..., None]
        given[2] = given[2][..., None]
        if save:
            given = [None if value is None else value.requires_grad_() for value in given]
        arguments = (*given, True, 0.0, float("inf"), save)
        torch.library.opcheck(torch.ops.whet.selective_scan.default, arguments)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"u": torch.zeros(2, 3)}, r"u is \[B, L, D\]"),
        ({"delta": torch.zeros(1, 9, 20)}, r"delta of a scan over u \[1, 8, 1, 20\] .* is \[1, 8, 1, 20\]"),
        ({"A": torch.zeros(20, 5)}, r"A of a scan .* with 4 states is \[1, 20, 4\]"),
        ({"C": torch.zeros(1, 8, 5)}, "C of a scan"),
        ({"D": torch.zeros(21)}, "D of a scan"),
        ({"z": torch.zeros(1, 8, 20, dtype=torch.int64)}, "z of a scan .* floating type"),
        ({"initial": torch.zeros(2, 20, 4)}, "initial of a scan"),
        ({"u": torch.zeros(1, 0, 20), "delta": torch.zeros(1, 0, 20)}, "B of a scan"),
    ],
)
def test_what_does_not_fit_is_refused(backend: str, change: Named, said: str) -> None:
    with pytest.raises(InputsError, match=said):
        selective_scan(*in_order(mamba1_inputs(1, 8, 20, 4) | change))


def test_heads_that_do_not_divide_into_groups_are_refused(backend: str) -> None:
    x = mamba2_inputs(1, 8, 3, 4, 1, 4)
    with pytest.raises(InputsError, match="divide into the groups"):
        ssd(*in_order(x | {name: torch.zeros(1, 8, 2, 4) for name in "BC"}))
    with pytest.raises(InputsError, match=r"delta \[B, L, H\]"):
        ssd(*in_order(x | {"A": torch.zeros(3, 1)}))
