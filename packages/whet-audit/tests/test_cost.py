"""What costs most comes first, and the first ten fit on the terminal."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from whet_audit.audit import audit
from whet_audit.cli import main
from whet_audit.cost import cost, sorted_by_cost
from whet_audit.finding import Confidence, Finding, Gain, HotPath, Measured, Priority
from whet_audit.formats import render, wording
from whet_audit.report import Report

Make = Callable[..., Finding]
PIPELINE = """
import torch
from diffusers import DiffusionPipeline


class Pipeline(DiffusionPipeline):
    def __init__(self, transformer, scheduler, vae):
        super().__init__()
        self.register_modules(transformer=transformer, scheduler=scheduler, vae=vae)

    @torch.no_grad()
    def __call__(self, embeds: torch.Tensor, num_inference_steps: int = 50):
        latents = torch.randn(1, 4, 64, 64, device="cuda")
        self.scheduler.set_timesteps(num_inference_steps)
        for i, t in enumerate(self.scheduler.timesteps):
            timestep = t.expand(latents.shape[0])
            noise = self.transformer(latents, timestep, embeds)
            if timestep[0].item() > 0.5:
                noise = noise * 2
            latents = self.scheduler.step(noise, t, latents)
        return self.vae(latents)
"""
BESIDE = """
import torch
from torch import nn
from torch.utils.data import DataLoader


class Stem(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 64, 3)
        self.norm = nn.BatchNorm2d(64)

    def forward(self, x):
        return self.norm(self.conv(x))


def score(images: torch.Tensor) -> float:
    return images.mean().item()


def embed(stem: nn.Module, dataset):
    found = []
    with torch.no_grad():
        for images in DataLoader(dataset, batch_size=32, num_workers=4):
            found.append(stem(images.cuda()).cpu())
    return found
