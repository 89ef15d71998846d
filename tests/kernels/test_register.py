"""Operators of one's own: what is registered, and what is refused because it is not its reference."""

import ctypes
import os
import subprocess
import sys
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import whet
from whet.core.artefact import load
from whet.core.artefact.inductor import missing_tools
from whet.core.artefact.operators import libraries_of, load_libraries
from whet.core.workload import Workload, examine
from whet.errors import OperatorError, OptionError
from whet.techniques.technique import Candidate

pytestmark = pytest.mark.thorough

_NUMBERS = count()
SAMPLES: list[tuple[Any, ...]] = [(torch.randn(3, 5), 2.0), (torch.randn(4), 0.5)]


def new_name() -> str:
    return f"whettest_register::clipped{next(_NUMBERS)}"


def clipped(x: Tensor, factor: float) -> Tensor:
    """The reference of most tests."""
    return torch.relu(x) * factor


def implementation(x: Tensor, factor: float) -> Tensor:
    return x.clamp_min(0) * factor


def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
    (x,) = ctx.saved_tensors
    return gradient * (x > 0) * ctx.factor, None


def keep(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(inputs[0])
    ctx.factor = inputs[1]


def test_it_is_an_operator_of_torch() -> None:
    name = new_name()
    operator = whet.register_kernel(
        name, clipped, {"cpu": implementation}, samples=SAMPLES, backward=backward, setup_context=keep
    )
    x = torch.randn(7, requires_grad=True)
    y = operator(x, 3.0)
    assert torch.equal(y, clipped(x, 3.0)) and operator.name() == name
    y.sum().backward()
    assert torch.equal(x.grad, (x > 0) * 3.0)
    graph = torch.export.export(Calls(operator), (torch.randn(2, 3),))
    assert operator in {node.target for node in graph.graph.nodes}


class Calls(nn.Module):
    def __init__(self, operator: Callable[..., Tensor]) -> None:
        super().__init__()
        self.operator = operator
        self.linear = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.operator(self.linear(x), 0.5)


def test_backward_finds_the_tensors_where_nothing_else_is_kept() -> None:
    def product(x: Tensor, y: Tensor) -> Tensor:
        return x * y

    def gradients(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        x, y = ctx.saved_tensors
        return gradient * y, gradient * x

    samples = [(torch.randn(3), torch.randn(3))]
    operator = whet.register_kernel(new_name(), product, {"cpu": torch.mul}, samples=samples, backward=gradients)
    x = torch.randn(3, requires_grad=True)
    operator(x, torch.full((3,), 4.0)).sum().backward()
    assert torch.equal(x.grad, torch.full((3,), 4.0))


def test_without_a_backward_gradients_are_an_error() -> None:
    operator = whet.register_kernel(new_name(), clipped, {"cpu": implementation}, samples=SAMPLES)
    with pytest.raises(OperatorError, match="has no backward"):
        operator(torch.randn(2, requires_grad=True), 1.0).sum().backward()


def changes_its_argument(x: Tensor, factor: float) -> Tensor:
    return x.relu_() * factor


def takes_memory_for_order(x: Tensor, factor: float) -> Tensor:
    return torch.as_strided(x, x.shape, torch.empty(x.shape).stride()).relu() * factor


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"cpu": lambda x, factor: x * factor}, "is not the reference.*Mismatched elements"),
        ({"cpu": lambda x, factor: implementation(x, factor)[:1]}, "is not the reference.*'shape'"),
        ({"cpu": lambda x, factor: implementation(x, factor).double()}, "is not the reference.*'dtype'"),
        ({"cpu": lambda x, factor: 1 / 0}, "sample 1 on cpu: the implementation raises ZeroDivisionError"),
        ({"cpu": changes_its_argument}, "changes its argument 1"),
        ({"cpu": takes_memory_for_order}, "with tensors that are not contiguous: the implementation is not"),
    ],
)
def test_implementations_that_are_not_the_reference(given: dict[str, Any], says: str) -> None:
    name = new_name()
    with pytest.raises(OperatorError, match=says):
        whet.register_kernel(name, clipped, given, samples=SAMPLES)
    assert not hasattr(torch.ops.whettest_register, name.partition("::")[2])
    whet.register_kernel(name, clipped, {"cpu": implementation}, samples=SAMPLES)  # the name is free


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"fake": lambda x, factor: x.new_empty(3, 5)}, "sample 2 on cpu: its fake gives other shapes"),
        ({"fake": lambda x, factor: torch.empty_like(x, dtype=torch.float64)}, "its fake gives other shapes, types"),
        ({"backward": lambda ctx, gradient: (gradient, None)}, "the backward is not the reference's derivative"),
        ({"backward": lambda ctx, gradient: ctx.nothing}, "the backward is not the reference's derivative"),
    ],
)
def test_what_else_is_not_the_reference(options: dict[str, Any], says: str) -> None:
    with pytest.raises(OperatorError, match=says):
        whet.register_kernel(new_name(), clipped, {"cpu": implementation}, samples=SAMPLES, **options)


