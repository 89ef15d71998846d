"""whet.watch on real loops, with sleeps and leaks planted in them: each is found in its phase."""

import itertools
import re
import statistics
import time
from typing import Any

import pytest
import torch
from small_loops import NUM_FEATURES, Sleepy, SleepyBackward, parts, run, train
from torch import Tensor, nn
from torch.utils.data import DataLoader

from whet.profiling.bounds import Bound
from whet.profiling.step.phases import Phase
from whet.profiling.step.report import StepReport
from whet.profiling.step.watch import watch, watch_everything

SLEEP_S = 0.005
PLANTED_S = 4 * SLEEP_S  # far more than other work on the machine adds to another phase


def ms(report: StepReport, phase: Phase) -> float:
    """A phase's milliseconds a step; fails where it was not seen."""
    (found,) = [p for p in report.phases if p.name == phase.label]
    assert found.ms is not None
    return found.ms


def absent(report: StepReport, phase: Phase) -> str:
    (found,) = [p for p in report.phases if p.name == phase.label]
    assert (found.ms is None) == bool(found.absent)
    return found.absent


@pytest.mark.parametrize("everything", [False, True], ids=["watch", "watch_everything"])
@pytest.mark.parametrize(
    ("planted", "phase", "verdict"),
    [
        ({"data_s": PLANTED_S}, Phase.DATA, Bound.INPUT),
        ({"forward_s": PLANTED_S}, Phase.FORWARD, Bound.COMPUTE),
        ({"step_s": PLANTED_S}, Phase.OPTIMIZER, Bound.COMPUTE),
    ],
)
def test_a_planted_sleep_is_found_in_its_phase(
    planted: dict[str, float], phase: Phase, verdict: Bound, everything: bool
) -> None:
    model, optimizer, loader = parts(25, **planted)
    if everything:
        with watch_everything() as steps:
            run(train(model, optimizer, loader))
    else:
        steps = watch(model, optimizer, loader)
        run(train(model, optimizer, steps))
    report = steps.report()
    assert report.verdict is report.bound is verdict
    assert PLANTED_S * 1e3 <= ms(report, phase) <= 4 * PLANTED_S * 1e3
    for other in (Phase.DATA, Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER):
        assert other is phase or ms(report, other) < ms(report, phase)


def test_a_sleep_in_the_backward_pass_is_found_there() -> None:
    model, optimizer, loader = parts(15)
    steps = watch(model, optimizer, loader)
    for x, y in steps:
        nn.functional.mse_loss(SleepyBackward.apply(model(x)), y).backward()
        optimizer.step()
    assert ms(steps.report(), Phase.BACKWARD) >= 5


def test_a_sleep_in_a_synchronising_call_is_found_with_its_line(monkeypatch: pytest.MonkeyPatch) -> None:
    original = Tensor.item

    def slow(self: Tensor) -> Any:
        time.sleep(SLEEP_S)
        return original(self)

    monkeypatch.setattr(Tensor, "item", slow)
    model, optimizer, loader = parts(15)
    with watch(model, optimizer, loader) as steps:
        for loss in train(model, optimizer, steps):
            loss.item()  # the line that waits
    report = steps.report()
    assert report.verdict is Bound.SYNC
    assert ms(report, Phase.SYNC) >= SLEEP_S * 1e3
    (site,) = report.sites
    assert site.call == "Tensor.item"
    assert "test_watch.py:" in site.line
    assert site.calls == pytest.approx(1)
    assert "Tensor.item at" in report.evidence[0]
    monkeypatch.undo()


def test_every_way_of_reading_a_value_is_synchronisation() -> None:
    model, optimizer, loader = parts(12)
    steps = watch(model, optimizer, loader)
    for loss in train(model, optimizer, steps):
        seen = loss.detach()
        assert isinstance(float(seen), float)
        assert isinstance(int(seen), int)
        assert bool(seen) in (True, False)
        seen.tolist()
        seen.cpu()
        seen.numpy()
        seen.item()
    (sync,) = [p for p in steps.report().phases if p.name == Phase.SYNC.label]
    assert sync.calls == pytest.approx(7)


def test_a_sleep_in_the_loops_own_code_is_in_the_rest() -> None:
    model, optimizer, loader = parts(15)
    steps = watch(model, optimizer, loader)
    for _ in train(model, optimizer, steps):
        time.sleep(SLEEP_S)
    report = steps.report()
    assert report.verdict is Bound.LOOP
    assert ms(report, Phase.REST) >= SLEEP_S * 1e3


