"""No technique makes a model that is another one outside the inputs seen: it refuses, or the artefact is the model.

An artefact is called with inputs that take the other branches, with other numbers of rows, another layout in memory,
other dtypes, with gradients and under autocast. It answers as the model does, or raises an error of whet's own. What
differs on the inputs seen is left to the tuner, which measures and rejects it.
"""

import contextlib
import io
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from test_contract import TOLERANCES
from torch import Tensor
from traits import REFUSED, TRAITS, WIDTH, TraitModel, positive

from whet.core.artefact import Artefact, load
from whet.core.signature import output_tensors
from whet.core.workload import ExaminedWorkload, Workload, examine
from whet.errors import WhetError
from whet.measure.machine import Machine
from whet.techniques import TABLE
from whet.techniques.precision import fp16
from whet.techniques.technique import Applies, Candidate
from whet.tuner.build import graph_refusal

pytestmark = pytest.mark.usefixtures("all_precisions")

# The original as an artefact, and every technique with what it is held to: (name, options).
VARIANTS: list[tuple[str, dict[str, Any]]] = [
    ("", {}),
    *((name, {}) for name in TABLE),
    ("inductor", {"engine": "jit"}),
    ("native", {"precision": "f32"}),
    ("openvino", {"precision": "f32"}),
    ("onnxruntime", {"precision": "f32"}),
    ("onnxruntime", {"mode": "dynamic"}),
]
QUICK = [VARIANTS[0], ("bf16", {}), ("int8_weight", {"rest": "float32"}), ("openvino", {"precision": "f32"})]
LOOSE = {"native": 0.2, "openvino": 0.2, "onnxruntime": 0.2}  # int8
# Their int8 clips what lies beyond the ranges of the calibration batches, which have to show every branch of a `where`.
CALIBRATED = frozenset({"int8_static", "openvino", "onnxruntime"})

traits = st.lists(st.sampled_from(sorted(TRAITS)), min_size=1, max_size=2, unique=True)


@pytest.fixture
def all_precisions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fp16, "float16_speedup", lambda device: 2.0)


@pytest.mark.parametrize("trait", sorted(TRAITS))
def test_each_trait_is_refused_or_kept(trait: str, machine: Machine) -> None:
    assert _holds([trait], True, QUICK[0], machine) is (trait not in REFUSED)


@settings(max_examples=12)
@given(traits=traits, is_dynamic=st.booleans(), variant=st.sampled_from(QUICK))
def test_what_is_quick_is_the_model_or_is_refused(traits: list[str], is_dynamic: bool, variant: Any) -> None:
    _holds(traits, is_dynamic, variant, _machine())


@pytest.mark.slow
@pytest.mark.parametrize("variant", VARIANTS, ids=lambda v: f"{v[0] or 'original'}{''.join(map(str, v[1].values()))}")
@settings(max_examples=12)
@given(traits=traits, is_dynamic=st.booleans())
def test_every_technique_is_the_model_or_is_refused(variant: Any, traits: list[str], is_dynamic: bool) -> None:
    _holds(traits, is_dynamic, variant, _machine())


def _machine() -> Machine:
    from whet.measure.machine import describe

    return describe()


def _holds(traits: list[str], is_dynamic: bool, variant: tuple[str, dict[str, Any]], machine: Machine) -> bool:
    """Hold one variant to the model. Returns whether there was an artefact to be held."""
    torch.manual_seed(len(traits[0]))
    model = TraitModel(*traits).eval()
    inputs = [positive(4), positive(6 if is_dynamic else 4)]
    name, options = variant
    with contextlib.redirect_stdout(io.StringIO()), tempfile.TemporaryDirectory() as directory:
        try:
            calibration = [*inputs, *(-x for x in inputs)] if name in CALIBRATED and not options else ()
            examined = examine(Workload(model=model, inputs=inputs, calibration=calibration))
            artefact = _artefact(examined, name, options, machine, Path(directory))
        except WhetError:
            return False
        if artefact is None:
            return False
        tolerance = 1e-5 if not name else LOOSE.get(name, 0.0) if not options else 0.0
        tolerance = tolerance or max(TOLERANCES[name], 0.2 if options.get("mode") else 0.0)
        if not _agrees(examined, artefact, tolerance):
            return False
        for x, has_gradients in _unseen():
            _compare(model, artefact, x, has_gradients, tolerance)
        _check_misuse(artefact)
    return True


def _artefact(
    examined: ExaminedWorkload, name: str, options: dict[str, Any], machine: Machine, directory: Path
) -> Artefact | None:
    """Build, save and load a variant; None where it is refused."""
    candidate = Candidate.original(examined)
    if name:
        technique = TABLE[name]
        chosen = technique.options(**options)
        if graph_refusal(technique, examined) or not isinstance(technique.check(examined, machine, chosen), Applies):
            return None
        with torch.no_grad():
            candidate = technique.apply(candidate, chosen)
    return load(candidate.save(directory / "artefact"))


def _agrees(examined: ExaminedWorkload, artefact: Artefact, tolerance: float) -> bool:
    """Whether the artefact is the model on the inputs seen, as the tuner asks for it."""
    try:
        with torch.no_grad():
            found = [artefact.run(*batch) for batch in examined.flat_calibration]
    except WhetError:  # the code fixes a size that differs among the inputs
        return False
    pairs = [pair for a, b in zip(found, examined.outputs, strict=True) for pair in zip(a, b, strict=True)]
    return all((a - b).abs().max() <= tolerance * b.abs().max() for a, b in pairs)


def _unseen() -> Iterator[tuple[Tensor, bool]]:
    """Inputs that were not seen, and whether gradients are on in the call."""
    for x in (positive(4), -positive(4), positive(1), -positive(12), positive(4)[:0]):
        yield x, False
    yield positive(WIDTH)[:4].T.contiguous().T, False
    yield -positive(4), True


def _compare(model: TraitModel, artefact: Artefact, x: Tensor, has_gradients: bool, tolerance: float) -> None:
    before = x.clone()
    with torch.set_grad_enabled(has_gradients):
        try:
            found = artefact(x)
        except WhetError:
            return
        except RuntimeError:  # no size for this backend
            assert x.numel() == 0
            return
        expected = model(before.clone())
    assert torch.equal(x, before)
    tensors = output_tensors(found)
    assert len({y.untyped_storage().data_ptr() for y in (*tensors, x) if y.numel()}) == sum(
        1 for y in (*tensors, x) if y.numel()
    )
    for a, b in zip(tensors, output_tensors(expected), strict=True):
        assert a.shape == b.shape
        assert a.dtype == b.dtype
        if b.numel():
            assert (a - b).abs().max() <= tolerance * b.abs().max(), model.traits


def _check_misuse(artefact: Artefact) -> None:
    x = positive(4)
    for wrong in (x.double(), x.half(), x.int(), x.to_sparse(), x[None]):
        with pytest.raises(WhetError):
            artefact(wrong)
    with pytest.raises(WhetError):
        artefact(x, flag=True)
    with pytest.raises(WhetError, match="gradients"):
        artefact(x.clone().requires_grad_())
    with pytest.raises(WhetError, match="autocast"), torch.no_grad(), torch.autocast("cpu"):
        artefact(x)
    with pytest.raises(WhetError, match="train"):
        artefact.train()
    assert artefact.eval() is artefact