def test_an_argument_that_is_returned_is_refused() -> None:
    def same(x: Tensor) -> Tensor:
        return x

    with pytest.raises(OperatorError, match="it returns an argument or a view of one"):
        whet.register_kernel(new_name(), same, {"cpu": same}, samples=[(torch.randn(3),)])


def test_tolerances_are_kept_to() -> None:
    def rounded(x: Tensor, factor: float) -> Tensor:
        return implementation(x, factor) * 1.001

    with pytest.raises(OperatorError, match="is not the reference"):
        whet.register_kernel(new_name(), clipped, {"cpu": rounded}, samples=SAMPLES)
    whet.register_kernel(new_name(), clipped, {"cpu": rounded}, samples=SAMPLES, rtol=0.01, atol=0.0)


def not_annotated(x, factor):  # type: ignore[no-untyped-def]
    return clipped(x, factor)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"name": "clipped"}, "namespace::operator"),
        ({"name": "whet::clipped"}, "a namespace of your own"),
        ({"name": "aten::relu"}, "a namespace of your own"),
        ({"name": "quantized::clipped"}, "a namespace of your own"),
        ({"implementations": {"meta": implementation}}, "is given as fake="),
        ({"reference": not_annotated}, "no schema.*x must have a type annotation"),
        ({"implementations": {}}, "has no implementation"),
        ({"implementations": {"chip": implementation}}, "'chip' is no device type"),
        ({"implementations": {"cpu": "nowhere.so"}}, "cannot be loaded"),
        ({"samples": []}, "needs samples"),
        ({"samples": [torch.ones(3)]}, "needs samples"),
        ({"libraries": "mine.so"}, r"libraries=\['mine.so'\]"),
        ({"libraries": ["mine.so"]}, "there is no file mine.so"),
        ({"libraries": ["my module"]}, "neither a file"),
        ({"rtol": 1e-3}, "rtol and atol"),
    ],
)
def test_arguments_that_are_refused(changes: dict[str, Any], says: str) -> None:
    given = {
        "name": new_name(),
        "reference": clipped,
        "implementations": {"cpu": implementation},
        "samples": SAMPLES,
        **changes,
    }
    with pytest.raises(OptionError, match=says):
        whet.register_kernel(given.pop("name"), given.pop("reference"), given.pop("implementations"), **given)


def test_a_name_is_taken_once() -> None:
    name = new_name()
    whet.register_kernel(name, clipped, {"cpu": implementation}, samples=SAMPLES)
    with pytest.raises(OptionError, match="registered already"):
        whet.register_kernel(name, clipped, {"cpu": implementation}, samples=SAMPLES)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_what_was_not_checked_is_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    whet.register_kernel(new_name(), clipped, {"cuda": implementation}, samples=SAMPLES)
    assert "was not checked on cuda" in caplog.text


C = """
extern "C" void clipped(const float* x, long size, float factor, float* y) {
  for (long i = 0; i < size; i++) y[i] = (x[i] > 0 ? x[i] : 0) * factor;
}
"""

needs_compiler = pytest.mark.skipif(bool(missing_tools(at_load=True)), reason="no C++ compiler")


def compiled(source: str, target: Path, *flags: str) -> Path:
    target.with_suffix(".cpp").write_text(source)
    command = [os.environ.get("CXX", "g++"), "-O0", "-std=c++20", "-shared", "-fPIC", target.with_suffix(".cpp")]
    subprocess.run([*command, *flags, "-o", target], check=True)
    return target