def test_the_phases_add_up_to_the_steps_and_the_steps_to_the_time_on_the_wall(monkeypatch: pytest.MonkeyPatch) -> None:
    # The first looks at memory are taken at any cost, between the steps, and a large heap takes long to walk.
    monkeypatch.setattr("whet.profiling.step.log.memory_series", lambda device: [])
    model, optimizer, loader = parts(30, data_s=0.001, forward_s=0.002, step_s=0.001)
    steps = watch(model, optimizer, loader)
    asked = [time.perf_counter() for _ in train(model, optimizer, steps)]
    report = steps.report()
    assert report.num_steps == 30
    assert report.num_counted == 28
    total = sum(phase.ms or 0.0 for phase in report.phases)
    assert total == pytest.approx(report.step_ms, rel=1e-6)
    assert sum(phase.share or 0.0 for phase in report.phases) == pytest.approx(1)
    on_the_wall = [after - before for before, after in itertools.pairwise(asked[1:])]
    assert report.p50_ms == pytest.approx(statistics.median(on_the_wall) * 1e3, rel=0.1)


def test_a_copy_to_another_device_is_a_transfer_and_none_is_said_to_be_none(monkeypatch: pytest.MonkeyPatch) -> None:
    model, optimizer, loader = parts(12)
    steps = watch(model, optimizer, loader)
    for x, y in steps:
        x = x.to(torch.float64).to("cpu").to(torch.float32)  # stays where it is
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
    assert "nothing to copy" in absent(steps.report(), Phase.TRANSFER)

    original = Tensor.to

    def slow(self: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        time.sleep(0.002)
        return original(self, *args, **kwargs)

    monkeypatch.setattr(Tensor, "to", slow)
    steps = watch(model, optimizer, loader)
    for x, y in steps:
        x.to("meta")  # the only other device that every machine has
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
    assert ms(steps.report(), Phase.TRANSFER) >= 2
    monkeypatch.undo()


def test_the_recent_steps_come_one_by_one() -> None:
    model, optimizer, loader = parts(5)
    steps = watch(model, optimizer, loader)
    run(train(model, optimizer, steps))
    recent = steps.recent()
    assert len(recent) == steps.report().num_steps == 5
    assert [step.number for step in recent] == [0, 1, 2, 3, 4]


def test_gradient_accumulation_counts_as_one_step() -> None:
    model, optimizer, loader = parts(40, forward_s=0.001)
    steps = watch(model, optimizer, loader)
    for index, (x, y) in enumerate(steps):
        (nn.functional.mse_loss(model(x), y) / 4).backward()
        if index % 4 == 3:
            optimizer.step()
            optimizer.zero_grad()
    report = steps.report()
    assert report.num_steps == 10
    assert report.batches_per_step == 4
    assert ms(report, Phase.FORWARD) >= 4
    assert "4 batches make one step" in str(report)


def test_a_grad_scaler_works_and_a_skipped_step_is_a_step() -> None:
    model, optimizer, loader = parts(20, step_s=0.001)
    plain = [p.clone() for p in model.parameters()]
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0, growth_interval=1000)
    steps = watch(model, optimizer, loader)
    for index, (x, y) in enumerate(steps):
        with torch.autocast("cpu", torch.bfloat16):
            loss = nn.functional.mse_loss(model(x), y)
        if index == 10:
            loss = loss * float("inf")
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
    report = steps.report()
    assert report.num_steps == 20
    assert report.batches_per_step == 1
    assert ms(report, Phase.OPTIMIZER) >= 0.9
    assert scaler.get_scale() == 1.0  # halved once, by the skipped step
    assert any(not torch.equal(a, b) for a, b in zip(plain, model.parameters(), strict=True))


def test_several_forward_calls_and_several_optimisers() -> None:
    model, optimizer, loader = parts(12, forward_s=0.001)
    other, other_optimizer, _ = parts(1, forward_s=0.001)
    steps = watch([model, other], [optimizer, other_optimizer], loader)
    for x, y in steps:
        loss = nn.functional.mse_loss(other(x) + model(x) + model(2 * x), y)
        loss.backward()
        other_optimizer.step()
        optimizer.step()
    report = steps.report()
    assert report.num_steps == 12
    (forward,) = [p for p in report.phases if p.name == "forward"]
    assert forward.calls == pytest.approx(3)
    assert forward.ms is not None
    assert forward.ms >= 3