"""


@pytest.fixture
def pipeline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("beside.py").write_text(BESIDE, encoding="utf-8")
    Path("pipeline.py").write_text(PIPELINE, encoding="utf-8")
    return tmp_path


def test_the_read_in_the_denoising_loop_stands_first(pipeline: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = audit(".", preview=True).report
    first = report.findings[0]
    assert (first.path, first.code, first.hot is not None) == ("pipeline.py", "SYN101", True)
    assert PIPELINE.splitlines()[first.span.line - 1].strip() == "if timestep[0].item() > 0.5:"
    assert len({finding.code for finding in report.findings}) >= 3
    costs = [finding.cost for finding in report.findings]
    assert costs == sorted(costs, reverse=True)
    assert main([".", "--preview"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(" 1. pipeline.py:")
    assert lines[2] == "    often: once a denoising step, about 50 a call; assumes num_inference_steps=…"


def test_the_first_ten_fit_in_sixty_lines_and_all_shows_the_rest(make_finding: Make) -> None:
    made = sorted_by_cost(
        make_finding(path=f"{line:02}.py", message="word " * 60, hot=HotPath("training loop", f"f{line}", "t.py", 1))
        for line in range(1, 31)
    )
    lines = render(Report(tuple(made), num_files=1), "top", columns=70).splitlines()
    assert len(lines) <= 60
    assert max(map(wording.width, lines)) <= 70
    heads = [line.split()[:3] for line in lines if "[high" in line]
    assert heads == [[f"{place}.", f"{place:02}.py:3:5:", "SYN101"] for place in range(1, 11)]
    assert "20 findings more, which cost less: --all shows them" in lines


def test_waits_of_one_file_in_loops_of_one_kind_are_one_cause(make_finding: Make) -> None:
    three = [make_finding(at=(line, 0, line, 1)) for line in (3, 4, 5)]
    made = sorted_by_cost([*three, make_finding(code="DST103", name="x", hot=None)])
    lines = render(Report(tuple(made), num_files=1), "top", columns=100).splitlines()
    assert "    loss.item() waits for the GPU in every step, and 2 more places in this file" in lines
    assert [one.cause for one in made] == [1, 1, 1, 2]
    assert [line.split()[2] for line in lines if "[high" in line] == ["SYN101", "DST103"]


def test_a_rule_in_preview_speaks_when_it_is_asked_to(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train = tmp_path / "train.py"
    train.write_text(
        "import torch\n\ndef train(model, loader, opt):\n    history = []\n    for x, y in loader:\n"
        "        loss = torch.nn.functional.cross_entropy(model(x), y)\n        loss.backward()\n        opt.step()\n"
        "        history.append(loss)\n",
        encoding="utf-8",
    )

    def found(**options: Any) -> set[str]:
        return {finding.code for finding in audit(train, **options).report.findings}

    assert "MEM102" not in found() | found(select=["MEM"])
    assert "MEM102" in found(preview=True) & found(select=["MEM102"])
    main(["--explain", "MEM102"])
    assert capsys.readouterr().out.endswith("Preview     Off without --preview or --select MEM102.\n")
    main(["--explain", "MEM10"])
    lines = capsys.readouterr().out.splitlines()
    assert {line[:6]: line.endswith("preview") for line in lines}["MEM102"]


def test_the_headline_of_a_cause_is_its_costliest_place_and_copies_count_once(make_finding: Make) -> None:
    step = HotPath("training loop", "main", "train.py", 2)
    rare = make_finding(at=(3, 0, 3, 1), hot=replace(step, times=0.2))
    often = make_finding(at=(9, 0, 9, 1), code="SYN103", hot=replace(step, function="other", times=6.0))
    copy = replace(often, path="copy/train.py")
    made = sorted_by_cost([rare, often, copy])
    assert [(one.path, one.span.line) for one in made] == [("copy/train.py", 9), ("train.py", 9), ("train.py", 3)]
    assert {one.cause for one in made} == {1}
    alone = sorted_by_cost([rare, often])
    assert made[0].cost == alone[0].cost  # copies are of other programs, and other functions run elsewhere
    lines = render(Report(tuple(made), num_files=1), "top", columns=100).splitlines()
    assert lines[1].endswith("and 2 more places in 2 files")


def test_a_wait_once_a_forward_pass_costs_less_than_one_in_its_layers(make_finding: Make) -> None:
    once = make_finding(hot=HotPath("forward pass", "Net.forward"))
    layer = make_finding(hot=HotPath("forward pass", "Block.forward", times=12.0, layers=12))
    step = make_finding(hot=HotPath("training loop", "main"))
    assert cost(once, trains=True) < cost(step, trains=True) < cost(layer, trains=True)


def test_what_people_run_once_in_a_while_costs_little(make_finding: Make) -> None:
    plain = make_finding()
    offline = replace(plain, is_offline=True)
    assert cost(offline, trains=False) < cost(plain, trains=False) / 20
    layer = replace(offline, hot=HotPath("forward pass", "Layer.forward"))
    assert cost(layer, trains=False) == cost(replace(layer, is_offline=False), trains=False)  # others may run it


def test_what_costs_nothing_is_left_to_all(make_finding: Make) -> None:
    free = make_finding(code="MEM104", gain=Gain(0.0, 0.0, "none"))
    report = Report(tuple(sorted_by_cost([free])), num_files=1)
    assert render(report, "top").splitlines()[0] == "1 finding more, which cost less: --all shows them"
    assert free.code in render(report, "full")


def test_a_copy_that_blocks_costs_less_where_the_step_waits_anyway(make_finding: Make) -> None:
    copy = make_finding(code="MOV101")
    elsewhere = make_finding(hot=HotPath("training loop", "main", "train.py", 40))
    alone, beside = (
        next(one for one in sorted_by_cost([copy, other]) if one.code == "MOV101")
        for other in (elsewhere, make_finding())
    )
    assert 0 < beside.cost < alone.cost
    assert alone.gain == copy.gain
    assert beside.gain.high < copy.gain.high
    assert beside.gain.assumption.endswith("; little, since the step waits anyway (SYN101)")


def test_a_rule_that_was_judged_right_more_often_costs_more(make_finding: Make) -> None:
    codes = ["SYN101", "SYN110", "SYN112"]  # 37 of 59, not judged, 0 of 14
    costs = [cost(make_finding(code=code), trains=True) for code in codes]
    assert costs == sorted(costs, reverse=True)
    assert len(set(costs)) == 3


def test_all_shows_every_finding_with_its_source(pipeline: Path, capsys: pytest.CaptureFixture[str]) -> None:
    num = len(audit(".", min_confidence="perhaps").report.findings)
    main([".", "--all"])
    out = capsys.readouterr().out
    assert out.count("= gain:") == num
    main([".", "--output-format", "full", "--min-confidence", "perhaps"])
    assert capsys.readouterr().out == out


def test_more_often_surer_and_in_the_training_costs_more(make_finding: Make) -> None:
    step = HotPath("training loop", "main", "t.py", 1)
    plain = make_finding(hot=step)
    costs = [
        cost(one, trains=True)
        for one in (
            replace(plain, hot=replace(step, times=12.0)),
            plain,
            replace(plain, confidence=Confidence.MEDIUM),
            make_finding(hot=replace(step, times=0.25)),
            replace(plain, confidence=Confidence.LOW),
            replace(plain, hot=replace(step, kind="inference loop")),
        )
    ]
    assert costs == sorted(costs, reverse=True)
    assert len(set(costs)) == len(costs)
    evaluation = replace(plain, hot=replace(step, kind="inference loop"))
    assert cost(evaluation, trains=False) == cost(plain, trains=True)
    assert cost(replace(plain, priority=Priority.LOW), trains=True) < cost(plain, trains=True)
    assert cost(replace(plain, gain=Gain(0.0, 0.0, "none")), trains=True) == 0


def test_what_was_measured_takes_the_place_of_the_estimate(make_finding: Make) -> None:
    measured = make_finding(measured=Measured(1.25, 1.2, 1.3, "pass"))
    assert cost(measured, trains=True) == pytest.approx(0.2)  # a fifth of the time is gone
    assert cost(make_finding(measured=Measured(0.9, 0.8, 1.0, "fail")), trains=True) == 0


def test_equal_costs_keep_the_order_of_the_source(make_finding: Make) -> None:
    places = [("b.py", 1), ("a.py", 9), ("a.py", 2)]
    made = [make_finding(path=path, at=(line, 0, line, 1)) for path, line in places]
    assert [(one.path, one.span.line) for one in sorted_by_cost(made)] == [("a.py", 2), ("a.py", 9), ("b.py", 1)]


def test_waits_that_are_made_once_empty_the_queue_once(make_finding: Make) -> None:
    once = [make_finding(at=(line, 0, line, 1)) for line in (3, 4)]
    each_row = HotPath("training loop", "main", "train.py", 2, times=3.0)
    often = [make_finding(at=(line, 0, line, 1), hot=each_row) for line in (3, 4)]
    assert sorted_by_cost(once)[0].cost == sorted_by_cost(once[:1])[0].cost
    assert sorted_by_cost(often)[0].cost > sorted_by_cost(often[:1])[0].cost


def test_a_loop_over_experts_and_the_waits_in_it_are_one_cause(make_finding: Make) -> None:
    assert {one.cause for one in sorted_by_cost([make_finding(), make_finding(code="CMP116")])} == {1}
    assert {one.cause for one in sorted_by_cost([make_finding(), make_finding(code="CMP102")])} == {1, 2}