@needs_compiler
@pytest.mark.parametrize("is_careful", [True, False])
def test_a_compiled_function_that_reads_addresses(tmp_path: Path, is_careful: bool) -> None:
    """The slip that everybody makes: memory is read as if the tensor lay in one piece."""
    function = ctypes.CDLL(str(compiled(C, tmp_path / "clipped.so"))).clipped
    function.argtypes = (ctypes.c_void_p, ctypes.c_long, ctypes.c_float, ctypes.c_void_p)

    def by_address(x: Tensor, factor: float) -> Tensor:
        x = x.contiguous() if is_careful else x
        y = torch.empty(x.shape)
        function(x.data_ptr(), x.numel(), factor, y.data_ptr())
        return y

    if is_careful:
        operator = whet.register_kernel(new_name(), clipped, {"cpu": by_address}, samples=SAMPLES)
        x = torch.randn(6, 4).T
        assert torch.equal(operator(x, 2.0), clipped(x, 2.0))
    else:
        with pytest.raises(OperatorError, match="not contiguous"):
            whet.register_kernel(new_name(), clipped, {"cpu": by_address}, samples=SAMPLES)


CPP = """
#include <ATen/core/Tensor.h>
#include <torch/library.h>

at::Tensor clipped(const at::Tensor& x, double factor) { return x.clamp_min(0).mul(factor); }

TORCH_LIBRARY_IMPL(whettest_compiled, CPU, m) { m.impl("clipped", clipped); }
"""


@needs_compiler
def test_a_shared_library_registers_an_implementation(tmp_path: Path) -> None:
    root = Path(torch.__file__).parent
    flags = [f"-I{root / 'include'}", f"-L{root / 'lib'}", "-lc10", "-ltorch_cpu"]
    path = compiled(CPP, tmp_path / "libclipped.so", *flags)
    operator = whet.register_kernel("whettest_compiled::clipped", clipped, {"cpu": path}, samples=SAMPLES)
    assert torch.equal(operator(torch.tensor([-1.0, 2.0]), 3.0), torch.tensor([0.0, 6.0]))
    with pytest.raises(OperatorError, match=r"TORCH_LIBRARY_IMPL\(whettest_compiled, CPU, m\) with m.impl..other"):
        whet.register_kernel("whettest_compiled::other", clipped, {"cpu": path}, samples=SAMPLES)


MODULE = """
import torch
import whet


def clipped(x: torch.Tensor, factor: float) -> torch.Tensor:
    return torch.relu(x) * factor


clip = whet.register_kernel(
    "{name}", clipped, {{"cpu": lambda x, factor: x.clamp_min(0) * factor}},
    samples=[(torch.randn(3, 5), 2.0)], libraries={libraries},
)
"""
LOAD = """
import sys, whet
from safetensors.torch import load_file, save_file
try:
    whet.load(sys.argv[1])
except whet.WhetError as error:
    print(error)
y = whet.load(sys.argv[1], libraries=sys.argv[4:]).run(load_file(sys.argv[2])["x"])[0]
save_file({"y": y}, sys.argv[3])
"""


@pytest.mark.parametrize("is_named", [False, True])
def test_an_artefact_names_what_registers_it(tmp_path: Path, is_named: bool) -> None:
    """The module that registered it, or the libraries that were named for it."""
    module, other = tmp_path / f"registers_{is_named}.py", tmp_path / f"loads_{is_named}.py"
    other.write_text(f"import registers_{is_named}\n")
    name = f"whettest_artefact::{'named' if is_named else 'found'}"
    module.write_text(MODULE.format(name=name, libraries=[str(other)] if is_named else []))
    load_libraries([module])
    namespace, _, short = name.partition("::")
    torch.manual_seed(0)
    x = torch.randn(2, 3)
    examined = examine(Workload(model=Calls(getattr(getattr(torch.ops, namespace), short)).eval(), inputs=[x]))
    directory = Candidate.original(examined).save(tmp_path / "artefact")
    sources = load(directory, libraries=[]).manifest.operators
    needed = other if is_named else module
    assert [(source.kind, source.name, source.operators) for source in sources] == [("module", needed.name, [name])]
    assert libraries_of(sources) == [str(needed)]
    save_file({"x": x}, tmp_path / "x")
    command = [sys.executable, "-W", "ignore", "-c", LOAD, directory, tmp_path / "x", tmp_path / "y", needed]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert f"libraries=['PATH/{needed.name}']" in done.stdout
    assert torch.equal(load_file(tmp_path / "y")["y"], examined.outputs[0][0])
