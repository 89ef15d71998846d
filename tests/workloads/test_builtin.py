"""What every built-in workload promises: its score, its size, its shapes."""

import subprocess
import sys
from importlib import import_module

import numpy as np
import pytest
import torch

from whet.core.signature import output_tensors, split
from whet.core.workload import examine
from whet.errors import MissingExtra
from whet.workloads import BUILTIN, WEIGHTS, digits_cnn, docs_encoder, docs_gpt, docs_ssm, resolve
from whet.workloads.handover import PICKLED, hand_over
from whet.workloads.target import open_target

pytest.importorskip("sklearn")
pytest.importorskip("tokenizers")


@pytest.fixture(scope="module", params=BUILTIN)
def workload(request):
    return resolve(request.param)


@pytest.fixture(scope="module")
def examined(workload):
    return examine(workload)


def test_is_sound_and_has_one_shape(workload, examined):
    assert not examined.signature.is_dynamic  # inputs, calibration and scoring alike
    assert not workload.model.training
    assert all(p.dtype == torch.float32 for p in workload.model.parameters())
    assert len(workload.calibration) == 16
    assert len(workload.inputs) == 4


def test_score(workload, examined):
    module = import_module(f"benchmarks.built_in_weights.{workload.name.replace('-', '_')}")
    floor = module.baseline()
    match workload.name:
        case "digits-cnn":
            assert examined.score >= 0.97
            assert floor < 0.2
        case "docs-encoder":
            assert examined.score >= 0.7  # 0.80 to 0.86, by the Python version whose text it is
            assert floor < 0.2
        case "docs-gpt" | "docs-ssm":
            assert examined.score <= 0.6 * floor


def test_is_reproducible(workload):
    again = resolve(workload.name)
    for batch, other in zip(workload.inputs, again.inputs, strict=True):
        assert torch.equal(batch, other)


def test_can_be_handed_to_another_process(workload, tmp_path):
    path = tmp_path / "workload"
    hand_over(workload, path)
    assert path.stat().st_size < 50_000_000  # what batches share is written once
    again = open_target(f"{PICKLED}{path}")
    with torch.no_grad():
        assert torch.equal(again.model(again.inputs[0]), workload.model(workload.inputs[0]))


def test_the_digits_are_those_that_the_library_loads():
    from sklearn.datasets import load_digits

    images_NHW, labels_N = digits_cnn._load_digits()
    assert np.array_equal(images_NHW, load_digits().images)
    assert np.array_equal(labels_N, load_digits().target)


def test_exports(workload):
    args, kwargs = split(workload.inputs[0])
    with torch.no_grad():
        program = torch.export.export(workload.model, args, kwargs, strict=False)
        want = output_tensors(workload.model(*args, **kwargs))
        for got, wanted in zip(output_tensors(program.module()(*args, **kwargs)), want, strict=True):
            torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-4)


def test_weights_are_small():
    for name in BUILTIN:
        assert (WEIGHTS / name / "model.safetensors").stat().st_size <= 8_000_000


@pytest.mark.parametrize("name", [docs_gpt.NAME, docs_ssm.NAME])
def test_transformers_loads_the_language_models(name):
    transformers = pytest.importorskip("transformers")
    directory = WEIGHTS / name
    model = transformers.AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(directory)
    text = "The syntax for an assignment statement"
    ours = resolve(name).model
    ids = tokenizer(text, return_tensors="pt").input_ids
    assert tokenizer.decode(ids[0]) == text
    with torch.no_grad():
        torch.testing.assert_close(ours(ids), model(ids).logits, rtol=1e-4, atol=1e-4)


def test_labels_are_topics_with_passages_to_score():
    labels = docs_encoder.load_labels(WEIGHTS / docs_encoder.NAME)
    assert labels == sorted(set(labels))
    assert len(labels) >= 10


@pytest.mark.parametrize(("package", "name"), [("sklearn", "digits-cnn"), ("tokenizers", "docs-gpt")])
def test_missing_package_is_named(monkeypatch, package, name):
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.setitem(sys.modules, f"{package}.datasets", None)
    with pytest.raises(MissingExtra, match=r"torch-whet\[examples\]"):
        resolve(name)


def test_names_load_nothing():
    code = "import sys; from whet.workloads import BUILTIN; sys.exit(bool({'torch', 'sklearn'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
