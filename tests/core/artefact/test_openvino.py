"""OpenVINO models on disk: what they return, in this process and in a fresh one, and what damage looks like."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from reloading import assert_the_same_when_reloaded
from safetensors.torch import save_file
from torch import Tensor

pytest.importorskip("openvino")

from whet.core.artefact import load
from whet.core.artefact.openvino import (
    _COPIED_BYTES,
    FILE,
    OpenVINORuntime,
    Settings,
    core,
    import_openvino,
    properties,
    said,
)
from whet.core.signature import Argument, PyTree, Signature
from whet.errors import ArtefactError, MissingExtra

WEIGHT_NK = torch.randn(3, 8, generator=torch.Generator().manual_seed(1))


def linear(size: int, precision: str = "f32") -> OpenVINORuntime:
    """x [size, 8] -> (x @ weight.T, x > 0), written in OpenVINO's own operators. A size of -1 is free."""
    openvino = import_openvino()
    ops = openvino.opset13
    x = ops.parameter([size, 8], np.float32, name="x")
    y = ops.matmul(x, ops.constant(WEIGHT_NK.numpy()), False, True)
    model = openvino.Model([y, ops.greater(x, ops.constant(np.float32(0)))], [x], "linear")
    return OpenVINORuntime(model, Settings(precision=precision))


def signature(size: int | None) -> Signature:
    output = PyTree("tuple", items=(PyTree("tensor"), PyTree("tensor")))
    return Signature((Argument("x", "float32", (size, 8)),), output, kwargs={"x": PyTree("tensor")})


def reference(x: Tensor) -> Tensor:
    return (x.double() @ WEIGHT_NK.double().T).float()


@pytest.mark.parametrize("size", [4, -1])
def test_outputs_are_those_of_torch(size) -> None:
    runtime = linear(size)
    for num_rows in (4,) if size == 4 else (4, 7, 1):
        x = torch.randn(num_rows, 8)
        y, positive = runtime.run([x])
        torch.testing.assert_close(y, reference(x), rtol=1e-5, atol=1e-5)
        assert torch.equal(positive, x > 0)


def test_outputs_are_the_callers() -> None:
    """Whatever lies between inputs and outputs: one value twice, an input itself, a constant, another shape of one."""
    openvino = import_openvino()
    ops = openvino.opset13
    x = ops.parameter([3, 8], np.float32, name="x")
    y = ops.relu(x)
    flat = ops.constant(np.array([24]))
    given = torch.randn(3, 8), torch.randn(3, 8)
    models = {
        (y, y, ops.exp(y), x): lambda x: (x.relu(), x.relu(), x.relu().exp(), x),
        (x, ops.constant(WEIGHT_NK.numpy())): lambda x: (x, WEIGHT_NK),
        (ops.reshape(x, flat, False), ops.reshape(y, flat, False)): lambda x: (x.flatten(), x.relu().flatten()),
    }
    for outputs, function in models.items():
        runtime = OpenVINORuntime(openvino.Model(list(outputs), [x], "outputs"), Settings())
        kept = [runtime.run([given[i % 2]]) for i in range(5)]
        for i, found in enumerate(kept):
            torch.testing.assert_close(found, function(given[i % 2]), rtol=1e-6, atol=1e-6)


def test_inputs_of_any_size_layout_and_order() -> None:
    """Copied, or read where they lie; what the caller does with them between calls is seen, and only that."""
    runtime = linear(-1)
    large = 2 * _COPIED_BYTES // (8 * 4)
    reused = torch.randn(5, 8)
    rows = [torch.randn(4, 8), reused, torch.randn(8, 4).t(), torch.randn(1, 8).expand(4, 8), torch.randn(large, 8)]
    for x in [*rows, *reversed(rows), torch.randn(8, large).t(), torch.randn(0, 8), *rows]:
        reused += 1
        kept = x.clone()
        y, positive = runtime.run([x])
        torch.testing.assert_close(y, reference(x), rtol=1e-5, atol=1e-5)
        assert torch.equal(positive, x > 0)
        assert torch.equal(x, kept)


