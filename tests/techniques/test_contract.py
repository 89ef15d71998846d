"""What every technique in the table must do, whoever wrote it.

check -> apply (the original stays as it was) -> call (close to the original) -> save -> reload in a fresh process
(the same outputs as before). Small models: a convolution network, an encoder with attention by hand, and one with the
interface of a Hugging Face model. A new technique joins by its line in the table, and by a tolerance here. The same on
a GPU, where techniques that are for CPUs must say so.
"""

import ast
import dataclasses
import functools
import inspect
import itertools
import math
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from reloading import RELOAD
from safetensors.torch import load_file, save_file
from small_models import EXAMINED, TRAINED, branching, state_space
from torch import Tensor

import whet.techniques
from whet.core.workload import ExaminedWorkload, examine
from whet.errors import MissingExtra
from whet.files import size_bytes
from whet.measure.machine import Limits, Machine, describe
from whet.profiling.model import LayerCost, Profile
from whet.techniques import FOLDERS, FOLLOWING, TABLE
from whet.techniques.precision import fp16
from whet.techniques.rewriting.graph import relative_error
from whet.techniques.technique import STAGES, Candidate, NotApplicable, Technique
from whet.workloads.device import on_device, training_on_device

HEADINGS = ("What", "When it helps", "When it hurts", "Numerics", "Composes", "Source")

# The largest difference to the original, as a fraction of its largest output, that each technique's card allows for.
TOLERANCES = {
    "prune_channels": math.inf,  # another model: the quality decides
    "prune_decoder": math.inf,
    "fuse_conv_bn": 1e-4,
    "sdpa_attention": 1e-4,
    "fuse_qkv": 1e-5,
    "bf16": 3e-2,
    "fp16": 5e-3,
    "autocast": 3e-2,
    "int8_dynamic": 0.1,
    "int8_static": 0.2,
    "int8_weight": 0.1,
    "int4_weight": 0.5,
    "keep_precision": 0.2,
    "channels_last": 1e-5,
    "inductor": 1e-4,
    "native": 1e-4,
    "openvino": 1e-4,
    "onnxruntime": 1e-4,
    "torch_compile": 1e-5,
    "threads": 1e-6,
}
OPTION_TOLERANCES = {"bf16": 3e-2, "fp16": 5e-3, "int8": 0.2}  # where an option chooses a backend's precision

# Techniques that take seconds to apply: their defaults only, and one model.
COSTLY = frozenset(
    {
        "torch_compile",
        "inductor",
        "openvino",
        "onnxruntime",
        "int8_static",
        "keep_precision",
        "prune_channels",
        "prune_decoder",
    }
)

# Techniques that train a smaller model, on models that a training goes with, for a few steps.
TRAINING = frozenset({"prune_channels", "prune_decoder"})
FEW_STEPS = {"steps": 4}

# Techniques for CPUs alone: on a GPU each refuses, and says that it is for the CPU.
FOR_CPUS = frozenset(
    {
        "int8_dynamic",
        "int8_static",
        "int8_weight",
        "int4_weight",
        "keep_precision",
        "native",
        "openvino",
        "onnxruntime",
        "threads",
    }
)

# NVIDIA GPUs run convolutions in TF32 and choose their kernels by free memory, so nothing on them is nearer than this.
GPU_TOLERANCE = 5e-3

# What COSTLY techniques are tried with on a GPU besides their defaults, which may be refused there.
GPU_OPTIONS: dict[str, list[dict[str, Any]]] = {"inductor": [{"engine": "jit"}, {"engine": "cudagraphs"}]}

TECHNIQUES = pytest.mark.parametrize("name", TABLE)


@dataclasses.dataclass(frozen=True)
class Case:
    """One technique with one set of options, to be tried on one model."""

    technique: Technique
    options: Any
    examined: ExaminedWorkload

    def __str__(self) -> str:
        chosen = dataclasses.asdict(self.options)
        return f"{self.technique.name}({chosen}) on {self.examined.workload.name}"

    @property
    def tolerance(self) -> float:
        chosen = [OPTION_TOLERANCES[v] for v in dataclasses.asdict(self.options).values() if v in OPTION_TOLERANCES]
        return max([TOLERANCES[self.technique.name], *chosen, 0.0 if self.device == "cpu" else GPU_TOLERANCE])

    @property
    def device(self) -> str:
        """The kind of device that the model and its inputs lie on."""
        return self.examined.device_type


Reload = Callable[[Path], str]


@pytest.fixture(scope="module")
def reload() -> Iterator[Reload]:
    """Loads an artefact in a fresh process and runs it; "ok", or what went wrong."""
    command = [sys.executable, str(RELOAD), "torch._dynamo", "torch._export.serde.serialize"]  # for torch.export.load
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1) as process:

        def run(directory: Path) -> str:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(f"{directory}\n")
            return process.stdout.readline().strip()

        yield run
        process.communicate()


