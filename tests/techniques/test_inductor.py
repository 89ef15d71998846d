"""The inductor technique: when it is refused, and what it hands to its runtimes. Compiling: tests/core/artefact."""

import pytest
import torch
from small_models import EXAMINED

from whet.core.artefact import inductor as runtimes
from whet.errors import OptionError
from whet.techniques.backend import inductor
from whet.techniques.technique import Applies, Candidate, NotApplicable


@pytest.fixture(autouse=True)
def has_tools(monkeypatch) -> None:
    monkeypatch.setattr(runtimes, "missing_tools", lambda *, at_load, device: "")


def _missing(*, at_load: bool, device: str) -> str:
    return "install more" if at_load else "install g++"


def test_applies_to_anything(machine) -> None:
    for build in EXAMINED.values():
        assert isinstance(inductor.check(build(), machine, inductor.Options()), Applies)
        assert isinstance(inductor.check(build(), machine, inductor.Options(engine="jit", freezing=False)), Applies)


def test_refused_without_a_compiler(machine, monkeypatch) -> None:
    monkeypatch.setattr(runtimes, "missing_tools", _missing)
    examined = EXAMINED["encoder"]()
    assert inductor.check(examined, machine, inductor.Options()) == NotApplicable("install g++")
    assert inductor.check(examined, machine, inductor.Options(engine="jit")) == NotApplicable("install more")


def test_cuda_graphs_are_refused_on_a_cpu(machine) -> None:
    verdict = inductor.check(EXAMINED["encoder"](), machine, inductor.Options(engine="cudagraphs"))
    assert isinstance(verdict, NotApplicable)
    assert "on the CPU" in verdict.reason


def test_unknown_engines_are_refused(machine) -> None:
    with pytest.raises(OptionError, match="package, jit, cudagraphs, not 'aot'"):
        inductor.check(EXAMINED["encoder"](), machine, inductor.Options(engine="aot"))


@pytest.mark.parametrize("freezing", [True, False])
def test_jit_hands_on_its_options(freezing) -> None:
    options = inductor.Options(engine="jit", freezing=freezing, max_autotune=True)
    tuned = inductor.apply(Candidate.original(EXAMINED["encoder"]()), options)
    assert isinstance(tuned.runtime, runtimes.CompileRuntime)
    assert tuned.runtime.settings == {"freezing": freezing, "max_autotune": True, "reduce_overhead": False}


def test_package_hands_on_its_options(monkeypatch) -> None:
    seen = {}
    monkeypatch.setattr(runtimes.InductorRuntime, "compile", lambda module, examined, **options: seen.update(options))
    inductor.apply(Candidate.original(EXAMINED["encoder"]()), inductor.Options(freezing=False))
    assert seen == {"freezing": False, "max_autotune": False}


def test_cuda_graphs_hand_out_copies() -> None:
    """A graph writes into the same outputs at every call: who keeps those of two calls must find both."""
    options = {"freezing": False, "max_autotune": False, "reduce_overhead": True}
    tuned = inductor.apply(Candidate.original(EXAMINED["encoder"]()), inductor.Options(engine="jit", freezing=False))
    runtime = tuned.runtime
    assert isinstance(runtime, runtimes.CompileRuntime)
    same = torch.zeros(3)
    runtime._compiled, runtime._is_compiled, runtime._options = (lambda x: [same.copy_(x)]), True, options
    first = runtime.run((torch.ones(3),))[0]
    runtime.run((torch.full((3,), 2.0),))
    assert torch.equal(first, torch.ones(3))