@pytest.mark.parametrize("wrong", [torch.randn(4, 8).double(), torch.randn(1, 8), torch.randn(8)])
def test_an_input_that_does_not_fit_is_refused_and_the_next_is_right(wrong) -> None:
    runtime = linear(4)
    x = torch.randn(4, 8)
    for _ in range(2):
        assert torch.equal(runtime.run([x])[1], x > 0)
        with pytest.raises(RuntimeError):
            runtime.run([wrong])


def test_bf16_rounds_and_f32_does_not() -> None:
    x = torch.randn(4, 8)
    wide, narrow = (linear(4, precision).run([x])[0] for precision in ("f32", "bf16"))
    assert (wide - reference(x)).abs().max() < 1e-5
    if "bf16" in str(core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")).lower():
        assert 1e-4 < (narrow - reference(x)).abs().max() < 5e-2


def test_what_a_caller_keeps_outlives_the_next_call() -> None:
    runtime = linear(4)
    first, second = torch.randn(4, 8), torch.randn(4, 8)
    kept = runtime.run([first])
    runtime.run([second])
    torch.testing.assert_close(kept[0], reference(first), rtol=1e-5, atol=1e-5)
    assert torch.equal(kept[1], first > 0)


def test_inputs_that_are_views_or_need_a_gradient() -> None:
    runtime = linear(4)
    x = torch.randn(8, 4).T
    torch.testing.assert_close(runtime.run([x])[0], reference(x), rtol=1e-5, atol=1e-5)
    x = torch.randn(4, 8, requires_grad=True)
    torch.testing.assert_close(runtime.run([x])[0], reference(x.detach()), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64, torch.int64, torch.uint8, torch.bool])
def test_every_dtype_goes_in_and_comes_out(dtype) -> None:
    openvino = import_openvino()
    names = {torch.bfloat16: "bf16", torch.float16: "f16", torch.float64: "f64", torch.bool: "boolean"}
    type_name = names.get(dtype, str(dtype).removeprefix("torch.").replace("uint", "u").replace("int", "i"))
    x = openvino.opset13.parameter([2, 3], getattr(openvino.Type, type_name), name="x")
    model = openvino.Model([openvino.opset13.transpose(x, np.array([1, 0]))], [x], "transpose")
    tensor = torch.tensor([[0, 1, 1], [1, 0, 1]]).to(dtype)
    (out,) = OpenVINORuntime(model, Settings()).run([tensor])
    assert out.dtype == dtype
    assert torch.equal(out, tensor.T)


def test_the_same_in_a_fresh_process(tmp_path) -> None:
    x = torch.randn(4, 8)
    wanted = {}
    for size in (4, None):
        directory, runtime = tmp_path / f"artefact-{size}", linear(size or -1)
        runtime.save(directory, signature(size))
        save_file({"0.0": x}, f"{directory}.inputs.safetensors")
        wanted[directory] = {f"0.{i}": y for i, y in enumerate(runtime.run([x]))}
    assert_the_same_when_reloaded(wanted)


def test_load_gives_the_model_as_it_was_called(tmp_path) -> None:
    artefact = load(linear(4, "bf16").save(tmp_path / "artefact", signature(4)))
    x = torch.randn(4, 8)
    y, positive = artefact(x=x)
    torch.testing.assert_close(y, reference(x), rtol=5e-2, atol=5e-2)
    assert torch.equal(positive, x > 0)
    assert artefact.manifest.settings == {"precision": "bf16"}