@TECHNIQUES
def test_contract(name, machine, reload, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(fp16, "float16_speedup", lambda device: 2.0)  # its numerics are the same on every chip
    _hold_to_contract(name, machine, reload, tmp_path, "cpu")


def test_a_state_space_model_is_compiled_saved_and_loaded_in_a_fresh_process(reload, tmp_path) -> None:
    inductor = TABLE["inductor"]
    case = Case(inductor, inductor.options(), _subject("state_space", "cpu"))
    _apply_and_save(case, tmp_path / "saved")
    assert reload(tmp_path / "saved") == "ok"
    _compare_reloaded(case, tmp_path / "saved")


@pytest.mark.gpu
@pytest.mark.timeout(180)
@TECHNIQUES
def test_contract_on_a_gpu(name, gpu, machine, reload, tmp_path, monkeypatch) -> None:
    if gpu == "cpu":
        monkeypatch.setattr(fp16, "float16_speedup", lambda device: 2.0)
    _hold_to_contract(name, machine if gpu == "cpu" else describe(), reload, tmp_path, gpu)


def _hold_to_contract(name: str, machine: Machine, reload: Reload, directory: Path, device: str) -> None:
    assert name in TOLERANCES, f"say in TOLERANCES how close {name} stays to the original"
    default = TABLE[name].options()
    if name in TRAINING:
        default = dataclasses.replace(default, **FEW_STEPS)
    applied: set[Any] = set()
    reasons = []
    for i, case in enumerate(_cases(TABLE[name], device)):
        if case.options in applied and (name in COSTLY or case.options != default):
            continue
        verdict = case.technique.check(case.examined, machine, case.options)
        if isinstance(verdict, NotApplicable):
            assert verdict.reason
            reasons.append(f"{case}: {verdict.reason}")
            continue
        assert verdict.detail
        applied.add(case.options)
        if case.technique.in_process:
            _apply_in_process(case)
            continue
        _apply_and_save(case, directory / str(i))
        assert reload(directory / str(i)) == "ok", str(case)
        _compare_reloaded(case, directory / str(i))
    if device != "cpu" and name in FOR_CPUS:
        assert not applied
        assert all("CPU" in reason for reason in reasons), reasons
        return
    missing = [reason for reason in reasons if "pip install" in reason]
    if not applied and missing:
        pytest.skip(missing[0])
    assert applied, f"{name} applies to none of the small models: {reasons}"


def _cases(technique: Technique, device: str) -> Iterator[Case]:
    """The default options on every model, then each option's other values, which need only one model that they fit."""
    defaults = {name: values[0] for name, values in technique.space.items()}
    if technique.name in TRAINING:
        for model in TRAINED:
            yield Case(technique, technique.options(**defaults | FEW_STEPS), _subject(model, device))
        return
    chosen = [defaults]
    if technique.name not in COSTLY:
        chosen += [{**defaults, name: value} for name, values in technique.space.items() for value in values[1:]]
    elif device != "cpu":
        chosen += [{**defaults, **options} for options in GPU_OPTIONS.get(technique.name, [])]
    models = ["branching"] if technique.in_process else [*EXAMINED, "state_space"]
    for options, model in itertools.product(chosen, models):
        yield Case(technique, technique.options(**options), _subject(model, device))


@functools.cache
def _subject(name: str, device: str) -> ExaminedWorkload:
    """Built once for all techniques: none may change it, which is tested."""
    examined = branching() if name == "branching" else {**EXAMINED, **TRAINED, "state_space": state_space}[name]()
    if device == "cpu":
        return examined
    workload, moved = examined.workload, on_device(examined.workload, device)
    if workload.training is not None:  # its batches must lie where the model does
        moved = dataclasses.replace(moved, training=lambda: training_on_device(workload.open_training(), device))
    return examine(moved)


def _apply_and_save(case: Case, directory: Path) -> None:
    """Apply, save, and write what the result takes and gives."""
    tuned, batches, found = _apply(case)
    tuned.save(directory)
    assert size_bytes(directory) > 0
    save_file(_named(batches), f"{directory}.inputs.safetensors", metadata={"device": case.device})
    save_file(_named(found), f"{directory}.expected.safetensors")


def _apply_in_process(case: Case) -> None:
    """Apply what cannot be saved; made anew, it gives the same."""
    tuned, batches, found = _apply(case)
    assert tuned.is_in_process
    again = case.technique.apply(Candidate.original(case.examined), case.options)
    for batch, ours in zip(batches, found, strict=True):
        assert relative_error(again.call(*batch), ours) <= 1e-6


def _apply(case: Case) -> tuple[Candidate, list[tuple[Tensor, ...]], list[tuple[Tensor, ...]]]:
    """Apply, and hold the result against the original, which must not have changed."""
    model = case.examined.workload.model
    weights = {key: tensor.clone() for key, tensor in model.state_dict().items()}
    original = Candidate.original(case.examined)
    batches = case.examined.flat_inputs
    with torch.no_grad():
        before = [original.call(*batch) for batch in batches]
        try:
            tuned = case.technique.apply(original, case.options)
        except MissingExtra as error:
            pytest.skip(str(error))
        after = [original.call(*batch) for batch in batches]
        found = [_copies(tuned.call(*batch)) for batch in batches]
    assert tuned is not original
    assert {key: t.dtype for key, t in model.state_dict().items()} == {key: t.dtype for key, t in weights.items()}
    assert all(torch.equal(t, weights[key]) for key, t in model.state_dict().items()), f"{case} changed the original"
    for old, new, ours in zip(before, after, found, strict=True):
        assert all(map(torch.equal, old, new)), f"{case} changed the original's outputs"
        assert [(y.shape, y.dtype) for y in ours] == [(y.shape, y.dtype) for y in old], str(case)
        error = relative_error(ours, old)
        assert error <= case.tolerance, f"{case} is off by {error:.1e}"
    return tuned, batches, found


def _compare_reloaded(case: Case, directory: Path) -> None:
    expected = load_file(f"{directory}.expected.safetensors")
    found = load_file(f"{directory}.outputs.safetensors")
    assert found.keys() == expected.keys()
    error = relative_error([found[key] for key in expected], list(expected.values()))
    assert error <= (1e-6 if case.device == "cpu" else GPU_TOLERANCE), f"{case}, reloaded, is off by {error:.1e}"


def _named(batches: list[tuple[Tensor, ...]]) -> dict[str, Tensor]:
    return {f"{i}.{j}": x.detach().clone().contiguous() for i, batch in enumerate(batches) for j, x in enumerate(batch)}


def _copies(tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return tuple(y.clone() for y in tensors)


@TECHNIQUES
def test_card(name) -> None:
    card = inspect.cleandoc(TABLE[name].card or "")
    missing = [heading for heading in HEADINGS if not re.search(rf"^{heading}\s\s+\S", card, re.MULTILINE)]
    assert not missing, f"{name}'s card lacks {missing}"
    positions = [re.search(rf"^{heading}\s\s", card, re.MULTILINE).start() for heading in HEADINGS]
    assert positions == sorted(positions)


@TECHNIQUES
def test_is_a_technique(name) -> None:
    technique = TABLE[name]
    assert isinstance(technique, Technique)
    folder, _, file = technique.check.__module__.removeprefix("whet.techniques.").partition(".")
    assert technique.name == name == file
    assert technique.stage == folder
    assert isinstance(technique.groups, frozenset)
    options = technique.options
    assert dataclasses.is_dataclass(options)
    assert options.__dataclass_params__.frozen
    assert all(field.kw_only for field in dataclasses.fields(options))


@TECHNIQUES
def test_defaults_come_first_in_the_space(name) -> None:
    technique = TABLE[name]
    defaults = dataclasses.asdict(technique.options())
    assert set(technique.space) <= set(defaults)
    assert {option: defaults[option] for option in technique.space} == {o: v[0] for o, v in technique.space.items()}
    for values in technique.space.values():
        assert len(set(values)) == len(values)
        assert all(isinstance(value, bool | int | float | str) for value in values), "a recipe can't hold it"


@TECHNIQUES
def test_names_no_other_technique(name) -> None:
    tree = ast.parse(inspect.getsource(sys.modules[TABLE[name].check.__module__]))
    imported = {part for node in ast.walk(tree) for path in _imports(node) for part in path.split(".")}
    assert not imported & (set(TABLE) - {name})


def _imports(node: ast.AST) -> Iterator[str]:
    """The modules of whet that a node imports."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names if alias.name.startswith("whet"))
    elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("whet.techniques"):
        yield from (f"{node.module}.{alias.name}" for alias in node.names)


@TECHNIQUES
def test_predicts_a_bound(name) -> None:
    technique = TABLE[name]
    layers = (
        LayerCost("conv", "Conv2d", 1, 2e-3, 10**9, 10**5, 10**6, 1),
        LayerCost("norm", "BatchNorm2d", 1, 1e-3, 0, 10**3, 10**6, 1),
        LayerCost("linear", "Linear", 1, 5e-3, 10**9, 10**6, 10**5, 1),
        LayerCost("attention", "Attention", 1, 2e-3, 10**8, 0, 10**6, 8, ("bmm", "_softmax", "bmm")),
    )
    limits = Limits(3e10, {"float32": 1e12, "bfloat16": 4e12, "float16": 1e9, "int8": 8e12})
    for values in itertools.product(*technique.space.values()):
        options = technique.options(**dict(zip(technique.space, values, strict=True)))
        bound = technique.predict(Profile(1e-2, layers), limits, options)
        assert math.isfinite(bound)
        assert bound >= 1.0


def test_the_table_is_in_the_order_of_stages() -> None:
    places = [technique.place for technique in TABLE.values()]
    assert places == sorted(set(places)), "two techniques of a stage have one order"


def test_every_file_of_a_stage_is_in_the_table() -> None:
    directory = Path(whet.techniques.__file__).parent
    assert {path.stem for stage in STAGES for path in directory.glob(f"{stage}/[!_]*.py")} == set(TABLE)
    assert set(FOLDERS) == {*STAGES, "training"}


def test_what_follows_is_not_there_yet() -> None:
    assert not set(FOLLOWING) & set(TABLE)
    assert all(reason for reason in FOLLOWING.values())
