"""Custom operators: found in a graph, recorded with what registered them, and loaded where the caller names it."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from whet.core.artefact import MANIFEST, load, read_manifest
from whet.core.artefact.inductor import InductorRuntime, missing_tools
from whet.core.artefact.operators import OperatorSource, libraries_of, load_libraries, sources_of
from whet.core.workload import ExaminedWorkload, Workload, examine
from whet.errors import ArtefactError, OptionError, TargetError
from whet.techniques.technique import Candidate

pytestmark = pytest.mark.thorough

CPP = """
#include <torch/library.h>
static at::Tensor twice(const at::Tensor& x) { return x.add(x); }
TORCH_LIBRARY(whettest_cpp, m) {
  m.def("twice(Tensor x) -> Tensor");
  m.impl("twice", c10::DispatchKey::CompositeExplicitAutograd, TORCH_FN(twice));
}
"""

PYTHON = """
import torch
import beside_operators

@torch.library.custom_op("whettest_py::minus", mutates_args=())
def minus(x: torch.Tensor, y: float) -> torch.Tensor:
    return x - y

@minus.register_fake
def _(x, y):
    return torch.empty_like(x)

library = torch.library.Library("whettest_define", "DEF")
library.define("third(Tensor x) -> Tensor")
library.impl("third", lambda x: x / beside_operators.THREE, "CompositeExplicitAutograd")
"""

# DIR IN OUT LIBRARY...: what whet.load says without libraries, and what the artefact gives with them.
LOAD = """
import sys
from safetensors.torch import load_file, save_file
import whet
directory, given, out, *libraries = sys.argv[1:]
try:
    whet.load(directory)
except whet.WhetError as error:
    print(error)
