"""The whole answer: its figures follow from each other, it is the same for all who ask, and mistakes are one line."""

import io
import json
from itertools import pairwise
from pathlib import Path
from xml.dom import minidom

import pytest
from rich.console import Console

import whet
from whet.cli import main
from whet.cli.plan_tables import show_plan
from whet.errors import OptionError, WhetError
from whet.planner.answer import PlanAnswer
from whet.planner.planning import plan
from whet.planner.report import render

LLAMA = {"model_type": "llama", "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16,
         "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128_256}  # fmt: skip


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("planning") / "small"
    made.mkdir()
    (made / "config.json").write_text(json.dumps(LLAMA))
    return made


@pytest.fixture(scope="module")
def answer(model: Path) -> PlanAnswer:
    return plan(model, gpus=16, tokens=1e11, price=2.0)


def test_figures_follow_from_each_other(answer: PlanAnswer) -> None:
    assert answer.work.tokens == answer.work.global_batch_size * 2048
    assert [one.prediction.step_s.value for one in answer.plans] == sorted(
        one.prediction.step_s.value for one in answer.plans
    )
    for one in answer.plans:
        step, parts = one.prediction.step_s, one.prediction.step
        assert step.low < step.value < step.high
        assert one.prediction.memory_total.value <= answer.usable_bytes
        assert one.prediction.memory_total.value == pytest.approx(one.prediction.memory.total)
        assert one.tokens_per_s.value == pytest.approx(answer.work.tokens / step.value)
        assert one.time_s is not None and one.dollars is not None and one.dollars_per_million_tokens is not None
        assert one.time_s.value == pytest.approx(1e11 / one.tokens_per_s.value)
        assert one.dollars.value == pytest.approx(one.time_s.value / 3600 * 16 * 2.0)
        assert one.dollars_per_million_tokens.value == pytest.approx(one.dollars.value / 1e5)
        watts = 16 * answer.cluster.chip.power_w + 2 * answer.cluster.host.power_w
        assert one.joules_per_token.value == pytest.approx(watts / one.tokens_per_s.value)
        assert one.exposed_s <= parts.total
    assert answer.runnable is not None and answer.runnable.train.runs
    assert answer.runnable.prediction.step_s.value >= answer.best.prediction.step_s.value
    assert len({(one.layout.tensor, one.layout.pipeline, one.layout.context) for one in answer.plans}) == len(
        answer.plans
    )


def test_what_is_assumed_is_said_with_its_source(answer: PlanAnswer) -> None:
    said = "\n".join(answer.assumptions)
    for words in ("--global-batch-size is not given", "--sequence-length is not given", "price", "W (", "arXiv"):
        assert words in said


def test_an_answer_survives_json(answer: PlanAnswer) -> None:
    assert PlanAnswer.model_validate_json(answer.model_dump_json()) == answer


def test_the_page_shows_what_the_answer_holds(answer: PlanAnswer) -> None:
    page = render(answer)
    assert "<script" not in page and "http:" not in page and "https:" not in page.replace("https://arxiv", "")
    svg = page[page.index('<svg class="scaling"') : page.index("</svg>") + 6]
    circles = minidom.parseString(svg).getElementsByTagName("circle")
    assert answer.scaling is not None
    points = [one for one in (*answer.scaling.fixed, *answer.scaling.growing) if one.layout is not None]
    assert len(circles) == len(points)
    xs = [float(one.getAttribute("cx")) for one in circles][: len([p for p in answer.scaling.fixed if p.layout])]
    steps = {round(after - before) for before, after in pairwise(xs)}
    assert max(steps) - min(steps) <= 1  # doubling the GPUs is always one step to the right
    for line in answer.assumptions[:2]:
        assert line in page
    assert answer.best.train.toml.splitlines()[0] in page


def test_a_name_from_outside_is_escaped(answer: PlanAnswer) -> None:
    evil = answer.model_copy(update={"model": answer.model.model_copy(update={"name": "<script>x</script>"})})
    assert "<script>" not in render(evil)


def shown(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    with pytest.raises(SystemExit) as left:
        main(["plan", *words])
    assert left.value.code == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("columns", [80, 120])
def test_the_terminal_shows_it_within_its_width(answer: PlanAnswer, columns: int) -> None:
    console = Console(file=io.StringIO(), width=columns)
    show_plan(console, answer)
    out = console.file.getvalue()  # type: ignore[attr-defined]
    assert max(len(line) for line in out.splitlines() if not line.startswith("torchrun")) <= columns
    for words in (
        "J/token",
        "100 billion tokens take",
        "[parallel]",
        "torchrun --nnodes 2",
        "taken as given",
        "16,384",
    ):
        assert words in out


def test_the_command_answers_what_the_function_returns(
    capsys: pytest.CaptureFixture[str], model: Path, answer: PlanAnswer, tmp_path: Path
) -> None:
    words = ["--gpus", "16", "--tokens", "100B", "--price", "2", "--report", str(tmp_path / "new")]
    found = json.loads(shown(capsys, str(model), *words, "--json"))
    assert found == json.loads(answer.model_dump_json())
    assert (tmp_path / "new" / "report.html").read_text() == render(answer)
    assert json.loads((tmp_path / "new" / "plan.json").read_text()) == found


def test_a_server_on_the_terminal(capsys: pytest.CaptureFixture[str], model: Path) -> None:
    out = shown(capsys, str(model), "--serve", "--rate", "20", "--slo", "ttft=1s,tpot=50ms", "--price", "2")
    assert "1 x 1" in out and "Best: 1 replica" in out
    found = json.loads(shown(capsys, str(model), "--serve", "--rate", "20", "--json"))
    assert found == json.loads(whet.plan_serving(model, rate=20).model_dump_json())


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"gpus": 0}, "--gpus takes a whole number above 0; got 0"),
        ({"gpus": 12}, "12 chips do not fill nodes of 8"),
        ({"gpus": 8, "global_batch_size": 7}, "the nearest that do are 8 and 4"),
        ({"gpus": 8, "nodes": 3}, "--gpus 8 do not fill --nodes 3 equally"),
        ({"gpus": 8, "gpu": "h1000"}, "h1000"),
        ({"gpus": 8, "cluster": "none.toml"}, "none.toml"),
        ({"gpus": 8, "tokens": -1.0}, "--tokens takes a number above 0; got -1"),
    ],
)
def test_mistakes_are_one_line(model: Path, given: dict[str, object], said: str) -> None:
    with pytest.raises(WhetError) as raised:
        plan(model, scaling=False, **given)  # type: ignore[arg-type]
    assert said in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_model_that_fits_nowhere_is_refused_with_advice(tmp_path: Path) -> None:
    large = {"hidden_size": 16384, "intermediate_size": 53248, "num_hidden_layers": 128, "num_attention_heads": 128}
    (tmp_path / "config.json").write_text(json.dumps(LLAMA | large))
    with pytest.raises(
        OptionError, match=r"no layout of .* fits 8 x .*: the nearest, .* needs .* more than .*; --gpus \d+"
    ):
        plan(tmp_path, gpus=8)


def test_nodes_and_gpus(model: Path) -> None:
    found = plan(model, nodes=2, scaling=False)
    assert (found.cluster.num_chips, found.cluster.chips_per_node, found.scaling) == (16, 8, None)
    found = plan(model, gpus=8, nodes=2, scaling=False)
    assert (found.cluster.num_chips, found.cluster.chips_per_node) == (8, 4)
    found = plan(model, gpus=1, scaling=False, global_batch_size=8)
    assert found.best.layout.chips == 1


def test_a_file_without_links_between_nodes(model: Path, tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(
        'name = "mine"\nchip = "h100"\nchips_per_node = 8\nnum_chips = 8\nhost = "dgx-h100"\ninside = "nvlink4"\n'
    )
    with pytest.raises(WhetError) as raised:
        plan(model, gpus=16, cluster=path)
    assert "between" in str(raised.value)
