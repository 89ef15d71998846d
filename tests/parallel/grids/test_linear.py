"""Layers on grids of processes make the products of one process, with the collectives of their formulas."""

import math
from fractions import Fraction
from functools import cache
from typing import Any

import pytest
import torch
from grid_jobs import Case, counted, everything, one_process, products, refused, stack_of_one
from many import on_ranks

GRIDS = {"2d": (2, 2), "2.5d": (2, 2, 2), "3d": (2, 2, 2)}
GREATER = {"2d": (3, 3), "2.5d": (3, 2, 2), "3d": (3, 3, 3)}
CASES: list[Case] = [
    ((8, 12), 20, True),
    ((4, 20), 8, False),
    ((16, 4), 12, True),
    ((12, 28), 4, True),
    ((4, 3, 8), 12, True),
    ((8, 2, 2, 4), 8, False),
]
GREATER_CASES: list[Case] = [((18, 12), 36, True), ((36, 3, 6), 18, False)]
LAYERS_OF = [("2d", "2d"), ("2.5d", "2.5d"), ("3d", "3d"), ("3d", "3d swapped")]

Expected = tuple[dict[str, int], Fraction, int]
"""The collectives by name, and the elements that a process moves and saves."""


def expected(
    name: str, mesh_shape: tuple[int, ...], case: Case, needs_x: bool = True, needs_w: bool = True
) -> Expected:
    """Return what the formulas say, in which m counts all rows of X."""
    shape, n, bias = case
    m, k, q = math.prod(shape[:-1]), shape[-1], mesh_shape[-1]
    d = mesh_shape[0] if name == "2.5d" else 1
    products = 1 + needs_x + needs_w
    x, w, y = Fraction(m * k, d), Fraction(k * n), Fraction(m * n)
    if name in ("2d", "2.5d"):
        # In each product, q blocks of X and q of W are sent.
        moved = products * Fraction(q - 1, q**2) * (x + w) + needs_w * 2 * Fraction(d - 1, d) * w / q**2
        calls = {"broadcast_": (products + 1) * q, "reduce_": (products - 1) * q}
        calls["allreduce_"] = needs_w * (name == "2.5d") + bias * (2 if name == "2.5d" else 1)
        bias_moved = 2 * (Fraction(q - 1, q) + Fraction(d - 1, d)) * Fraction(n, q)
        saved = (x * needs_w + w * needs_x) / q**2
    else:
        moved = Fraction(q - 1, q**3) * (products * (x + w) + 2 * y)
        calls = {"_allgather_base_": products + 2, "_reduce_scatter_base_": products}
        calls["allreduce_"] = 2 * bias
        bias_moved = 4 * Fraction(q - 1, q**2) * n
        saved = (x * needs_w + w * needs_x) / q**3
    return {call: count for call, count in calls.items() if count}, moved + bias * bias_moved, int(saved)


@cache
def on_grid(name: str) -> list[dict[str, Any]]:
    return on_ranks(everything, math.prod(GRIDS[name]), name, GRIDS[name], CASES)


def check_products(
    found: list[list[dict[str, Any]]], layer: str, mesh_shape: tuple[int, ...], cases: list[Case]
) -> None:
    for of_rank in found:
        for case, got in zip(cases, of_rank, strict=True):
            want = one_process(case)
            assert got["whole"].keys() == want.keys()
            for key, whole in want.items():
                near = torch.tensor(got["whole"][key], dtype=torch.float64)
                torch.testing.assert_close(
                    near, whole, rtol=1e-12, atol=1e-12, msg=lambda told, key=key: f"{key}: {told}"
                )
            calls, moved, saved = expected(layer.split()[0], mesh_shape, case)
            assert (got["calls"], got["saved"]) == (calls, saved)
            assert got["moved"] == pytest.approx(float(moved), rel=1e-12)


@pytest.mark.parametrize(("grid", "layer"), LAYERS_OF)
def test_a_grid_computes_the_product_and_gradients_of_one_process(grid: str, layer: str) -> None:
    check_products([of_rank["products"][layer] for of_rank in on_grid(grid)], layer, GRIDS[grid], CASES)


@pytest.mark.parametrize("grid", GRIDS)
@pytest.mark.parametrize("number", [0, 1], ids=["parts", "dtensors"])
def test_layers_in_a_row_train_as_on_one_process(grid: str, number: int) -> None:
    want = stack_of_one()
    for of_rank in on_grid(grid):
        got = of_rank["stacks"][number]
        assert got["losses"] == pytest.approx(want["losses"], rel=1e-12)
        assert got["norms"] == pytest.approx(want["norms"], rel=1e-12)
        assert got["weights"].keys() == want["weights"].keys()
        for key, weights in want["weights"].items():
            assert got["weights"][key] == pytest.approx(weights, rel=1e-11, abs=1e-12), key


