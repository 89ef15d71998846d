"""Programs through their archive and back."""

import io
import json
import subprocess
import sys
import warnings
import zipfile
from pathlib import Path

import pytest
import torch
from small_programs import Small, rewrite, save, small
from torch import Tensor, nn

from whet.core.artefact import load, program
from whet.core.artefact.program import FILE, ProgramRuntime, export
from whet.core.workload import Workload, examine
from whet.errors import ArtefactError, TargetError
from whet.techniques.technique import Candidate

LOAD = """
import sys
import torch, whet
from safetensors.torch import load_file, save_file
x = load_file(sys.argv[2])["x"]
out = whet.load(sys.argv[1])(x)
assert list(out) == ["logits", "rest"] and out.rest[1] == "text" and not out.logits.requires_grad
save_file({"logits": out["logits"], "top": out.rest[0]}, sys.argv[3])
assert "small_programs" not in sys.modules
"""


def test_a_loaded_program_equals_the_original_in_a_fresh_process(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    examined = small()
    save(examined, tmp_path / "artefact")
    x = torch.randn(7, 4)  # a batch size that was not among the inputs
    save_file({"x": x}, tmp_path / "in.safetensors")
    paths = [str(tmp_path / name) for name in ("artefact", "in.safetensors", "out.safetensors")]
    done = subprocess.run([sys.executable, "-W", "error", "-c", LOAD, *paths], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    found = load_file(paths[2])
    expected = examined.workload.model(x)
    torch.testing.assert_close(found["logits"], expected["logits"].detach())
    assert torch.equal(found["top"], expected["rest"][0])


def test_saving_warns_of_nothing(tmp_path: Path) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        save(small(), tmp_path / "artefact")
    assert [str(w.message) for w in caught if "No complete tensor" in str(w.message)] == []


def test_the_archive_tells_nothing_of_where_the_model_came_from(tmp_path: Path) -> None:
    save(small(), tmp_path)
    with zipfile.ZipFile(tmp_path / FILE) as archive:
        text = b"".join(archive.read(name) for name in archive.namelist() if name.endswith(".json")).decode()
    assert str(Path(__file__).parent) not in text
    assert "Small" not in text
    assert json.loads((tmp_path / "artefact.json").read_text())["runtime"] == "program"


def test_an_archive_holds_weights_and_graph_and_none_of_the_inputs(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(64, 128), nn.BatchNorm1d(128), nn.Linear(128, 10)).eval()
    samples = torch.randn(100_000, 64)  # 25 MB; torch would write all of it beside the two rows that are taken
    save(examine(Workload(model=model, inputs=[samples[:2], samples[2:5]])), tmp_path)
    with zipfile.ZipFile(tmp_path / FILE) as archive:
        sizes = {entry.filename.partition("/")[2]: entry.file_size for entry in archive.infolist()}
    weights = sum(size for name, size in sizes.items() if name.startswith("data/weights/weight_"))
    assert weights == sum(tensor.nbytes for tensor in model.state_dict().values())
    assert sizes["data/sample_inputs/model.pt"] == 0
    assert (tmp_path / FILE).stat().st_size < weights + 40_000


def test_an_archive_that_holds_sample_inputs_still_loads(tmp_path: Path) -> None:
    examined = small()
    save(examined, tmp_path)
    buffer = io.BytesIO()
    torch.save(((torch.randn(2, 4),), {}), buffer)
    rewrite(tmp_path, replace={"data/sample_inputs/model.pt": buffer.getvalue()})
    x = torch.randn(3, 4)
    torch.testing.assert_close(load(tmp_path)(x).logits, examined.workload.model(x)["logits"].detach())


def test_saving_twice_gives_the_same_graph_and_weights(tmp_path: Path) -> None:
    contents = []
    for name in ("one", "two"):
        save(small(), tmp_path / name)
        with zipfile.ZipFile(tmp_path / name / FILE) as archive:
            contents.append({n: archive.read(n) for n in archive.namelist() if "sample" not in n and "id" not in n})
    assert contents[0].keys() == contents[1].keys()
    weights = [name for name in contents[0] if "/weights/" in name]
    assert len(weights) >= 3
    assert all(contents[0][name] == contents[1][name] for name in weights)


def test_free_dimensions_stay_free_and_fixed_ones_are_checked(tmp_path: Path) -> None:
    examined = small()
    assert examined.signature.inputs[0].shape == (None, 4)
    artefact = load(save(examined, tmp_path))
    for size in (1, 3, 64):
        x = torch.randn(size, 4)
        torch.testing.assert_close(artefact(x).logits, examined.workload.model(x)["logits"].detach())
    with pytest.raises(Exception, match=r"float32\[any, 4\]"):
        artefact(torch.randn(2, 5))


class HigherOrder(nn.Module):
    """What torch.export writes as operators that take graphs, and arithmetic on sizes."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleDict({"a-b": nn.Linear(4, 4)})

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            y = self.layers["a-b"](x)
        with torch.autocast("cpu", torch.bfloat16):
            y = self.layers["a-b"](y).float()
        y = y.reshape(x.shape[0] // 2, 2, 4).mean(1)
        y = torch.vmap(lambda row: row * 2 + 1)(y)
        y = torch.cond(y.sum() > 0, lambda a: a.sin(), lambda a: a.cos(), (y,))
        return nn.functional.gelu(torch.einsum("ij,ij->ij", y, y), approximate="tanh")


def test_graphs_with_graphs_inside_are_saved_and_loaded(tmp_path: Path) -> None:
    model = HigherOrder().eval()
    examined = examine(Workload(model=model, inputs=[torch.randn(4, 4), torch.randn(6, 4)]))
    artefact = load(save(examined, tmp_path))
    for size in (4, 8):
        x = torch.randn(size, 4)
        with torch.no_grad():
            expected = model(x)
        torch.testing.assert_close(artefact(x), expected, rtol=1e-2, atol=1e-2)  # bfloat16 inside


def test_shared_and_empty_weights_come_back(tmp_path: Path) -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(11, 4)
            self.head = nn.Linear(4, 11, bias=False)
            self.head.weight = self.embedding.weight
            self.nothing = nn.Parameter(torch.empty(0, 4))

        def forward(self, ids: Tensor) -> Tensor:
            return self.head(torch.cat([self.embedding(ids), self.nothing]))  # type: ignore[no-any-return]

    model = Tied()
    ids = torch.randint(0, 11, (6,))
    artefact = load(save(examine(Workload(model=model, inputs=[ids])), tmp_path))
    torch.testing.assert_close(artefact(ids), model(ids).detach())
    assert (tmp_path / FILE).stat().st_size < 40_000


def test_a_model_that_cannot_be_traced() -> None:
    class Untraceable(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x + float(x.sum().item() > 0) if x.sum() > 0 else x

    examined = examine(Workload(model=Untraceable(), inputs=[torch.randn(3)]))
    with pytest.raises(TargetError, match=r"torch.export cannot trace the model: .+"):
        export(Candidate.original(examined).module, examined)


@pytest.mark.parametrize("share", [0.0, 0.3, 0.7, 0.98])
def test_a_truncated_file(tmp_path: Path, share: float) -> None:
    path = save(small(), tmp_path) / FILE
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * share)])
    with pytest.raises(ArtefactError, match=r"program.pt2 is damaged"):
        load(tmp_path)


def test_a_missing_file(tmp_path: Path) -> None:
    (save(small(), tmp_path) / FILE).unlink()
    with pytest.raises(ArtefactError, match=r"program.pt2 is damaged"):
        load(tmp_path)


def test_a_program_runs_without_gradients() -> None:
    examined = small()
    runtime = ProgramRuntime.export(Candidate.original(examined).module, examined)
    logits, top = runtime.run([torch.randn(2, 4)])
    assert not logits.requires_grad
    assert top.shape == (2,)
    assert isinstance(examined.workload.model, Small)


def test_a_model_for_a_gpu_is_refused_without_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = tmp_path / "artefact"
    save(small(), directory)
    manifest = json.loads((directory / "artefact.json").read_text())
    manifest["settings"]["device"] = "cuda"
    (directory / "artefact.json").write_text(json.dumps(manifest))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ArtefactError, match="holds a model for a GPU, and torch finds none here"):
        load(directory)


class ByOne(nn.Module):
    """Does something else with a batch of one, which torch.export takes for two or more without a word."""

    def forward(self, x: Tensor) -> Tensor:
        return x * 2 if x.shape[0] == 1 else x + 1


@pytest.mark.parametrize("can_be_copied", [True, False])
def test_sizes_of_one_are_tried_for_a_model_on_a_gpu_too(monkeypatch: pytest.MonkeyPatch, can_be_copied: bool) -> None:
    """On a copy on the CPU; where there can be none, a size of 1 is left out rather than answered wrongly."""
    monkeypatch.setattr(program, "_lies_on_cpu", lambda tensors: False)
    if not can_be_copied:
        monkeypatch.setattr(nn.Module, "cpu", lambda module: 1 / 0)
    honest = nn.Sequential(nn.ReLU())
    for model, expected in ((ByOne(), True), (honest, not can_be_copied)):
        examined = examine(Workload(model=model.eval(), inputs=[torch.randn(3, 4), torch.randn(5, 4)]))
        export(Candidate.original(examined).module, examined)
        assert ("L['tensors'][0].size()[0] >= 2" in program.conditions(examined)) == expected
