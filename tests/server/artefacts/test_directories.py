"""What `whet serve DIR` serves: the artefact, the tuned language model by the engine, or one clear message."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from small_programs import save, small

from whet.errors import ArtefactError, OptionError, TargetError, WhetError
from whet.server.artefacts.directories import ArtefactSource, EngineSource, source_of
from whet.server.opening import checked_sources
from whet.workloads import WEIGHTS

GPT = WEIGHTS / "docs-gpt"


@pytest.fixture(scope="module")
def artefact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(small(), tmp_path_factory.mktemp("artefact") / "model")


def tuned(out: Path, artefact: Path | None, **result: Any) -> Path:
    out.mkdir()
    if artefact is not None:
        shutil.copytree(artefact, out / "model")
    (out / "result.json").write_text(json.dumps(result))
    (out / "recipe.toml").write_text("")
    return out


@pytest.mark.parametrize(
    ("target", "name"),
    [
        ("digits-cnn", "digits-cnn"),
        ("digits-cnn?device=cpu", "digits-cnn"),
        ("hf:models/bert?seq=8", "bert"),
        ("models.py:build", "build"),
        ("package.module:build", "build"),
    ],
)
def test_an_artefact_by_its_directory_or_the_one_around_it(
    tmp_path: Path, artefact: Path, target: str, name: str
) -> None:
    out = tuned(tmp_path / "out", artefact, target=target)
    for given in (out, out / "model", f"{out}/", f"{out}/model/"):
        found = source_of(str(given))
        assert isinstance(found, ArtefactSource)
        assert (found.name, found.directory.samefile(out / "model")) == (name, True)
    assert source_of(str(artefact)).name == "model"


def test_a_tuned_language_model_is_for_the_engine_with_its_recipe(tmp_path: Path, artefact: Path) -> None:
    gpt = shutil.copytree(GPT, tmp_path / "gpt")
    elsewhere = {"target": "hf:gone/gpt?seq=64", "model_directory": str(gpt), "model_type": "llama"}
    for number, result in enumerate(({"target": "docs-gpt"}, {"target": f"hf:{gpt}"}, elsewhere)):
        out = tuned(tmp_path / str(number), artefact, **result)
        found = source_of(str(out))
        assert isinstance(found, EngineSource)
        assert found.recipe == out / "recipe.toml"
        assert found.directory.samefile(GPT if number == 0 else gpt)
        assert isinstance(source_of(str(out / "model")), ArtefactSource)
    shutil.rmtree(gpt)
    with pytest.raises(TargetError, match=r"gpt, which is gone: put it back there, or serve .*model for single calls"):
        source_of(str(tmp_path / "2"))


def test_what_cannot_be_served(tmp_path: Path, artefact: Path) -> None:
    with pytest.raises(ArtefactError, match=r"result\.json is damaged"):
        out = tuned(tmp_path / "1", artefact)
        (out / "result.json").write_text("{")
        source_of(str(out))
    with pytest.raises(ArtefactError, match="cannot be saved"):
        source_of(str(tuned(tmp_path / "2", None, target="digits-cnn", unsaved="It cannot be saved.")))
    with pytest.raises(ArtefactError, match=r"artefact\.json is damaged"):
        out = tuned(tmp_path / "3", artefact, target="digits-cnn")
        (out / "model" / "artefact.json").write_text("{}")
        source_of(str(out))
    with pytest.raises(WhetError, match="is no directory"):
        source_of(str(tmp_path / "nothing"))


def test_names(artefact: Path) -> None:
    assert list(checked_sources(artefact, {"gpt": "docs-gpt"}, ["a", "b"])) == [("a", "b"), ("gpt",)]
    for model, models in ((artefact, {"model": "docs-gpt"}), ("docs-gpt", {"docs-gpt": artefact})):
        with pytest.raises(OptionError, match="two models have one name"):
            checked_sources(model, models)
    with pytest.raises(OptionError, match="there is no model to serve"):
        checked_sources(None, {})
    with pytest.raises(TargetError, match="nothing is no directory"):
        checked_sources("docs-gpt", {"other": "nothing"})
