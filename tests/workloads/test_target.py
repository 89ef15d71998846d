import sys
from pathlib import Path

import pytest
import torch

from whet.core.workload import examine
from whet.errors import MissingExtra, OptionError, TargetError
from whet.workloads import BUILTIN, resolve
from whet.workloads.target_name import check_name

GOOD = """
import torch
from whet import Quality, Workload
from beside import WIDTH

class Model(torch.nn.Linear):
    pass

def workload():
    return Workload(model=Model(WIDTH, 2), inputs=[torch.zeros(1, WIDTH)])

def named():
    return Workload(model=Model(WIDTH, 2), inputs=[torch.zeros(1, WIDTH)], name="mine")

def pair(batch=3):
    return Model(WIDTH, 2), [torch.zeros(batch, WIDTH)]

def one_batch():
    return Model(WIDTH, 2), torch.zeros(5, WIDTH)

class Two(Model):
    def forward(self, ids, mask):
        return super().forward(ids * mask)

def one_call():
    return Two(WIDTH, 2), (torch.zeros(5, WIDTH), torch.ones(5, WIDTH))

class Optional(Model):
    def forward(self, ids, mask=None):
        return super().forward(ids if mask is None else ids * mask)

def either():
    return Optional(WIDTH, 2), (torch.zeros(5, WIDTH), torch.ones(5, WIDTH))

def either_as_a_list():
    return Optional(WIDTH, 2), [(torch.zeros(5, WIDTH), torch.ones(5, WIDTH))]

class ThreeOfTwo(Two):
    def forward(self, ids, mask, bias=None):
        return super().forward(ids, mask)

def call_with_less():
    return ThreeOfTwo(WIDTH, 2), (torch.zeros(5, WIDTH), torch.ones(5, WIDTH))

def split():
    return Model(WIDTH, 2), torch.zeros(4, WIDTH).split(2)

def two_batches():
    return Two(WIDTH, 2), [(torch.zeros(5, WIDTH), torch.ones(5, WIDTH))] * 2

def triple():
    return Model(WIDTH, 2), [torch.zeros(1, WIDTH)], Quality("q", lambda predict: 1.0)
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A user's directory; what it adds to the path and to the modules goes when the test ends."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)
    (tmp_path / "beside.py").write_text("WIDTH = 4\n")
    (tmp_path / "mymodel.py").write_text(GOOD)
    yield tmp_path
    for name in set(sys.modules) - before:
        if str(tmp_path) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


def test_file(folder):
    workload = resolve("mymodel.py:workload")
    assert workload.name == "mymodel.workload"
    assert resolve(f"{folder}/mymodel.py:named").name == "mine"
    assert type(workload.model).__module__ == "mymodel"
    assert "mymodel" in sys.modules


def test_file_elsewhere_imports_its_neighbours(folder, monkeypatch):
    monkeypatch.chdir("/")
    assert resolve(f"{folder}/mymodel.py:workload").inputs[0].shape == (1, 4)


def test_module(folder):
    package = folder / "apackage"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "models.py").write_text(GOOD)
    assert resolve("apackage.models:workload").name == "models.workload"


def test_what_a_function_may_return(folder):
    assert resolve("mymodel.py:pair").num_samples == 3
    assert len(resolve("mymodel.py:one_batch").inputs) == 1
    assert len(resolve("mymodel.py:one_call").inputs) == 1
    assert len(resolve("mymodel.py:two_batches").inputs) == 2
    assert len(resolve("mymodel.py:either_as_a_list").inputs) == 1
    assert len(resolve("mymodel.py:call_with_less").inputs) == 1
    with pytest.raises(TargetError, match="as one call or as batches; return a list"):
        resolve("mymodel.py:either")
    assert len(resolve("mymodel.py:split").inputs) == 2
    triple = resolve("mymodel.py:triple")
    assert triple.quality is not None
    assert not triple.model.training


def test_file_is_read_anew_and_gives_way_to_another_of_its_name(folder, monkeypatch):
    monkeypatch.setattr(sys, "dont_write_bytecode", False)  # which goes by the second and the size of the source
    first = resolve("mymodel.py:workload")
    (folder / "mymodel.py").write_text(GOOD.replace("zeros(1,", "zeros(7,"))
    assert resolve("mymodel.py:workload").num_samples == 7
    (folder / "other").mkdir()
    (folder / "other" / "mymodel.py").write_text(GOOD.replace("zeros(1,", "zeros(9,"))
    assert resolve("other/mymodel.py:workload").num_samples == 9
    assert first.num_samples == 1


def test_file_that_has_the_name_of_a_module_in_use(folder):
    (folder / "json.py").write_text(GOOD)
    with pytest.raises(TargetError, match="rename the file"):
        resolve("json.py:workload")


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("digts-cnn", "did you mean digits-cnn"),
        ("nothing", ", ".join(BUILTIN)),
        ("mymodel.py", "mymodel.py:FUNCTION"),
        (".", "write hf:."),
        (":workload", "lacks a FILE.py"),
        ("mymodel.py:", "lacks a FUNCTION"),
        ("", "FILE.py:FUNCTION"),
        ("absent.py:workload", "no file absent.py in"),
        ("/nowhere/absent.py:workload", "no file /nowhere/absent.py; give the path"),
        ("absent_module:workload", "no module named 'absent_module'"),
        ("mymodel.absent:workload", "importing|no module named 'mymodel.absent'"),
        ("mymodel.py:wrkload", r"no function 'wrkload'; it has workload, named, pair.*did you mean workload"),
        ("beside.py:build", "it defines no function"),
        ("beside.py:WIDTH", "is of type int, not a function"),
    ],
)
def test_targets_that_cannot_be_had(folder, target, said):
    with pytest.raises(TargetError, match=said):
        resolve(target)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("def build(:\n", r"importing bad.py failed: SyntaxError: .* \(line 1 of bad.py\)"),
        ("import no_such_package\n", r"No module named 'no_such_package' \(line 1 of bad.py\)"),
        ("\n\nraise SystemExit(3)\n", r"SystemExit: 3 \(line 3 of bad.py\)"),
        ("1 / 0\ndef build(): pass\n", r"ZeroDivisionError: division by zero \(line 1 of bad.py\)"),
        ("def build(size, depth=1): pass\n", r"needs arguments \(size\)"),
        ("def build(): pass\n", r"returned NoneType \(is a return statement missing\?\)"),
        ("def build(): return 1, 2\n", r"returned \(int, int\); it must return a whet.Workload"),
        ("def build(): return [1]\n", "returned a list"),
        ("import torch\nbuild = torch.nn.Linear(1, 1)\n", "is of type Linear, not a function"),
        ("import torch\ndef build(): return torch.nn.Linear(1, 1), 3\n", "inputs must be a list of batches"),
        ("import torch\ndef build(): return torch.nn.Linear(1, 1), []\n", "at least one batch"),
        ("import torch\ndef build(): return torch.nn.Linear(1, 1), [torch.zeros(1)], len\n", "must be a whet.Quality"),
        (
            "def build():\n    x = {}\n    return x['key']\n",
            r"bad.py:build raised KeyError: 'key' \(line 3 of bad.py\)",
        ),
        ("import torch\n\ndef build():\n    torch.nn.Linear('a', 1)\n", r"raised TypeError: .* \(line 4 of bad.py\)"),
        ("def build():\n    raise ValueError\n", r"raised ValueError \(line 2 of bad.py\)"),
    ],
)
def test_functions_that_go_wrong(folder, text, said):
    (folder / "bad.py").write_text(text)
    with pytest.raises(TargetError, match=said) as caught:
        resolve("bad.py:build")
    assert "\n" not in str(caught.value)


def test_module_that_fails(folder):
    (folder / "bad.py").write_text("import beside\n\n1 / 0\n")
    with pytest.raises(TargetError, match=r"ZeroDivisionError: division by zero \(line 3 of bad.py\)"):
        resolve("bad:build")
    (folder / "bad2.py").write_text("import no_such_package\n")
    with pytest.raises(TargetError, match=r"No module named 'no_such_package' \(line 1 of bad2.py\)"):
        resolve("bad2:build")


def test_whets_own_errors_pass_through(folder):
    (folder / "bad.py").write_text(
        "from whet.errors import OptionError\ndef build(): raise OptionError('out of range')\n"
    )
    with pytest.raises(OptionError, match=r"^out of range$"):
        resolve("bad.py:build")


def test_failed_import_leaves_nothing(folder):
    (folder / "bad.py").write_text("1 / 0\n")
    with pytest.raises(TargetError):
        resolve("bad.py:build")
    assert "bad" not in sys.modules
    (folder / "bad.py").write_text(GOOD)
    assert resolve("bad.py:workload").inputs[0].equal(torch.zeros(1, 4))


@pytest.mark.parametrize("rest", ["None", "{'mask': torch.ones(2, 3)}", "[torch.ones(2, 3), 2]", "3"])
def test_a_tuple_of_mixed_arguments_is_one_call(rest: str, tmp_path: Path) -> None:
    path = tmp_path / "mixed.py"
    path.write_text(
        "import torch\n"
        "class M(torch.nn.Module):\n"
        "    def forward(self, x, more=None):\n"
        "        return 2 * x\n"
        f"def build():\n    return M(), (torch.ones(2, 3), {rest})\n"
    )
    workload = resolve(f"{path}:build")
    assert len(workload.inputs) == 1 and len(workload.inputs[0]) == 2
    assert examine(workload).outputs[0][0].shape == (2, 3)


@pytest.mark.parametrize("target", ["nonsense", "absent.py:build", "hf:/nowhere", "file.py"])
def test_a_wrong_name_is_told_before_anything_waits(target: str) -> None:
    with pytest.raises(TargetError):
        check_name(target)


def test_a_file_that_is_no_python_is_told_before_anything_waits(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("def f(:\n")
    with pytest.raises(TargetError, match=r"importing .*mine.py failed: SyntaxError: .*line 1 of mine.py"):
        check_name(f"{tmp_path}/mine.py:build")


@pytest.mark.parametrize(
    ("target", "package"), [("digits-cnn", "scikit-learn"), ("docs-gpt?device=cuda", "tokenizers")]
)
def test_a_missing_extra_is_told_before_anything_waits(
    target: str, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("whet.workloads.target_name.find_spec", lambda _: None)
    with pytest.raises(MissingExtra, match=rf"needs {package}, which is not installed"):
        check_name(target)


def test_a_name_that_can_be_is_let_through(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("raise SystemExit('it is not to be run')\n\n\ndef build(): ...\n")
    for target in ("digits-cnn", "digits-cnn?device=cuda", f"{tmp_path}/mine.py:build", "json.decoder:build"):
        check_name(target)
