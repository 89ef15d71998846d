"""whet serve for what was tuned: a real process with several models, and what it refuses before the port opens."""

import json
import shutil
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import pytest
import torch
from small_programs import save, small

import whet
from refusals import refusal
from whet.server.artefacts.directories import ArtefactSource
from whet.server.opening import Given, opened
from whet.server.options import EngineOptions


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `whet tune FILE.py:small` leaves."""
    out = tmp_path_factory.mktemp("tuned")
    save(small(), out / "model")
    (out / "result.json").write_text(json.dumps({"target": "models.py:small"}))
    return out


def ask(url: str, body: object = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)


def test_several_models_to_the_end(tuned: Path, tmp_path: Path) -> None:
    words = ["serve", str(tuned), "--model", f"other={tuned}/model", "--model", "gpt=docs-gpt", "--dtype", "fp32"]
    process = subprocess.Popen(
        [sys.executable, "-m", "whet", *words, "--port", "0", "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
    )
    try:
        assert process.stdout is not None
        told = json.loads(process.stdout.readline())
        url = told["url"]
        assert told["model"] == "small"
        assert {model["id"] for model in ask(f"{url}/v1/models")["data"]} == {"small", "other", "gpt"}
        x = torch.randn(3, 4)
        expected = whet.load(tuned / "model")(x)
        given = {"name": "input_0", "datatype": "FP32", "shape": [3, 4], "data": x.tolist()}
        for name in ("small", "other"):
            answer = ask(f"{url}/v2/models/{name}/infer", {"inputs": [given]})
            found = {output["name"]: output for output in answer["outputs"]}
            torch.testing.assert_close(torch.tensor(found["logits"]["data"]).reshape(3, 3), expected.logits)
            assert found["rest.0"]["data"] == expected.rest[0].tolist()
        assert ask(f"{url}/v1/completions", {"model": "gpt", "prompt": "The", "max_tokens": 3})["model"] == "gpt"
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
        assert process.stderr is not None
        said = process.stderr.read()
        assert "Traceback" not in said
        assert f"{url}/v2/models/small/infer answers as small" in said
        assert said.splitlines()[-1] == "whet serve: ended"
    finally:
        process.kill()
        process.communicate()


def test_models_that_were_tuned_with_different_numbers_of_threads(tuned: Path, tmp_path: Path) -> None:
    sources = {}
    for number in (1, 2, 2):
        directory = shutil.copytree(tuned / "model", tmp_path / f"model-{len(sources)}")
        manifest = json.loads((directory / "artefact.json").read_text()) | {"num_threads": number}
        (directory / "artefact.json").write_text(json.dumps(manifest))
        sources[f"m{len(sources)}",] = ArtefactSource(directory, "model")
    before, notes = torch.get_num_threads(), list[str]()
    try:
        for chosen in (sources, dict(list(sources.items())[1:])):
            with opened(chosen, Given(EngineOptions()), notes.append) as models:
                assert models.artefacts.keys() == {name for (name,) in chosen}
    finally:
        torch.set_num_threads(before)
    assert len(notes) == 1
    assert "(m0 with 1, m1 with 2, m2 with 2): the last one's holds for all" in notes[0]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "there is no model to serve"),
        (["--model", "docs-gpt"], "is not NAME=DIR"),
        (["--model", "a=docs-gpt", "--model", "a=docs-gpt"], "is given twice"),
        (["docs-gpt", "--model", "docs-gpt=docs-gpt"], "two models have one name"),
        (["docs-gpt", "--model", "a=nowhere"], "nowhere is no directory"),
        (["--model", "a=TUNED", "--recipe", "RECIPE"], "--recipe is for language models"),
        (["--model", "a=TUNED", "--weights", "int8"], "--weights is for language models"),
        (["docs-gpt", "--model", "a=docs-gpt", "--draft", "docs-gpt"], "--draft is for one language model"),
        (["TUNED", "--library", "nothing.so"], "nothing.so"),
    ],
)
def test_models_that_cannot_be_served(
    capsys: pytest.CaptureFixture[str], tuned: Path, tmp_path: Path, options: list[str], message: str
) -> None:
    (tmp_path / "recipe.toml").write_text('[[steps]]\ntechnique = "bf16"\n')
    places = {"TUNED": str(tuned), "RECIPE": str(tmp_path / "recipe.toml")}
    for word, place in places.items():
        options = [option.replace(word, place) for option in options]
    assert message in refusal(capsys, *options)


def test_a_damaged_artefact_and_a_language_model_that_is_gone(
    capsys: pytest.CaptureFixture[str], tuned: Path, tmp_path: Path
) -> None:
    damaged = shutil.copytree(tuned, tmp_path / "damaged")
    (damaged / "model" / "program.pt2").write_bytes(b"nothing")
    assert "program.pt2 is damaged" in refusal(capsys, str(damaged))
    gone = {"target": "hf:gone", "model_directory": str(tmp_path / "gone"), "model_type": "llama"}
    (damaged / "result.json").write_text(json.dumps(gone))
    assert "which is gone: put it back there" in refusal(capsys, str(damaged))