def test_a_closure_is_forward_and_backward_within_the_optimiser() -> None:
    model, _, loader = parts(8, forward_s=0.002)
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=2)
    steps = watch(model, optimizer, loader)
    for x, y in steps:

        def closure(x: Tensor = x, y: Tensor = y) -> Tensor:
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(x), y)
            loss.backward()
            return loss

        optimizer.step(closure)
    report = steps.report()
    assert report.num_steps == 8
    assert ms(report, Phase.FORWARD) >= 2


@pytest.mark.parametrize("num_steps", [0, 1, 2, 4])
def test_too_few_steps_are_said_to_be_too_few(num_steps: int) -> None:
    model, optimizer, loader = parts(10)
    steps = watch(model, optimizer, loader)
    if num_steps:
        for index, _ in enumerate(train(model, optimizer, steps)):
            if index == num_steps - 1:
                break
    report = steps.report()
    assert report.verdict is Bound.TOO_FEW_STEPS
    assert report.bound is None
    assert report.num_steps <= num_steps
    assert str(report).startswith("not enough steps: ")


@pytest.mark.parametrize(("keeps", "num_bytes"), [("nothing", 0), ("loss", 2000), ("tensor", 65536)])
def test_a_loop_that_keeps_something_grows_and_a_clean_one_does_not(
    keeps: str, num_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "whet.profiling.step.growth._FREE_NS", 10**9
    )  # these steps are shorter than a look at a large process
    model = nn.Sequential(nn.Linear(NUM_FEATURES, 512), nn.ReLU(), nn.Linear(512, 1))
    optimizer = torch.optim.AdamW(model.parameters())
    batches = [(torch.randn(16, NUM_FEATURES), torch.randn(16, 1))] * 60
    steps = watch(model, optimizer, batches)
    kept = [
        {"nothing": None, "loss": loss, "tensor": torch.zeros(num_bytes // 4)}[keeps]
        for loss in train(model, optimizer, steps)
    ]
    assert len(kept) == 60
    report = steps.report()
    (trend,) = report.memory
    if trend.source != "heap":
        pytest.skip("this system's malloc cannot be asked what it holds")
    assert trend.is_growing == (keeps != "nothing")
    assert report.verdict is (Bound.MEMORY_GROWING if trend.is_growing else Bound.COMPUTE)
    assert report.bound is Bound.COMPUTE
    if keeps == "tensor":
        assert trend.slope_bytes == pytest.approx(num_bytes, rel=0.05)
        assert re.search(r"grows by 6[2-8]\.\d kB", report.evidence[0])
    elif keeps == "loss":
        assert trend.slope_bytes >= num_bytes
    assert trend.ci95_bytes[0] <= trend.slope_bytes <= trend.ci95_bytes[1]


def test_the_report_fits_eighty_columns() -> None:
    model, optimizer, loader = parts(12, data_s=0.001)
    steps = watch(model, optimizer, loader)
    run(train(model, optimizer, steps))
    text = str(steps)
    assert max(map(len, text.splitlines())) <= 80
    assert text.startswith("input-bound: ")
    for phase in set(Phase) - {Phase.COMMUNICATION}:  # one process alone
        assert phase.label in text


def test_workers_are_waited_for_and_their_settings_are_evidence() -> None:
    model, optimizer, _ = parts(1)
    loader = DataLoader(Sleepy(12, 0.02), batch_size=1, num_workers=1)
    steps = watch(model, optimizer, loader)
    run(train(model, optimizer, steps))
    report = steps.report()
    assert report.verdict is Bound.INPUT
    assert "1 worker (restarted for each epoch), prefetch_factor 2" in report.evidence[0]
    assert ms(report, Phase.DATA) >= 10


def test_the_settings_of_a_loader_that_began_before_all_was_patched_are_evidence() -> None:
    model, optimizer, loader = parts(12, data_s=SLEEP_S)
    with watch_everything() as steps:  # is told of the loader's epoch after its first step
        run(train(model, optimizer, loader))
    report = steps.report()
    assert "num_workers is 0" in report.evidence[0]
    assert "num_workers=2" in report.advice


def test_a_model_may_be_moved_after_the_watch_was_made() -> None:
    model, optimizer, loader = parts(2)
    steps = watch(model, optimizer, loader)
    assert steps.report().device == "cpu"
    model.to("meta")
    for _ in steps:
        pass
    assert steps.report().device == "meta"
