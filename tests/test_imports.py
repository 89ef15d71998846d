"""`import whet` does nothing, and names load when they are used. Each import is watched in a fresh process."""

import importlib.util
import json
import subprocess
import sys

import pytest

import whet

HEAVY = ("torch", "numpy", "scipy", "torchao", "openvino", "nncf", "onnx", "onnxruntime", "transformers", "optuna")


def modules_after(code: str) -> set[str]:
    """The top-level modules that a fresh process has loaded after `code`."""
    code += "\nimport sys, json\nprint(json.dumps(sorted({name.partition('.')[0] for name in sys.modules})))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(json.loads(done.stdout.splitlines()[-1]))


def test_importing_whet_loads_nothing_else() -> None:
    loaded = modules_after("import whet") - modules_after("")
    assert loaded <= {"whet", "lazy_loader"} | sys.stdlib_module_names
    assert len(loaded) <= 12
    assert "torch" in modules_after("import whet; whet.Workload")


LIGHT = ("errors", "files", "cli", "recipe", "measure.isolate", "measure.child", "measure.fork_server", "workloads")


@pytest.mark.parametrize("module", [f"whet.{name}" for name in LIGHT])
def test_light_modules_load_no_heavy_library(module: str) -> None:
    if importlib.util.find_spec(module) is None:
        pytest.skip(f"{module} is not there yet")
    assert not modules_after(f"import {module}") & set(HEAVY)


def test_a_benchmark_of_a_server_needs_no_torch() -> None:
    assert "torch" not in modules_after("import whet.cli.bench_serve")


def test_loading_a_decoder_imports_no_compiler() -> None:
    code = "from whet.models.decoder import load_decoder; from whet.workloads import WEIGHTS; import sys\n"
    code += "load_decoder(WEIGHTS / 'docs-gpt'); assert 'torch._dynamo' not in sys.modules"
    assert "torch" in modules_after(code)


def test_the_public_names_are_listed_and_load() -> None:
    assert set(dir(whet)) == set(whet.__all__)
    assert {"tune", "load", "Workload", "Quality", "Recipe", "WhetError", "__version__"} <= set(dir(whet))
    for name in whet.__all__:
        assert getattr(whet, name) is not None
        assert importlib.util.find_spec(f"whet.{name}") is None, f"whet.{name} is a function and a module"


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="No whet attribute nothing"):
        _ = whet.nothing
    assert not hasattr(whet, "nothing")
