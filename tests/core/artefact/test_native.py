"""Programs of whet's kernels: their memory, sizes and files, and what damaged files come to."""

import json
import re
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from torch import Tensor

from whet.core.artefact import load
from whet.core.artefact.native import runtime as runtime_module
from whet.core.artefact.native.memory import ALIGNMENT, Life, lay_out
from whet.core.artefact.native.program import (
    Buffer,
    Call,
    ElementwiseStep,
    LinearStep,
    Matrix,
    Place,
    Program,
    Result,
    read_program,
    write_program,
)
from whet.core.artefact.native.runtime import NativeRuntime
from whet.core.artefact.native.sizes import Sizes, check_size
from whet.core.artefact.native.torch_calls import OPERATORS, TorchCalls
from whet.core.pytree import PyTree
from whet.core.signature import Argument, Signature
from whet.errors import ArtefactError, InputsError, KernelsError

LIVES = st.lists(
    st.tuples(st.integers(0, 400), st.integers(0, 9), st.integers(0, 9)).map(
        lambda found: Life(found[0], min(found[1:]), max(found[1:]))
    ),
    max_size=12,
)


@given(lives=LIVES)
def test_what_lives_at_once_has_memory_of_its_own(lives: list[Life]) -> None:
    offsets, total = lay_out(lives)
    assert all(
        offset % ALIGNMENT == 0 and offset + life.num_bytes <= total
        for offset, life in zip(offsets, lives, strict=True)
    )
    for i, (a, life) in enumerate(zip(offsets, lives, strict=True)):
        for b, other in list(zip(offsets, lives, strict=True))[:i]:
            at_once = life.first <= other.last and other.first <= life.last
            assert not at_once or a + life.num_bytes <= b or b + other.num_bytes <= a


def test_what_does_not_live_at_once_shares_memory() -> None:
    assert lay_out([Life(64, 0, 1), Life(64, 2, 3), Life(64, 1, 2)]) == ([0, 0, 64], 128)


@given(a=st.integers(1, 50), b=st.integers(1, 50))
@settings(max_examples=20)
def test_sizes(a: int, b: int) -> None:
    sizes = Sizes({"s0": a, "s1": b})
    found = sizes.all((7, "(s0 * (s1 + 2))", "((s0 + 3) // s1)", "max(1, (s0 % s1))", "-s0"))
    assert found == (7, a * (b + 2), (a + 3) // b, max(1, a % b), -a)


@pytest.mark.parametrize(
    "text", ["__import__('os')", "s9", "s0.real", "(lambda: 1)()", "print(1)", "[1][0]", "'a'", "max(*s0)"]
)
def test_what_is_no_size_is_not_evaluated(text: str) -> None:
    with pytest.raises(ValueError, match="is no size"):
        check_size(text, {"s0": 1})


def square(num_columns: int = 8) -> Program:
    """Rows [s0, 8] through a linear layer, times what torch makes of their number."""
    shape: tuple[Any, ...] = ("s0", num_columns)
    places = [Place(i, 0, shape, (num_columns, 1)) for i in range(2)]
    factor = Place(2, 0, shape, (1, 0))
    out = Place(3, 0, shape, (num_columns, 1))
    buffers = [
        Buffer("input", "float32", f"(s0 * {num_columns})", 0),
        Buffer("room", "float32", f"(s0 * {num_columns})"),
        Buffer("value", "float32", "s0", 1),
        Buffer("room", "float32", f"(s0 * {num_columns})"),
    ]
    calls = [
        Call("arange.default", [{"size": "s0"}]),
        Call("to.dtype", [{"value": 0}, {"dtype": "float32"}]),
    ]
    steps = [
        LinearStep(places[0], "layer", places[1], "RELU"),
        ElementwiseStep((places[1], factor), (("mul", 0, 1),), out),
    ]
    matrices = {"layer": Matrix("F32", num_columns, num_columns, True)}
    return Program({"s0": (0, 0)}, buffers, matrices, calls, steps, [Result(out), Result(value=0)])


def weights() -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return {
        "layer.weight": torch.randn(8, 8, generator=generator),
        "layer.bias": torch.randn(8, generator=generator),
    }


SIGNATURE = Signature(
    (Argument(None, "float32", (None, 8)),),
    PyTree("tuple", items=(PyTree("tensor"), PyTree("tensor"))),
    (PyTree("tensor"),),
)


def saved(directory: Path) -> Path:
    runtime = NativeRuntime(square(), weights())
    return runtime.save(directory, SIGNATURE, conditions=runtime.conditions)


def wanted(x: Tensor) -> Tensor:
    stored = weights()
    y = torch.relu(x.double() @ stored["layer.weight"].double().T + stored["layer.bias"])
    return (y * torch.arange(len(x))[:, None]).float()


def test_runs_and_reloads(tmp_path: Path) -> None:
    artefact = load(saved(tmp_path / "first"))
    again = load(artefact.runtime.save(tmp_path / "second", SIGNATURE, conditions=artefact.manifest.conditions))
    for num_rows in (3, 1, 200, 3):
        x = torch.randn(num_rows, 8)
        for one in (artefact, again):
            y, order = one(x)
            torch.testing.assert_close(y, wanted(x), rtol=1e-5, atol=1e-4)
            assert torch.equal(order, torch.arange(num_rows))


def test_outputs_belong_to_the_caller() -> None:
    runtime = NativeRuntime(square(), weights())
    x = torch.randn(3, 8)
    kept = runtime.run([x])
    first = [y.clone() for y in kept]
    kept[0].add_(1)
    assert all(map(torch.equal, runtime.run([x]), first))
    runtime.run([torch.randn(3, 8)])
    assert torch.equal(kept[1], first[1])


def test_threads_take_turns() -> None:
    runtime = NativeRuntime(square(), weights())
    inputs = [torch.randn(2 + i % 3, 8) for i in range(24)]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda x: runtime.run([x])[0], inputs))
    for x, y in zip(inputs, found, strict=True):
        torch.testing.assert_close(y, wanted(x), rtol=1e-5, atol=1e-4)


