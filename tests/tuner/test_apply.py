"""A recipe is refused for another model, and where it costs more quality than it allows; force applies it."""

from pathlib import Path
from typing import Any

import pytest
import torch

import whet
from processors import NEEDS_BFLOAT16
from whet.cli import main
from whet.core.recipe import Step
from whet.errors import RecipeError, RecipeRefused
from whet.tuner import recipe_replay
from whet.tuner.apply import Applied
from whet.tuner.recipe_replay import Replayed, ReplayRequest, replay_recipe
from whet.tuner.target_examination import architecture
from whet.workloads import resolve

pytestmark = pytest.mark.usefixtures("forked")

BF16 = (Step(technique="bf16"),)
MODELS = """
import torch
from whet import Quality, Workload

def build(width=8, exact=False, seed=0):
    torch.manual_seed(seed)
    model, x = torch.nn.Linear(width, 4).eval(), torch.randn(64, width)
    outputs = model(x).detach()

    def near(predict):
        return ((predict(x) - outputs).abs().amax(1) <= (0.0 if exact else 1.0)).float()

    return Workload(model=model, inputs=[x], quality=Quality("nearness", near), name="linear")

def wider():
    return build(16)

def strict():
    return build(exact=True)

def retrained():
    return build(seed=1)

class Rare(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(8, 4)
        self.linear.weight.data[0] *= 1e6

    def forward(self, x):
        return self.linear(x)

def unscored():
    torch.manual_seed(0)
    return Rare().eval(), torch.randn(64, 8)
"""


@pytest.fixture
def models(tmp_path: Path) -> str:
    (tmp_path / "models.py").write_text(MODELS)
    return str(tmp_path / "models.py")


def replayed(models: str, function: str, out: Path, **options: Any) -> Replayed:
    model = architecture(resolve(f"{models}:build"))
    return replay_recipe(
        ReplayRequest(target=f"{models}:{function}", steps=BF16, directory=out, model=model, **options)
    )


def test_the_model_of_the_recipe_takes_it(models: str, tmp_path: Path) -> None:
    found = replayed(models, "build", tmp_path / "out", max_drop=0.01)
    assert found.doubts == ()
    assert found.change is not None and (found.drop, found.change.num_samples) == (0.0, 64)


def test_more_training_does_not_make_another_model(models: str, tmp_path: Path) -> None:
    assert replayed(models, "retrained", tmp_path / "out", max_drop=0.01).doubts == ()


def test_another_models_recipe_is_refused(models: str, tmp_path: Path) -> None:
    with pytest.raises(RecipeRefused, match=r"another model: its weights have other names, shapes or dtypes.*--force"):
        replayed(models, "wider", tmp_path / "out", max_drop=0.01)
    assert not (tmp_path / "out").exists()
    forced = replayed(models, "wider", tmp_path / "out", max_drop=0.01, force=True)
    assert "made for another model" in forced.doubts[0]


@NEEDS_BFLOAT16
def test_a_quality_that_falls_beyond_what_the_recipe_allows_is_refused(models: str, tmp_path: Path) -> None:
    with pytest.raises(RecipeRefused, match=r"not applied: nearness drops by 100\.0%, more than the 1\.0% allowed"):
        replayed(models, "strict", tmp_path / "out", max_drop=0.01)
    forced = replayed(models, "strict", tmp_path / "again", max_drop=0.01, force=True)
    assert "nearness drops by 100.0%" in forced.doubts[0]
    unknown = replayed(models, "strict", tmp_path / "unknown")
    assert unknown.doubts == (), "a recipe without evidence allows any drop"


