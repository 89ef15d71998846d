"""A process that works on a target after its examination does not examine it again, unless it built another one."""

from pathlib import Path

import pytest
import torch
from fake_search import context
from torch import Tensor, nn

from whet.core.workload import Quality, Workload, examine
from whet.measure.machine import Limits
from whet.tuner import known_target, target_examination
from whet.tuner.known_target import KnownTarget, digest_of_content, read_outputs, write_outputs
from whet.tuner.target_examination import ExaminationRequest, examine_any

LIMITS = Limits(3e10, {"float32": 1e12, "bfloat16": 4e12, "int8": 8e12})


class Counting(nn.Module):
    """Counts its calls on the class, so that calls of each instance are seen."""

    calls = 0

    def __init__(self, scale: float = 1.0) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3)
        self.scale = scale

    def forward(self, x: Tensor) -> Tensor:
        if not torch.compiler.is_exporting():
            type(self).calls += 1
        return self.scale * self.linear(x)


def build(weights: int = 0, data: int = 0, scale: float = 1.0) -> Workload:
    torch.manual_seed(weights)
    model = Counting(scale).eval()
    torch.manual_seed(data)
    batches = [torch.randn(2, 4) for _ in range(3)]
    return Workload(model=model, inputs=batches, quality=Quality("ones", lambda predict: 1.0), name="counting")


@pytest.fixture
def known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> KnownTarget:
    """What the examination of build() leaves for later processes."""
    monkeypatch.setattr(target_examination, "load_limits", lambda *args, **options: LIMITS)
    monkeypatch.setattr(target_examination, "open_any", lambda name: build())
    facts = examine_any(ExaminationRequest(target="t", directory=tmp_path)).facts
    assert facts is not None
    return context(tmp_path, None, **{n: getattr(facts, n) for n in type(facts).model_fields}).known  # type: ignore[arg-type]


def opened(known: KnownTarget, workload: Workload, monkeypatch: pytest.MonkeyPatch) -> tuple[list[Tensor], int]:
    """The outputs that a later process takes for the original's, and how often it called the model for them."""
    monkeypatch.setattr(known_target, "open_target", lambda name: workload)
    before = Counting.calls
    examined = known.open()
    assert (examined.score, examined.signature) == (1.0, known.signature)
    return [output for (output,) in examined.outputs], Counting.calls - before


def test_the_same_target_is_called_once(known: KnownTarget, monkeypatch: pytest.MonkeyPatch) -> None:
    outputs, calls = opened(known, build(), monkeypatch)
    assert calls == 1
    for output, batch in zip(outputs, build().inputs, strict=True):
        torch.testing.assert_close(output, build().model(batch))


@pytest.mark.parametrize("other", [{"weights": 1}, {"data": 1}, {"scale": 2.0}])
def test_another_target_is_examined_anew(
    known: KnownTarget, monkeypatch: pytest.MonkeyPatch, other: dict[str, float]
) -> None:
    """As one that draws its weights or its inputs without a seed."""
    workload = build(**other)  # type: ignore[arg-type]
    outputs, calls = opened(known, workload, monkeypatch)
    assert calls > 6
    for output, batch in zip(outputs, workload.inputs, strict=True):
        torch.testing.assert_close(output, workload.model(batch))


def test_what_is_known_crosses_the_border_between_processes(known: KnownTarget) -> None:
    assert KnownTarget.model_validate_json(known.model_dump_json()) == known


def test_a_buffer_that_counts_calls_makes_no_other_target() -> None:
    class Counter(nn.Linear):
        def __init__(self) -> None:
            super().__init__(4, 3)
            self.register_buffer("calls", torch.zeros(()))

    workload = Workload(model=Counter(), inputs=[torch.ones(2, 4)])
    before = digest_of_content(workload)
    workload.model.calls += 1  # type: ignore[operator]
    assert digest_of_content(workload) == before


def test_outputs_of_every_dtype_come_back(tmp_path: Path) -> None:
    batch = (torch.randn(2, 3, dtype=torch.complex64).conj(), torch.ones(2, dtype=torch.bfloat16), torch.tensor(3))
    write_outputs([batch, batch], tmp_path / "outputs.pt")
    found = read_outputs(tmp_path / "outputs.pt")
    assert len(found) == 2
    for mine, theirs in zip(found[1], batch, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=0)


def test_outputs_that_are_too_large_are_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Later processes then run the original again, as they do where the file cannot be read."""
    monkeypatch.setattr(known_target, "_MAX_OUTPUT_BYTES", 100)
    assert write_outputs([[torch.ones(25)]], tmp_path / "outputs.pt")
    assert not write_outputs([[torch.ones(26)]], tmp_path / "large.pt")
    assert not (tmp_path / "large.pt").exists()
    assert not write_outputs([[torch.ones(1)]], tmp_path / "nowhere" / "outputs.pt")
    assert read_outputs(tmp_path / "large.pt") is None
    (tmp_path / "outputs.pt").write_bytes(b"PK broken")
    assert read_outputs(tmp_path / "outputs.pt") is None


def test_a_model_with_lazy_parameters_is_known_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def lazy(name: str = "") -> Workload:
        torch.manual_seed(0)
        return Workload(model=nn.Sequential(nn.LazyLinear(3)).eval(), inputs=[torch.ones(2, 4)])

    monkeypatch.setattr(target_examination, "load_limits", lambda *args, **options: LIMITS)
    monkeypatch.setattr(target_examination, "open_any", lazy)
    facts = examine_any(ExaminationRequest(target="t", directory=tmp_path)).facts
    assert facts is not None
    monkeypatch.setattr(known_target, "open_target", lazy)
    monkeypatch.setattr(known_target, "examine", lambda *args, **options: pytest.fail("it was examined again"))
    found = context(tmp_path, None, **{n: getattr(facts, n) for n in type(facts).model_fields}).known.open()  # type: ignore[arg-type]
    assert len(found.outputs) == 1


def test_effects_of_the_original_are_known_to_later_processes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    class Printing(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            print("hello")
            return super().forward(x)

    torch.manual_seed(0)
    workload = Workload(model=Printing(4, 3).eval(), inputs=[torch.randn(2, 4)])
    monkeypatch.setattr(target_examination, "load_limits", lambda *args, **options: LIMITS)
    monkeypatch.setattr(target_examination, "open_any", lambda name: workload)
    facts = examine_any(ExaminationRequest(target="t", directory=tmp_path)).facts
    assert facts is not None
    monkeypatch.setattr(known_target, "open_target", lambda name: workload)
    known = context(tmp_path, None, **{n: getattr(facts, n) for n in type(facts).model_fields}).known  # type: ignore[arg-type]
    assert known.open().effects == examine(workload).effects != ()
