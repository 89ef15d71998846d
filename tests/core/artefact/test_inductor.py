"""Compiled packages, and programs compiled at load: through their files and back, and what can be wrong with them."""

import json
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from small_programs import small
from torch import Tensor

from whet.core.artefact import MANIFEST, inductor, load, program
from whet.core.artefact.inductor import FILE, CompileRuntime, InductorRuntime
from whet.errors import ArtefactError, InputsError, TargetError
from whet.measure.machine import describe
from whet.techniques.technique import Candidate

NEEDS_COMPILER = pytest.mark.skipif(bool(inductor.missing_tools(at_load=True)), reason="no C++ compiler")

LOAD = """
import sys
import torch, whet
from safetensors.torch import load_file, save_file
out = whet.load(sys.argv[1])(load_file(sys.argv[2])["x"])
assert list(out) == ["logits", "rest"] and out.rest[1] == "text" and not out.logits.requires_grad
save_file({"logits": out["logits"], "top": out.rest[0]}, sys.argv[3])
assert "torch._inductor" not in sys.modules, "loading a package imports the compiler"
"""


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One compiled artefact for all tests that only read it."""
    examined = small()
    flat = Candidate.original(examined).module
    compiled = InductorRuntime.compile(flat, examined, freezing=True, max_autotune=False)
    return compiled.save(tmp_path_factory.mktemp("inductor") / "artefact", examined.signature)


@pytest.fixture
def copied(package: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(package, tmp_path / "copied"))


def change_settings(directory: Path, **settings: object) -> None:
    path = directory / MANIFEST
    manifest = json.loads(path.read_text())
    manifest["settings"] |= settings
    path.write_text(json.dumps(manifest))


@pytest.mark.thorough
@NEEDS_COMPILER
def test_a_package_equals_the_original_in_a_fresh_process(package: Path, tmp_path: Path) -> None:
    x = torch.randn(7, 4)  # a batch size that was not among the inputs
    save_file({"x": x}, tmp_path / "in.safetensors")
    paths = [str(package), str(tmp_path / "in.safetensors"), str(tmp_path / "out.safetensors")]
    done = subprocess.run([sys.executable, "-W", "error", "-c", LOAD, *paths], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    found = load_file(paths[2])
    expected = small().workload.model.double()(x.double())
    torch.testing.assert_close(found["logits"].double(), expected["logits"].detach(), rtol=1e-5, atol=1e-6)
    assert torch.equal(found["top"], expected["rest"][0])


@NEEDS_COMPILER
@pytest.mark.parametrize(
    "x",
    [torch.randn(4, 6).T, torch.randn(6, 9)[:, 2:6], torch.randn(1, 4).expand(6, 4), torch.randn(12, 4)[::2]],
    ids=["transposed", "sliced", "expanded", "every second"],
)
def test_inputs_need_not_lie_in_one_piece(package: Path, x: Tensor) -> None:
    assert not x.is_contiguous()
    torch.testing.assert_close(load(package)(x).logits, load(package)(x.contiguous()).logits, rtol=0, atol=0)


@NEEDS_COMPILER
def test_a_package_holds_no_pickle_and_no_path(package: Path) -> None:
    with zipfile.ZipFile(package / FILE) as archive:
        names = archive.namelist()
        texts = [archive.read(name) for name in names if not name.endswith(".so")]
    assert not [name for name in names if name.endswith((".pkl", ".cpp", ".pt"))]
    assert not [text for text in texts if str(Path.cwd()).encode() in text]


@NEEDS_COMPILER
def test_nothing_is_left_of_compiling(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, package: Path) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    examined = small()
    monkeypatch.setattr(torch._inductor, "aoti_compile_and_package", lambda p, package_path: 1 / 0)
    flat = Candidate.original(examined).module
    with pytest.raises(TargetError, match="torch's inductor cannot compile the model: division by zero"):
        InductorRuntime.compile(flat, examined, freezing=True, max_autotune=False)
    copy = lambda p, package_path: shutil.copyfile(package / FILE, package_path)  # noqa: E731
    monkeypatch.setattr(torch._inductor, "aoti_compile_and_package", copy)
    monkeypatch.setattr(inductor, "packed_for", lambda program: {"cpu_capability": "AVX9"})
    runtime = InductorRuntime.compile(flat, examined, freezing=True, max_autotune=False)
    assert len(list(tmp_path.iterdir())) == 1
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == [FILE]
    assert runtime.settings["cpu_capability"] == "AVX9"  # whose 4-bit weights it holds
    del runtime
    assert not list(tmp_path.iterdir())


@NEEDS_COMPILER
def test_another_machine_is_told_to_apply_the_recipe(copied: Path) -> None:
    change_settings(copied, isa=[*describe().isa, "avx2048"])
    with pytest.raises(ArtefactError, match=r"for a machine with avx2048, which this one has not; .*`whet apply`"):
        load(copied)


@NEEDS_COMPILER
def test_4_bit_weights_are_read_on_the_kind_of_chip_they_were_packed_for(copied: Path) -> None:
    change_settings(copied, cpu_capability=torch.backends.cpu.get_cpu_capability())
    assert "cpu_capability" in load(copied).runtime.settings
    change_settings(copied, cpu_capability="AVX9")
    with pytest.raises(ArtefactError, match="holds 4-bit weights packed for AVX9"):
        load(copied)


@NEEDS_COMPILER
def test_a_machine_with_more_is_fine(copied: Path) -> None:
    change_settings(copied, isa=[])
    assert load(copied)(torch.randn(2, 4)).logits.shape == (2, 3)


@NEEDS_COMPILER
@pytest.mark.parametrize("isa", [None, "avx2", [1]])
def test_a_package_that_does_not_say_what_it_is_for(copied: Path, isa: object) -> None:
    change_settings(copied, isa=isa)
    with pytest.raises(ArtefactError, match="does not say what it was compiled for"):
        load(copied)


def flip_a_byte(data: bytes) -> bytes:
    middle = len(data) // 2
    return data[:middle] + bytes([data[middle] ^ 0xFF]) + data[middle + 1 :]


@NEEDS_COMPILER
@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(lambda data: data[: len(data) // 2], id="cut short"),
        pytest.param(flip_a_byte, id="a byte flipped"),
        pytest.param(lambda data: b"", id="empty"),
        pytest.param(lambda data: b"not a package", id="another file"),
    ],
)
def test_a_damaged_package(copied: Path, damage) -> None:
    path = copied / FILE
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(ArtefactError, match=r"model\.pt2 is damaged"):
        load(copied)


@NEEDS_COMPILER
def test_an_archive_that_is_no_package(copied: Path) -> None:
    with zipfile.ZipFile(copied / FILE, "w") as archive:
        archive.writestr("model/readme", "hello")
    with pytest.raises(ArtefactError, match=r"does not load here: .*`whet apply` on this machine"):
        load(copied)


@NEEDS_COMPILER
def test_a_missing_package(copied: Path) -> None:
    (copied / FILE).unlink()
    with pytest.raises(ArtefactError, match="No such file"):
        load(copied)


@NEEDS_COMPILER
@pytest.mark.parametrize("freezing", [True, False])
def test_a_program_compiled_at_load(tmp_path: Path, freezing: bool) -> None:
    examined = small()
    exported = program.export(Candidate.original(examined).module, examined)
    runtime = CompileRuntime(exported, freezing=freezing, is_dynamic=True)
    directory = runtime.save(tmp_path / "artefact", examined.signature)
    manifest = json.loads((directory / MANIFEST).read_text())
    assert manifest["runtime"] == "compile"
    assert manifest["settings"] == {"freezing": freezing, "max_autotune": False, "reduce_overhead": False}
    loaded = load(directory)
    for x in (torch.randn(3, 4), torch.randn(5, 4)):
        expected = examined.workload.model(x)
        torch.testing.assert_close(loaded(x).logits, expected["logits"].detach(), rtol=1e-5, atol=1e-6)


class Overwriting:
    """A runtime that adds to its input, as a wrong fusion would."""

    def run(self, tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return (tensors[0].add_(1.0),)


class Drifting:
    """A runtime that adds to a constant of its own."""

    def __init__(self) -> None:
        self.total = torch.zeros(())

    def run(self, tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return (tensors[0] + self.total.add_(1.0),)


def test_a_model_that_overwrites_its_input_is_refused() -> None:
    examined = small()
    before = [x.clone() for x in examined.flat_inputs[0]]
    with pytest.raises(TargetError, match="overwrites its input 0"):
        inductor.check_is_pure(Overwriting(), examined)
    assert all(map(torch.equal, before, examined.flat_inputs[0]))


def test_a_model_that_drifts_is_refused() -> None:
    with pytest.raises(TargetError, match="answers differently each time"):
        inductor.check_is_pure(Drifting(), small())


def test_tools_that_are_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert inductor.missing_tools(at_load=False) == (
        "torch compiles with no-such-compiler, which is not installed: install it (Debian: apt install g++)"
    )
    monkeypatch.setattr(inductor.shutil, "which", lambda name: f"/bin/{name}")
    assert inductor.missing_tools(at_load=False) == ""
    monkeypatch.setattr(inductor.sysconfig, "get_path", lambda name: str(tmp_path))
    assert "python3-dev" in inductor.missing_tools(at_load=True)


def test_tools_that_are_missing_for_a_gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(inductor, "find_spec", lambda name: None)
    assert "pip install triton" in inductor.missing_tools(at_load=True, device="cuda")
    monkeypatch.setattr(inductor, "find_spec", lambda name: object())
    monkeypatch.setattr(inductor.shutil, "which", lambda name: f"/bin/{name}")
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    assert "set CUDA_HOME" in inductor.missing_tools(at_load=False, device="cuda")
    assert "set CUDA_HOME" not in inductor.missing_tools(at_load=True, device="cuda")
    (tmp_path / "include").mkdir()
    (tmp_path / "include" / "cuda.h").write_text("")
    assert inductor.missing_tools(at_load=False, device="cuda") == ""


@NEEDS_COMPILER
def test_inputs_on_another_device_are_refused(package: Path) -> None:
    """Compiled code reads the address of a tensor, whichever memory it is of."""
    with pytest.raises(InputsError, match="runs on cpu, and an input lies on meta"):
        load(package).run(torch.empty(3, 4, device="meta"))


@NEEDS_COMPILER
@pytest.mark.parametrize(("capability", "said"), [(None, "torch finds none here"), ((8, 0), "this GPU is sm_80")])
def test_a_package_for_another_gpu(copied: Path, monkeypatch: pytest.MonkeyPatch, capability, said) -> None:
    change_settings(copied, gpu="sm_90")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: capability is not None)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: capability)
    with pytest.raises(ArtefactError, match=said):
        load(copied)


def test_settings_that_this_torch_lacks_are_left_out(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """torch 2.11 has no aot_inductor.enable_line_tables, and its config.patch refuses names that it does not know."""
    import torch._inductor.config as config

    monkeypatch.delitem(config._config, "aot_inductor.enable_line_tables")
    with inductor._settings(tmp_path, freezing=True, max_autotune=False):
        assert config.freezing
