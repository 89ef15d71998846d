"""whet serve: what it refuses before the port opens, and a real server with a real model, to its end."""

import json
import shutil
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from refusals import refusal
from whet.cli import main
from whet.core.recipe import Recipe, Step
from whet.errors import OptionError
from whet.server.options import EngineOptions

MODEL = Path(__file__).parents[2] / "src/whet/workloads/weights/docs-gpt"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return Path(shutil.copytree(MODEL, tmp_path / "model"))


@pytest.fixture(autouse=True)
def no_port(monkeypatch: pytest.MonkeyPatch) -> None:
    """In this process nothing may get as far as to listen."""
    monkeypatch.setattr(socket.socket, "listen", lambda *_: pytest.fail("the port was opened"))


def edit(path: Path, **fields: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:100_000])


def other_tokenizer(path: Path) -> None:
    content = json.loads(path.read_text())
    content["model"]["vocab"]["one-too-many"] = 2048
    path.write_text(json.dumps(content))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda model: shutil.rmtree(model), "is no directory"),
        (lambda model: (model / "config.json").unlink(), "config.json"),
        (lambda model: (model / "config.json").write_text("{"), "config.json cannot be read"),
        (lambda model: (model / "config.json").write_text("[]"), "config.json cannot be read"),
        (lambda model: edit(model / "config.json", model_type="rwkv", architectures=["Rwkv"]), "rwkv"),
        (lambda model: (model / "model.safetensors").unlink(), "model.safetensors"),
        (lambda model: cut(model / "model.safetensors"), "model.safetensors"),
        (lambda model: (model / "model.safetensors").write_bytes(b"\xff" * 1000), "model.safetensors cannot be read"),
        (lambda model: edit(model / "config.json", hidden_size=512), "shape"),
        (lambda model: (model / "tokenizer.json").unlink(), "tokenizer.json"),
        (lambda model: (model / "tokenizer.json").write_text("{}"), "tokenizer.json"),
        (lambda model: edit(model / "config.json", vocab_size=100_000), "belongs to another model"),
        (lambda model: other_tokenizer(model / "tokenizer.json"), "belongs to another model"),
        (lambda model: edit(model / "tokenizer_config.json", chat_template="{% if %}"), "chat template"),
    ],
)
def test_a_model_that_cannot_be_served(
    model: Path, capsys: pytest.CaptureFixture[str], damage: Callable[[Path], object], message: str
) -> None:
    damage(model)
    assert message in refusal(capsys, str(model))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--memory", "100kB"], "one sequence of 512 tokens takes"),
        (["--memory", "lots"], "--memory 'lots': write a size above 0"),
        (["--max-model-len", "513"], "512"),
        (["--max-model-len", "0"], "max_model_len"),
        (["--max-num-seqs", "0"], "max_num_seqs"),
        (["--tensor-parallel-size", "0"], "tensor_parallel_size=0: it is a whole number of at least 1"),
        (["--tensor-parallel-size", "3"], "num_attention_heads is 8, which is not a multiple of 3"),
        (["--max-num-batched-tokens", "8"], "max_batch_tokens=8 is below max_num_seqs=64"),
        (["--draft", "nowhere"], "nowhere"),
        (["--api-key", ""], "--api-key"),
        (["--served-model-name", ""], "--served-model-name"),
        (["--shutdown-timeout", "soon"], "--shutdown-timeout 'soon': write a duration from 0 on"),
        (["--recipe", "nowhere.toml"], "nowhere.toml does not exist"),
        (["--port", "70000"], "--port takes 0 (any free port) to 65535; got 70000"),
        (["--host", "192.0.2.1"], "cannot listen on 192.0.2.1"),
    ],
)
def test_options_that_cannot_be(capsys: pytest.CaptureFixture[str], options: list[str], message: str) -> None:
    assert message in refusal(capsys, str(MODEL), *options)


@pytest.mark.parametrize(
    ("options", "wanted"), [([], 512), (["--max-batch-tokens", "99"], 99), (["--max-num-batched-tokens", "98"], 98)]
)
def test_a_model_by_its_name_and_an_option_by_its_other_one(
    monkeypatch: pytest.MonkeyPatch, options: list[str], wanted: int
) -> None:
    asked: dict[str, Any] = {}

    def see(directory: Path, options: EngineOptions, **others: object) -> None:
        asked.update(others, directory=directory, options=options)
        raise OptionError("seen")

    monkeypatch.setattr("whet.server.opening.Engine", see)
    with pytest.raises(SystemExit):
        main(["serve", "docs-gpt", "--port", "0", "--draft", "docs-gpt", *options])
    assert asked["directory"].samefile(MODEL)
    assert asked["draft"].samefile(MODEL)
    assert asked["options"].max_batch_tokens == wanted