@pytest.mark.parametrize("grid", GRIDS)
def test_autocast_multiplies_in_its_dtype(grid: str) -> None:
    for of_rank in on_grid(grid):
        got = of_rank["autocast"]
        assert got["dtypes"] == ["torch.bfloat16", "torch.float32", "torch.float64"]
        for key, error in got["errors"].items():
            assert 1e-4 < error < 1e-2, key  # bfloat16 rounds by up to 4e-3; float32 would stay below 1e-6


@pytest.mark.slow
@pytest.mark.parametrize(("grid", "layer"), LAYERS_OF)
def test_a_greater_grid_computes_the_same(grid: str, layer: str) -> None:
    shape = GREATER[grid]
    found = on_ranks(products, math.prod(shape), layer, shape, GREATER_CASES)
    check_products(found, layer, shape, GREATER_CASES)


def test_collectives_and_what_they_move_follow_the_formulas_on_greater_grids() -> None:
    case: Case = ((2 * 144, 3, 48), 720, True)
    shapes = [("2d", (3, 3)), ("2d", (4, 4)), ("2.5d", (2, 3, 3)), ("2.5d", (3, 2, 2)), ("2.5d", (4, 3, 3))]
    shapes += [(name, (q, q, q)) for name in ("3d", "3d swapped") for q in (3, 4)]
    runs = [(*one, case, *needs) for one in shapes for needs in ((True, True), (False, True), (True, False))]
    [found] = on_ranks(counted, 1, runs)
    for (name, mesh_shape, _, *needs), (got_calls, got_moved, got_saved) in zip(runs, found, strict=True):
        calls, moved, saved = expected(name.split()[0], mesh_shape, case, *needs)
        assert (got_calls, got_saved) == (calls, saved), (name, mesh_shape, needs)
        assert got_moved == pytest.approx(float(moved), rel=1e-12), (name, mesh_shape, needs)


def test_what_a_grid_cannot_divide_is_refused_by_name() -> None:
    nothing: Any = ("nothing", ())
    runs: list[tuple[Any, str]] = [
        (
            ("2d", (2, 2), (7, 8), nothing),
            "Linear2d on a grid of 2 x 2 processes divides in_features into 2 equal parts",
        ),
        (
            ("2d", (3, 3), (6, 8), nothing),
            "divides out_features into 3 equal parts, and there are 8; choose a multiple",
        ),
        (
            ("2.5d", (2, 2, 2), (8, 7), nothing),
            "Linear25d on a grid of 2 x 2 x 2 processes divides out_features into 2",
        ),
        (("3d", (2, 2, 2), (8, 6), nothing), "Linear3d on a grid of 2 x 2 x 2 processes divides out_features into 4"),
        (("3d swapped", (2, 2, 2), (7, 8), nothing), "divides in_features into 2 equal parts, and there are 7"),
        (("2d", (2, 3), (6, 6), nothing), "Linear2d takes a mesh of q x q processes, and got 2 x 3; make it a square"),
        (("2d", (2, 2, 2), (8, 8), nothing), "Linear2d takes a mesh of q x q processes, and got 2 x 2 x 2"),
        (("2.5d", (2, 2, 3), (6, 6), nothing), "Linear25d takes a mesh of d x q x q processes, and got 2 x 2 x 3"),
        (("3d", (2, 2, 3), (12, 36), nothing), "Linear3d takes a mesh of q x q x q processes, and got 2 x 2 x 3"),
        (
            ("2d", (2, 2), (8, 8), ("input", (7, 8))),
            "divides rows into 2 equal parts, and there are 7; choose a multiple",
        ),
        (("2.5d", (3, 2, 2), (8, 8), ("input", (8, 8))), "divides rows into 6 equal parts, and there are 8"),
        (("3d", (2, 2, 2), (8, 8), ("output", (6, 8))), "divides rows into 4 equal parts, and there are 6"),
        (("2d", (2, 2), (8, 8), ("uneven", (7, 8))), "divides rows into 2 equal parts, and there are 7"),
        (("2d", (2, 2), (8, 8), ("input", (8, 6))), "expects the shape [rows, ..., 8], and got [8, 6]"),
        (("2d", (2, 2), (8, 8), ("output", (8,))), "expects the shape [rows, ..., 8], and got [8]"),
        (("2d", (2, 2), (8, 8), ("twice", (8, 8))), "divides a whole tensor, and got a DTensor"),
        (
            ("2d", (2, 2), (8, 8), ("plain", (8, 8))),
            "this process's part of one, [rows, ..., 4], and got the shape [8, 8]",
        ),
        (
            ("2d", (2, 2), (8, 8), ("copies", (8, 8))),
            "takes a DTensor with the placements (Shard(dim=0), Shard(dim=1))",
        ),
        (
            ("3d", (2, 2, 2), (8, 8), ("again", (8, 8))),
            "and got (Shard(dim=1), Shard(dim=0), Shard(dim=0)) on 2 x 2 x 2",
        ),
    ]
    [found] = on_ranks(refused, 1, [run for run, _ in runs])
    for (run, told), message in zip(runs, found, strict=True):
        assert told in message, (run, message)