@pytest.mark.parametrize("damage", ["cut", "empty", "unknown operator", "no weights", "cut weights", "settings"])
def test_damage_is_an_artefact_error(damage, tmp_path) -> None:
    linear(4).save(tmp_path, signature(4))
    graph, weights, manifest = tmp_path / FILE, tmp_path / "openvino_model.bin", tmp_path / "artefact.json"
    text = graph.read_text()
    match damage:
        case "cut":
            graph.write_text(text[: len(text) // 2])
        case "empty":
            graph.write_text("")
        case "unknown operator":
            graph.write_text(text.replace("MatMul", "MatNul"))
        case "no weights":
            weights.unlink()
        case "cut weights":
            weights.write_bytes(weights.read_bytes()[:40])
        case "settings":
            manifest.write_text(manifest.read_text().replace('"f32"', '"f12"'))
    with pytest.raises(ArtefactError, match=r"openvino_model\.xml is damaged: .+; write it again with `whet apply`"):
        load(tmp_path)


def test_a_missing_package_says_what_to_install(tmp_path, monkeypatch) -> None:
    linear(4).save(tmp_path, signature(4))
    monkeypatch.setitem(sys.modules, "openvino", None)
    with pytest.raises(MissingExtra, match=r"pip install 'torch-whet\[openvino\]'"):
        load(tmp_path)


def test_as_many_threads_as_torch(monkeypatch) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    assert properties(Settings())["INFERENCE_NUM_THREADS"] == 3


def test_nothing_phones_home(tmp_path) -> None:
    """Importing OpenVINO and NNCF and converting a model opens no connection and leaves no file at home."""
    code = (
        "import socket, sys\n"
        "def refuse(*a, **k): print('CONNECTS'); raise OSError\n"
        "socket.socket.connect = refuse; socket.create_connection = refuse; socket.getaddrinfo = refuse\n"
        "import logging; before = logging.getLoggerClass()\n"
        "from whet.core.artefact.openvino import import_openvino\n"
        "from whet.techniques.quantisation.openvino_int8 import import_nncf\n"
        "import torch\n"
        "openvino, nncf = import_openvino(), import_nncf()\n"
        "openvino.convert_model(torch.nn.ReLU(), example_input=torch.ones(2))\n"
        "assert 'openvino_telemetry' not in sys.modules, 'telemetry was imported'\n"
        "assert logging.getLoggerClass() is before, 'NNCF made every logger its own'\n"
        "print('done')\n"
    )
    # Without CI's own variable, which telemetry takes for a no.
    environment = {k: v for k, v in os.environ.items() if k not in ("CI", "TF_BUILD", "JENKINS_URL", "NNCF_CI")}
    environment["HOME"] = str(tmp_path)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code], env=environment, capture_output=True, text=True, check=False
    )
    assert done.stdout.strip().splitlines()[-1:] == ["done"], done.stderr
    assert "CONNECTS" not in done.stdout
    assert not (tmp_path / "intel").exists()


SIGNALS = f"""
import os, signal, sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
import torch
from test_openvino import linear

signal.signal(signal.SIGUSR1, lambda *_: print("handled", flush=True))
first, second = linear(4), linear(4)
x = torch.zeros(4, 8)
first.run([x]), second.run([x])
del first
del second
os.kill(os.getpid(), signal.SIGUSR1)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="has no such signal")
def test_signals_are_handled_after_models_went_away_in_the_order_they_came() -> None:
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", SIGNALS], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "handled\n"), done.stderr


def test_what_openvino_said_comes_without_its_sources() -> None:
    error = RuntimeError(
        "Check 'false' failed at src/a.cpp:1:\nFrontEnd API failed with X:\nNot whole.\n-- No rule: foo\n"
    )
    assert said(error) == "No rule: foo"
    assert said(RuntimeError("Exception from src/b.cpp:2:\n\nIncorrect weights in bin file!\n\n")) == (
        "Incorrect weights in bin file!"
    )
    assert said(RuntimeError()) == "RuntimeError"


def test_the_tuned_shape_is_compiled_apart_and_others_are_taken_too(tmp_path) -> None:
    free = linear(-1)
    runtime = OpenVINORuntime(free._model, Settings(shapes=((4, 8),)))
    runtime.save(tmp_path, signature(None))
    for one in (runtime, load(tmp_path).runtime):
        for num_rows in (4, 1, 7, 4):
            x = torch.randn(num_rows, 8)
            torch.testing.assert_close(one.run([x])[0], reference(x), rtol=1e-5, atol=1e-5)
    again = load(tmp_path).runtime
    assert isinstance(again, OpenVINORuntime)
    again.run([torch.randn(4, 8)])
    assert again._free is None, "the model for any shape takes memory, and nobody asked for it"