def test_a_port_in_use_is_known_before_the_model_is_loaded(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    monkeypatch.setattr("whet.server.opening.Engine", lambda *_, **__: pytest.fail("the model was loaded"))
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        assert f"port {port} of 127.0.0.1 is in use" in refusal(capsys, str(MODEL), "--port", str(port))


def test_a_recipe_gives_what_is_not_said_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path, asked = tmp_path / "recipe.toml", []
    steps = [
        Step(technique="fuse_qkv"),
        Step(technique="int8_weight", options={"rest": "float32"}),
        Step(technique="threads", options={"num_threads": 1}),
    ]
    Recipe(steps=steps).write(path)

    class Seen(Exception):
        pass

    def see(_: Path, options: EngineOptions, **others: object) -> None:
        asked.append((options.dtype, options.weights))
        raise Seen

    monkeypatch.setattr("whet.server.opening.Engine", see)
    before = torch.get_num_threads()
    try:
        for more in ([], ["--weights", "as-is", "--dtype", "bf16"]):
            with pytest.raises(Seen):
                main(["serve", str(MODEL), "--port", "0", "--recipe", str(path), *more])
            wanted = ("bf16", "as-is") if more else ("fp32", "int8")
            assert (asked[-1], torch.get_num_threads()) == (wanted, 1)
        said = capsys.readouterr().err
        assert "fuse_qkv of the recipe is left out" in said
        assert "nothing in" not in said
        Recipe(steps=steps[:1]).write(path)
        with pytest.raises(Seen):
            main(["serve", str(MODEL), "--port", "0", "--recipe", str(path)])
        assert asked[-1] == ("bf16", "as-is")
        assert f"the engine can follow no step of {path}" in capsys.readouterr().err
    finally:
        torch.set_num_threads(before)


def test_a_missing_extra_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    code = "import sys; sys.modules['uvicorn'] = None; from whet.cli import main; main(['serve', 'docs-gpt'])"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert ended.returncode == 2
    assert (
        "whet serve needs uvicorn, which is not installed: pip install 'torch-whet[serve]', or in a clone"
        in ended.stderr
    )


KEY = "the-key"


@pytest.fixture(scope="module")
def server() -> Iterator[tuple[subprocess.Popen[str], str]]:
    words = ["serve", "docs-gpt", "--port", "0", "--json", "--dtype", "fp32", "--shutdown-timeout", "60s"]
    process = subprocess.Popen(
        [sys.executable, "-m", "whet", *words, "--api-key", KEY, "--api-key", "other"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        yield process, json.loads(process.stdout.readline())["url"]
    finally:
        process.kill()
        process.communicate()


def ask(url: str, path: str, body: object = None, key: str = KEY) -> Any:
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    data = None if body is None else json.dumps(body).encode()
    return urllib.request.urlopen(urllib.request.Request(url + path, data, headers), timeout=60)


def text_of(url: str, **body: Any) -> str:
    """Of a completion: greedy, whole or streamed."""
    body = {"prompt": "The torch.nn module", "max_tokens": 40, "temperature": 0, **body}
    with ask(url, "/v1/completions", body) as answer:
        if not body.get("stream"):
            return str(json.load(answer)["choices"][0]["text"])
        events = [line.removeprefix(b"data: ") for line in answer if line.startswith(b"data: {")]
        return "".join(json.loads(event)["choices"][0]["text"] for event in events)


def test_a_real_server_to_its_end(server: tuple[subprocess.Popen[str], str]) -> None:
    process, url = server
    whole = text_of(url)
    assert len(whole) > 20
    assert text_of(url, stream=True) == whole
    assert text_of(url, prompt=["The torch.nn module", "Another"]) == whole
    with pytest.raises(urllib.error.HTTPError, match="401"):
        ask(url, "/v1/models", key="wrong")
    long = {"prompt": "The", "max_tokens": 500, "temperature": 0, "ignore_eos": True, "stream": True}
    with ask(url, "/v1/completions", long, key="other") as answer:
        assert answer.readline().startswith(b"data: ")
        process.send_signal(signal.SIGTERM)
        lines = [line for line in answer if line.startswith(b"data: ")]
    assert lines[-1] == b"data: [DONE]\n"
    assert json.loads(lines[-2].removeprefix(b"data: "))["choices"][0]["finish_reason"] == "length"
    assert process.wait(30) == 0
    assert process.stderr is not None
    said = process.stderr.read()
    assert "Traceback" not in said
    assert said.splitlines()[-1] == "whet serve: ended"
