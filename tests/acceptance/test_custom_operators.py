"""Models with custom operators, and models that torch.export refuses, from a target to what is loaded or applied."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from small_models import Branching

import whet
from whet.cli import main
from whet.core.artefact.inductor import missing_tools
from whet.core.recipe import Recipe, Step
from whet.errors import OptionError
from whet.techniques import TABLE
from whet.tuner.apply import apply_recipe
from whet.tuner.tuning import tune

pytestmark = pytest.mark.thorough

OPERATORS = """
import torch

@torch.library.custom_op("whettest_halve::halve", mutates_args=())
def halve(x: torch.Tensor) -> torch.Tensor:
    return x / 2

@halve.register_fake
def _(x):
    return torch.empty_like(x)
"""

TARGET = """
import torch
import operators_of_target

class Net(torch.nn.Linear):
    def forward(self, x):
        return operators_of_target.halve(super().forward(x))

def build():
    torch.manual_seed(0)
    return Net(3, 3), torch.ones(2, 3)
"""

# What whet.load says without libraries; then the sum of what the model gives with them.
LOAD = """
import sys
import torch, whet
directory, *libraries = sys.argv[1:]
try:
    whet.load(directory)
except whet.WhetError as error:
    print(error)
model = whet.load(directory, libraries=libraries)
(argument,) = model.signature.inputs
x = torch.ones(2, 3) if argument.dtype == "float32" else torch.arange(16)[None]
with torch.no_grad():
    print(float(model(**{argument.name: x} if argument.name else {})[0].sum() if argument.name else model(x).sum()))
"""


def loaded(directory: Path, libraries: list[str], tmp_path: Path) -> tuple[str, float]:
    command = [sys.executable, "-c", LOAD, str(directory), *libraries]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    error, total = done.stdout.splitlines()
    return error, float(total)


@pytest.mark.usefixtures("short_children")
def test_a_model_with_a_custom_operator_of_its_own_is_applied_and_loaded(tmp_path: Path) -> None:
    (tmp_path / "operators_of_target.py").write_text(OPERATORS)
    (tmp_path / "target.py").write_text(TARGET)
    applied = apply_recipe(Recipe(), f"{tmp_path}/target.py:build", tmp_path / "out")
    assert applied.libraries == (str(tmp_path / "operators_of_target.py"),)
    error, total = loaded(tmp_path / "out", list(applied.libraries), tmp_path)
    assert "whettest_halve::halve" in error
    assert "operators_of_target.py (module)" in error
    torch.manual_seed(0)
    assert total == pytest.approx(float(torch.nn.Linear(3, 3)(torch.ones(2, 3)).sum().detach()) / 2, rel=1e-5)


@pytest.mark.slow
@pytest.mark.usefixtures("short_children")
def test_mixtral_with_random_weights_is_tuned_and_its_model_loads(tmp_path: Path) -> None:
    """transformers registers an operator for its experts. What is saved loads once the caller names the module."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.MixtralConfig(
        vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=1, num_local_experts=4, num_experts_per_tok=2, max_position_embeddings=32,
    )  # fmt: skip
    model = transformers.MixtralForCausalLM(config).eval()
    model.save_pretrained(tmp_path / "mixtral")
    out = tmp_path / "out"
    result = tune(f"hf:{tmp_path}/mixtral?seq=16", out=out, budget_s=60, exclude=list(TABLE))
    assert (result.verdict, result.unsaved) == ("no-gain", "")
    assert result.libraries == ["transformers.integrations.moe"]
    error, total = loaded(out / "model", result.libraries, tmp_path)
    assert "libraries=['transformers.integrations.moe']" in error
    with torch.no_grad():
        expected = float(model(torch.arange(16)[None], use_cache=False).logits.sum())  # by transformers itself
    assert total == pytest.approx(expected, abs=1e-3)


@pytest.fixture
def in_process(tmp_path: Path) -> Path:
    if missing := missing_tools(at_load=True):
        pytest.skip(missing)
    path = tmp_path / "recipe.toml"
    Recipe(steps=[Step(technique="torch_compile")]).write(path)
    return path


def test_a_recipe_that_works_in_process_is_right_on_the_branch_not_seen(
    in_process: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    torch.manual_seed(0)
    model, x = Branching().eval(), torch.rand(4, 8)
    fast = whet.apply(in_process, model, x)
    assert "def forward" not in capsys.readouterr().err  # torch.export prints the graph that it gave up
    for given in (x, x - 2, x + 2):
        torch.testing.assert_close(fast(given).double(), model.in_float64(given).detach(), rtol=1e-5, atol=1e-5)


def test_whet_apply_says_that_nothing_is_saved(
    in_process: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "net.py").write_text(
        "import torch\n"
        "class Net(torch.nn.Module):\n"
        "    def forward(self, x):\n"
        "        return x.sin() if x.sum() > 0 else x.cos()\n"
        "def build():\n"
        "    return Net(), torch.ones(2, 3)\n"
    )
    out = tmp_path / "out"
    with pytest.raises(SystemExit) as left:
        main(["apply", str(in_process), f"{tmp_path}/net.py:build", "--out", str(out)])
    assert left.value.code == 0
    assert not out.exists()
    text = " ".join(capsys.readouterr().out.split())
    assert "saved nothing: torch.compile makes it anew from the model's own code in each process" in text
    assert "graph break" in text
    assert "whet.apply(" in text


def test_a_recipe_that_is_saved_needs_a_place() -> None:
    with pytest.raises(OptionError, match="give --out"):
        apply_recipe(Recipe(), "digits-cnn", None)


@pytest.mark.timeout(900)
@pytest.mark.slow  # six rounds of finals, each of which compiles
def test_a_model_with_a_branch_is_tuned_in_process(tmp_path: Path) -> None:
    """Whatever the machine's load lets the verdict be, nothing that holds one branch only is saved."""
    (tmp_path / "net.py").write_text(
        "import torch\n"
        "class Net(torch.nn.Module):\n"
        "    def forward(self, x):\n"
        "        if x.sum() <= 0:\n"
        "            return x.cos()\n"
        "        for _ in range(60):\n"
        "            x = (x.sin() + 1) * 0.9\n"
        "        return x\n"
        "def build():\n"
        "    return Net(), torch.rand(400, 1000)\n"
    )
    out = tmp_path / "out"
    result = tune(f"{tmp_path}/net.py:build", out=out, budget_s=300)  # the search ends sooner: one technique applies
    trial = next(t for t in result.trials if t.label == "torch_compile")
    assert trial.status == "done"
    assert any("graph break" in note for note in trial.notes)
    assert not (out / "model").exists()
    assert result.unsaved
    with pytest.raises(whet.WhetError, match=r"whet\.apply|could not be saved"):
        whet.load(out / "model")
    steps = Recipe.read(out / "recipe.toml").steps if result.verdict == "gain" else trial.steps
    torch.manual_seed(0)
    x = torch.rand(400, 1000)
    fast = whet.apply(Recipe(steps=steps), f"{tmp_path}/net.py:build")
    torch.testing.assert_close(fast(-x), x.cos())