def test_a_recipe_without_a_limit_or_a_score_may_not_lose_a_column(
    models: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = ReplayRequest(target=f"{models}:unscored", directory=tmp_path / "out")
    assert replay_recipe(request).doubts == ()

    def lossy(*arguments: Any) -> Any:
        artefact, built, differs = make_variant(*arguments)
        run = artefact.run
        monkeypatch.setattr(artefact, "run", lambda *x: tuple(y.where(y.abs() > 1e3, 0) for y in run(*x)))
        return artefact, built, differs

    make_variant = recipe_replay.make_variant
    monkeypatch.setattr(recipe_replay, "make_variant", lossy)
    with pytest.raises(RecipeRefused, match=r"not applied: agreement .* output 0, column [123] of 4 along axis 1"):
        replay_recipe(request.model_copy(update={"directory": tmp_path / "other"}))


def test_the_command_exits_with_3(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    asked: list[bool] = []

    def fake(recipe: Path, target: str, out: Path, *, force: bool) -> Applied:
        asked.append(force)
        if not force:
            raise RecipeRefused("not applied: it is another model's")
        more: dict[str, Any] = {"size_bytes": 1, "original_bytes": 1, "quality_name": "q"}
        return Applied(
            out="o",
            steps=[Step(technique="bf16")],
            agreement={"relative_error": None, "cosine": 0.0},
            doubts=["?!"],
            **more,
        )

    monkeypatch.setattr("whet.tuner.apply.apply_recipe", fake)
    whet.Recipe().write(tmp_path / "recipe.toml")
    for options, code in (([], 3), (["--force"], 0)):
        with pytest.raises(SystemExit) as ended:
            main(["apply", str(tmp_path / "recipe.toml"), "docs-gpt", "--out", str(tmp_path / "o"), *options])
            raise SystemExit(0)
        assert (ended.value.code or 0) == code
    said = capsys.readouterr()
    assert "error: not applied: it is another model's" in said.err
    assert "applied by force: ?!" in said.out
    assert asked == [False, True]


def test_in_process_another_models_recipe_is_refused_unless_forced() -> None:
    model, x = torch.nn.Linear(4, 2).eval(), torch.randn(3, 4)
    recipe = whet.Recipe(model=architecture(whet.Workload(model=torch.nn.Linear(4, 3), inputs=[x])))
    with pytest.raises(RecipeRefused, match="another model"):
        whet.apply(recipe, model, x)
    assert issubclass(RecipeRefused, RecipeError)
    torch.testing.assert_close(whet.apply(recipe, model, x, force=True)(x), model(x))


def test_the_architecture_is_names_shapes_and_dtypes() -> None:
    def of(model: torch.nn.Module) -> str:
        return architecture(whet.Workload(model=model, inputs=[torch.zeros(1, 4)]))

    assert of(torch.nn.Linear(4, 2)) == of(torch.nn.Linear(4, 2))
    others = [torch.nn.Linear(4, 3), torch.nn.Linear(4, 2).double(), torch.nn.Sequential(torch.nn.Linear(4, 2))]
    assert len({of(torch.nn.Linear(4, 2)), *map(of, others)}) == 4


@pytest.mark.parametrize(
    ("dropped", "said"),
    [
        ([], "The recipe has no steps: the tuning run kept the original. It is saved as it is."),
        ([(Step(technique="bf16"), "not here")], "applied  nothing: no step of the recipe applies here"),
    ],
)
def test_a_recipe_without_steps_says_what_that_means(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    dropped: list[tuple[Step, str]],
    said: str,
) -> None:
    more: dict[str, Any] = {"size_bytes": 18_700_000, "original_bytes": 11_200_000, "quality_name": "q"}
    applied = Applied(out="o", steps=[], dropped=dropped, agreement={"relative_error": None, "cosine": 1.0}, **more)
    monkeypatch.setattr("whet.tuner.apply.apply_recipe", lambda *_, **__: applied)
    whet.Recipe().write(tmp_path / "recipe.toml")
    with pytest.raises(SystemExit) as ended:
        main(["apply", str(tmp_path / "recipe.toml"), "docs-gpt", "--out", str(tmp_path / "o")])
    assert not ended.value.code
    shown = capsys.readouterr().out
    assert said in shown
    assert "beside the weights, it holds the model's graph and its constants\n" in shown