assert "whettest_operators" not in sys.modules
model = whet.load(directory, libraries=libraries)
save_file({"y": model(load_file(given)["x"])}, out)
"""


class Custom(nn.Module):
    """A linear layer and each kind of custom operator."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.ops.whettest_py.minus(self.linear(x), 0.5)
        return torch.ops.whettest_cpp.twice(torch.ops.whettest_define.third(y))

    def in_float64(self, x: torch.Tensor) -> torch.Tensor:
        """The same by PyTorch's own arithmetic."""
        weight, bias = self.linear.weight.double(), self.linear.bias
        return (x.double() @ weight.T + bias - 0.5) / 3 * 2


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A shared library and a Python file that register operators; both are loaded here."""
    if missing := missing_tools(at_load=True):
        pytest.skip(missing)
    directory = tmp_path_factory.mktemp("operators")
    (directory / "beside_operators.py").write_text("THREE = 3\n")
    (directory / "whettest_operators.py").write_text(PYTHON)
    (directory / "twice.cpp").write_text(CPP)
    root = Path(torch.__file__).parent
    headers = [f"-I{root / 'include'}", f"-I{root / 'include/torch/csrc/api/include'}"]
    libraries = [f"-L{root / 'lib'}", "-lc10", "-ltorch_cpu"]
    compiler = os.environ.get("CXX", "g++")
    command = [compiler, "-O0", "-std=c++20", "-shared", "-fPIC", *headers, "twice.cpp", "-o", "libtwice.so"]
    subprocess.run([*command, *libraries], cwd=directory, check=True)
    before = list(sys.path)
    load_libraries([directory / "libtwice.so", str(directory / "whettest_operators.py")])
    assert sys.path == before
    return directory


@pytest.fixture(scope="module")
def examined(places: Path) -> ExaminedWorkload:
    torch.manual_seed(0)
    return examine(Workload(model=Custom().eval(), inputs=[torch.randn(2, 4)]))


@pytest.fixture(scope="module")
def directory(examined: ExaminedWorkload, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Candidate.original(examined).save(tmp_path_factory.mktemp("artefact") / "model")


def test_the_manifest_names_operators_and_where_they_came_from_without_a_path(places: Path, directory: Path) -> None:
    sources = read_manifest(directory).operators
    assert {(s.kind, s.name): s.operators for s in sources} == {
        ("library", "libtwice.so"): ["whettest_cpp::twice"],
        ("module", "whettest_operators.py"): ["whettest_define::third", "whettest_py::minus"],
    }
    assert str(places) not in (directory / MANIFEST).read_text()
    assert sorted(libraries_of(sources)) == [str(places / "libtwice.so"), str(places / "whettest_operators.py")]


@pytest.mark.parametrize("compiled", [False, True], ids=["program", "package"])
def test_a_fresh_process_loads_it_with_its_libraries_alone(
    places: Path, examined: ExaminedWorkload, directory: Path, tmp_path: Path, compiled: bool
) -> None:
    if compiled:
        flat = Candidate.original(examined).module
        directory = InductorRuntime.compile(flat, examined, freezing=True, max_autotune=False).save(
            tmp_path / "package", examined.signature
        )
    x = torch.randn(2, 4)
    save_file({"x": x}, tmp_path / "in")
    copy = shutil.copy(
        places / "libtwice.so", tmp_path / "twice_again.so"
    )  # registers the same again: would end the process
    libraries = [places / "libtwice.so", places / "whettest_operators.py", copy]
    command = [sys.executable, "-c", LOAD, directory, tmp_path / "in", tmp_path / "out", *libraries]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    for part in ("whettest_cpp::twice", "libtwice.so (library)", "whettest_operators.py (module)", "libraries=["):
        assert part in done.stdout
    found = load_file(tmp_path / "out")["y"]
    torch.testing.assert_close(found.double(), examined.workload.model.in_float64(x).detach(), rtol=1e-5, atol=1e-6)


@pytest.fixture
def orphan() -> Iterator[str]:
    """An operator of a module that is no longer there to be imported."""
    names: dict[str, torch.library.Library] = {}
    exec("import torch; library = torch.library.Library('whettest_orphan', 'DEF')", names)
    names["library"].define("gone(Tensor x) -> Tensor")
    yield "whettest_orphan::gone"
    names["library"]._destroy()


def test_an_operator_that_no_other_process_can_have_is_said(orphan: str) -> None:
    (source,) = sources_of([orphan])
    assert (source.kind, source.name) == ("unknown", "")
    with pytest.raises(TargetError, match=r"no module or shared library is known .* whettest_orphan::gone"):
        libraries_of([source])


@pytest.mark.parametrize(
    ("libraries", "error", "message"),
    [
        ("module", OptionError, "must be a list"),
        (Path("x.so"), OptionError, "must be a list"),
        ([b"x.so"], OptionError, "must hold paths and import names"),
        ([None], OptionError, "must hold paths and import names"),
        (["../here"], OptionError, "neither a shared library"),
        (["import os"], OptionError, "neither a shared library"),
        ([Path("json")], OptionError, "neither a shared library"),
        (["libc.so.6"], ArtefactError, "there is no file libc.so.6 in "),
        (["nothing.py"], ArtefactError, "there is no file nothing.py in "),
        (["no_such_module_here"], ArtefactError, "ModuleNotFoundError"),
        (["broken.py"], ArtefactError, "broken.py cannot be loaded: ValueError: a wheel"),
        (["text.so"], ArtefactError, "text.so cannot be loaded: OSError"),
    ],
)
def test_what_is_no_library_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, libraries: object, error: type[Exception], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "broken.py").write_text("raise ValueError('a wheel')")
    (tmp_path / "text.so").write_text("no library")
    (tmp_path / "here").mkdir()
    before = set(sys.modules)
    with pytest.raises(error, match=message):
        load_libraries(libraries)  # type: ignore[arg-type]
    assert set(sys.modules) == before


def test_a_file_is_run_once_and_takes_no_other_modules_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = tmp_path / "log"
    path = tmp_path / "wave.py"  # the name of a module of Python's own, which nothing has imported yet
    path.write_text(f"with open({str(log)!r}, 'a') as file: file.write('ran')")
    monkeypatch.delitem(sys.modules, "wave", raising=False)
    for _ in range(2):
        load_libraries([path])
    assert log.read_text() == "ran"
    assert isinstance(sys.modules.pop("_whet_library_wave"), ModuleType)
    assert "wave" not in sys.modules


def test_operators_of_a_manifest_are_names(directory: Path, tmp_path: Path) -> None:
    copied = Path(shutil.copytree(directory, tmp_path / "copied"))
    data = json.loads((copied / MANIFEST).read_text())
    for wrong in ({"name": "\x1b[2J"}, {"operators": ["os.system"]}, {"kind": "pickle"}):
        data["operators"] = [{"kind": "module", "name": "a", "operators": ["a::b"]} | wrong]
        (copied / MANIFEST).write_text(json.dumps(data))
        with pytest.raises(ArtefactError, match="is damaged"):
            load(copied)


def test_a_model_of_pytorchs_own_operators_needs_no_library(tmp_path: Path) -> None:
    examined = examine(Workload(model=nn.Linear(2, 2), inputs=[torch.randn(1, 2)]))
    assert read_manifest(Candidate.original(examined).save(tmp_path)).operators == []


def test_a_source_without_a_name_is_said_as_unknown(tmp_path: Path, directory: Path) -> None:
    copied = Path(shutil.copytree(directory, tmp_path / "copied"))
    data = json.loads((copied / MANIFEST).read_text())
    source = OperatorSource(kind="unknown", operators=["whettest_none::f"])
    (copied / MANIFEST).write_text(json.dumps(data | {"operators": [source.model_dump()]}))
    with pytest.raises(ArtefactError, match=r"whettest_none::f\. Name what .*libraries=\[PATH_OR_MODULE\]"):
        load(copied)


_ALL = """
import importlib, pkgutil, torch, whet.kernels
from whet.core.artefact.operators import OWN_MODULES
def own():
    return {name for name in torch._C._dispatch_get_all_op_names() if name.startswith("whet::")}
for name in OWN_MODULES:
    importlib.import_module(name)
known = own()
for module in pkgutil.iter_modules(whet.kernels.__path__):
    importlib.import_module(f"whet.kernels.{module.name}")
assert known, "no operator is registered"
assert own() == known, sorted(own() - known)
"""


def test_what_loads_an_artefact_registers_every_operator_of_the_kernels() -> None:
    subprocess.run([sys.executable, "-W", "ignore", "-c", _ALL], check=True)