def test_plans_of_many_shapes_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime_module, "_MOST_SHAPES", 3)
    runtime = NativeRuntime(square(), weights())
    for num_rows in (5, 1, 2, 3, 4, 5, 1):
        x = torch.randn(num_rows, 8)
        torch.testing.assert_close(runtime.run([x])[0], wanted(x), rtol=1e-5, atol=1e-4)
    assert len(runtime._bound) == 3


def test_inputs_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    runtime = NativeRuntime(square(), weights())
    for x in (torch.randn(3, 7), torch.randn(3), torch.randn(3, 8, 2)):
        with pytest.raises(InputsError, match="input 0 has the shape"):
            runtime.run([x])
    with pytest.raises(InputsError, match="size 0 of input 0 is 0"):
        runtime.run([torch.randn(0, 8)])
    with pytest.raises(ArtefactError):
        load(saved(tmp_path))(torch.randn(0, 8))


def test_a_program_is_the_same_when_read() -> None:
    assert read_program(write_program(square())) == square()


def changed(directory: Path, change: Callable[[dict[str, Any]], object]) -> None:
    path = directory / "program.json"
    found = json.loads(path.read_text())
    change(found)
    path.write_text(json.dumps(found))


DAMAGE: dict[str, tuple[str, Callable[[dict[str, Any]], object]]] = {
    "a newer format": ("format 9, and this whet reads format 1", lambda p: p.update(format=9)),
    "code in a size": ("is no size", lambda p: p["buffers"][0].update(size="__import__('os').getpid()")),
    "an operator that writes": (
        "no operator that stays in torch",
        lambda p: p["calls"][0].update(operator="add_.Tensor"),
    ),
    "an operator of a file": ("no operator that stays", lambda p: p["calls"][0].update(operator="from_file.default")),
    "a call of a later one": ("is no argument of a call", lambda p: p["calls"][0].update(args=[{"value": 5}])),
    "a missing tensor": ("gone is missing", lambda p: p["calls"][0].update(args=[{"tensor": "gone"}])),
    "an unknown step": ("validation error", lambda p: p["steps"][0].update(step="Shell")),
    "no such buffer": ("there is no buffer 9", lambda p: p["steps"][0]["x"].update(buffer=9)),
    "wrong weights": ("layer.weight is torch.float32", lambda p: p["matrices"]["layer"].update(num_outputs=9)),
    "another kind": ("not torch.int8", lambda p: p["matrices"]["layer"].update(kind="S8")),
    "a size that is none": ("validation error", lambda p: p["buffers"][0].update(size=None)),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_damaged_programs_are_refused(name: str, tmp_path: Path) -> None:
    why, change = DAMAGE[name]
    changed(saved(tmp_path), change)
    with pytest.raises(ArtefactError, match=f"damaged: .*{re.escape(why)}"):
        load(tmp_path)


def test_places_outside_their_buffers_are_refused(tmp_path: Path) -> None:
    for place in ({"offset": 8}, {"strides": [16, 1]}, {"offset": -8}, {"strides": ["-s0", 1]}):
        changed(saved(tmp_path), lambda p, place=place: p["steps"][0]["x"].update(place))
        artefact = load(tmp_path)
        with pytest.raises(ArtefactError, match="damaged: it reads number"):
            artefact(torch.randn(3, 8))


def test_damaged_weights_are_refused(tmp_path: Path) -> None:
    path = saved(tmp_path) / "model.safetensors"
    whole = path.read_bytes()
    for content in (whole[:-7], b"", whole[:5]):
        path.write_bytes(content)
        with pytest.raises(ArtefactError, match=r"is damaged: .*write it again with `whet apply`"):
            load(tmp_path)
    path.write_bytes(whole)
    tensors = load_file(path)
    save_file({"layer.bias": tensors["layer.bias"]}, path)
    with pytest.raises(ArtefactError, match=r"layer\.weight is missing"):
        load(tmp_path)


def test_without_a_compiler_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> None:
        raise KernelsError("none of c++ is installed: install one")

    saved(tmp_path)
    monkeypatch.setattr(runtime_module, "library", missing)
    with pytest.raises(KernelsError, match="install one"):
        load(tmp_path)


def test_a_child_of_fork_runs_it(tmp_path: Path) -> None:
    """Also after its parent has run it, on threads that the child lacks."""
    code = f"""
import os, signal, torch
from whet.core.artefact import load
from whet.kernels.build import library

artefact, x = load({str(saved(tmp_path))!r}), torch.randn(3, 8)
library().set_threads(3)
before = artefact(x)
child = os.fork()
if child == 0:
    signal.alarm(30)  # a child that waits for its parent's threads ends by this
    os._exit(0 if all(map(torch.equal, artefact(x), before)) else 1)
status = os.waitpid(child, 0)[1]
assert all(map(torch.equal, artefact(x), before))
print("child:", os.waitstatus_to_exitcode(status))
"""
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "child: 0\n"


def test_operators_that_stay_in_torch_write_nothing() -> None:
    """Each overload of each of them that a program could name."""
    for name in OPERATORS:
        packet = getattr(torch.ops.aten, name)
        for overload in packet.overloads():
            writes = getattr(packet, overload)._schema.is_mutable
            try:
                TorchCalls([Call(f"{name}.{overload}", [])], {}, {})
            except ValueError:
                assert writes
            else:
                assert not writes


def test_calls_are_made_again_only_for_other_inputs() -> None:
    """A value may be a part of the caller's tensor, which may change afterwards."""
    made = [Call("view.default", [{"input": 1}, [6]]), Call("add.Tensor", [{"value": 0}, 1])]
    calls, sizes = TorchCalls(made, {}, {}), Sizes({})
    mask = torch.arange(6).view(2, 3)
    first = calls.varying(sizes, {}, [torch.zeros(1), mask])
    mask += 10
    again = calls.varying(sizes, {}, [torch.ones(1), torch.arange(6).view(2, 3)])
    assert again is first
    assert again[0].tolist() == list(range(6))
    assert calls.varying(sizes, {}, [torch.zeros(1), mask])[1].tolist() == [11, 12, 13, 14, 15, 16]
    assert calls.varying(Sizes({}), {}, [torch.zeros(1), mask]) is not again
    assert calls.varying(sizes, {}, [torch.zeros(1), mask.int()])[0].dtype is torch.int32
    positive = calls.varying(sizes, {}, [torch.zeros(1), torch.zeros(2, 3)])
    assert calls.varying(sizes, {}, [torch.zeros(1), -torch.zeros(2, 3)]) is not positive
