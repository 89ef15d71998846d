"""torch.compile in process: for models that torch.export refuses, right on every way through their code."""

import pytest
import torch
from small_models import branching, conv_net
from torch import Tensor

from whet.core.artefact.in_process import InProcessRuntime
from whet.core.recipe import Step
from whet.errors import ArtefactError, TargetError
from whet.techniques import TABLE
from whet.techniques.rewriting.graph import relative_error
from whet.techniques.technique import Applies, Candidate, NotApplicable
from whet.tuner.build import build, is_in_process, refusals
from whet.tuner.in_process import as_artefact

TECHNIQUE = TABLE["torch_compile"]
STEP = Step(technique="torch_compile")


@pytest.fixture(scope="module")
def examined():
    return branching()


@pytest.fixture(scope="module")
def compiled(examined) -> Candidate:
    torch._dynamo.reset()  # what another test has compiled of the same code would not be compiled again
    return build(examined, [STEP])


def inputs(shift: float) -> Tensor:
    return torch.rand(4, 8, generator=torch.Generator().manual_seed(1)) + shift


def test_it_applies_where_torch_export_refuses_and_says_why(examined, machine) -> None:
    verdict = TECHNIQUE.check(examined, machine, TECHNIQUE.options())
    assert isinstance(verdict, Applies)
    assert "data-dependent" in verdict.detail or "depends on the values" in verdict.detail
    refused = TECHNIQUE.check(conv_net(), machine, TECHNIQUE.options())
    assert isinstance(refused, NotApplicable)
    assert "torch.export takes the whole model" in refused.reason


def test_what_needs_a_graph_is_refused_for_such_a_model(examined, machine) -> None:
    steps = [Step(technique=name) for name in ("inductor", "bf16", "openvino", "autocast", "torch_compile")]
    assert [step.technique for step, _ in refusals(steps, examined, machine)] == ["inductor", "bf16", "openvino"]


@pytest.mark.parametrize("shift", [0.0, -2.0, 2.0], ids=["the way of the inputs", "the other way", "around the loop"])
def test_it_is_right_on_every_way_through_the_code(examined, compiled: Candidate, shift: float) -> None:
    x = inputs(shift)
    (found,) = as_artefact(compiled).run(x)
    expected = examined.workload.model.in_float64(x)
    assert relative_error([found], [expected]) < 1e-5


def test_the_ways_are_not_the_same(examined) -> None:
    """Else the test above would prove nothing: what the first way computes is wrong on the second."""
    x = inputs(-2.0)
    model = examined.workload.model
    assert relative_error([model.first(model.linear(x))], [model(x)]) > 0.1


def test_the_note_counts_graphs_and_breaks(compiled: Candidate) -> None:
    (note,) = compiled.notes
    assert note.startswith("torch_compile: ")
    runtime = compiled.runtime
    assert isinstance(runtime, InProcessRuntime)
    assert runtime.num_graphs >= 2
    assert runtime.num_graph_breaks >= 1


def test_it_cannot_be_saved_and_says_what_to_do(compiled: Candidate, tmp_path) -> None:
    assert compiled.is_in_process
    assert is_in_process([STEP])
    assert not is_in_process([Step(technique="inductor")])
    with pytest.raises(TargetError, match=r"cannot be saved: .*whet\.apply\("):
        compiled.save(tmp_path / "artefact")
    assert not (tmp_path / "artefact").exists()
    with pytest.raises(ArtefactError, match=r"whet\.apply\("):
        InProcessRuntime.read(tmp_path, as_artefact(compiled).manifest)


def test_it_follows_techniques_that_keep_the_models_code(examined) -> None:
    before = torch.get_num_threads()
    try:
        candidate = build(examined, [STEP, Step(technique="threads", options={"num_threads": before + 1})])
        artefact = as_artefact(candidate)
        assert torch.get_num_threads() == before + 1
    finally:
        torch.set_num_threads(before)
    x = inputs(-2.0)
    torch.testing.assert_close(artefact(x), examined.workload.model(x).detach())
