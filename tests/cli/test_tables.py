import io

import pytest
from rich.cells import cell_len
from rich.console import Console

from whet.cli.tables import show_result, show_trial
from whet.core.recipe import Step
from whet.tuner.records import Agreement, TrialRecord
from whet.tuner.result import MeasuredVariant, Result

WIDTHS = (80, 100, 140)
FUSE, OPENVINO = Step(technique="fuse_conv_bn"), Step(technique="openvino", options={"precision": "int8", "threads": 2})
COMPILE = Step(technique="inductor", options={"engine": "jit", "freezing": False})
LONG = [Step(technique=f"a_technique_with_a_long_name_{i}", options={"option": "value" * 5}) for i in range(4)]


def console(width: int = 80) -> Console:
    return Console(file=io.StringIO(), width=width, color_system=None)


def lines(shown: Console) -> list[str]:
    text = shown.file.getvalue()  # type: ignore[attr-defined]
    return text.splitlines()


def point(
    steps: list[Step], latency_ms: float, speedup: float = 1.0, verdict: str = "", **more: object
) -> MeasuredVariant:
    values: dict[str, object] = {
        "steps": steps, "label": " + ".join(map(str, steps)) or "original", "latency_ms": latency_ms,
        "speedup": speedup,
        "speedup_ci95": (speedup * 0.99, speedup * 1.01), "throughput_per_s": 1e3 / latency_ms, "verdict": verdict,
        "peak_bytes": 612_000_000, "size_bytes": 102_400_000, "quality": 0.9817, **more,
    }  # fmt: skip
    return MeasuredVariant.model_validate(values)


def gain() -> Result:
    best = point([FUSE, OPENVINO], 5.91, 9.49, "pass", size_bytes=24_700_000, quality=0.9809, peak_bytes=388_000_000)
    return Result(
        target="digits-cnn", verdict="gain", sentence="It is 9.49x as fast.", quality_name="accuracy",
        baseline=point([], 56.1), compile_only=point([COMPILE], 44.3, 1.27, "pass"), best=best, finalists=[best],
        out="whet-out/digits-cnn",
    )  # fmt: skip


def no_gain() -> Result:
    baseline = point([], 0.0414)
    finalists = [point(LONG, 0.0406, 1.02, "inconclusive"), point([FUSE], 0.05, 0.83, "fail", peak_bytes=0)]
    return Result(
        target="x", verdict="no-gain", sentence="No gain: nothing is proved better. " + "word " * 60,
        quality_name="held-out bits per byte of the text", baseline=baseline, best=baseline, finalists=finalists,
        compile_only=point([COMPILE], 0.043, 0.96, "screened", beside_ms=0.0412), out="/a/very/long/path" * 12,
    )  # fmt: skip


def without_metric() -> Result:
    best = point([OPENVINO], 5.9, 9.4, "pass", quality=0.99, agreement=Agreement(relative_error=0.03, cosine=0.999999))
    return Result(
        target="x", verdict="gain", sentence="Faster.", quality_name="agreement (cosine)", best=best, finalists=[best],
        baseline=point([], 1640.0, quality=None),
    )  # fmt: skip


RECORDS = [
    TrialRecord(
        number=0, steps=[FUSE, OPENVINO], status="done", speedup=9.5, latency_ms=5.87, drop=0.0008,
        agreement=Agreement(relative_error=0.1, cosine=0.99),
    ),
    TrialRecord(
        number=1, steps=LONG, status="rejected", speedup=123.4, latency_ms=0.0123, drop=-0.5, reason="too bad " * 40
    ),
    TrialRecord(number=2, steps=[COMPILE], status="failed", reason="Killed\nby [bold]signal[/bold] 9 \x1b[31m"),
    TrialRecord(number=3, steps=[FUSE], status="refused", reason="fuse_conv_bn: the model holds no convolution"),
]  # fmt: skip


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("make", [gain, no_gain, without_metric])
def test_result_fits_the_terminal(make: object, width: int) -> None:
    shown = console(width)
    show_result(shown, make())  # type: ignore[operator]
    assert max(map(cell_len, lines(shown))) <= width


def test_result_of_a_gain() -> None:
    shown = console()
    show_result(shown, gain())
    rows = {line.split()[0]: line.split() for line in lines(shown) if line.strip()}
    assert rows["original"] == ["original", "56.1", "ms", "—", "—", "0.9817", "102", "MB", "612", "MB"]
    assert rows["fuse_conv_bn"][3:] == ["5.91", "ms", "9.49×", "PASS", "0.9809", "24.7", "MB", "388", "MB"]
    assert rows["torch.compile"][2:6] == ["44.3", "ms", "1.27×", "PASS"]
    text = "\n".join(lines(shown))
    assert "9.40–9.58" in text
    assert "GAIN  9.5x faster, accuracy 0.08% lower (limit 1%), about a quarter of the size" in text
    assert "By fuse_conv_bn + openvino" in text
    assert lines(shown)[1].startswith("GAIN"), "the result comes first"
    assert text.count("9.49") == 1, "the exact figure stands in the table alone"
    assert "whet-out/digits-cnn/report.html" in text
    assert "whet-out/digits-cnn/model" in text


def test_result_without_a_gain_says_so() -> None:
    shown = console()
    show_result(shown, no_gain())
    text = "\n".join(lines(shown))
    assert "INCONCLUSIVE" in text
    assert "screening" in text
    assert "of 41.2 µs" in text  # what a screened latency may be compared with
    assert "/model" not in text  # none was saved
    assert "kept" in text
    assert text.count("No gain") == 1 and "NO GAIN" not in text
    assert " 0 MB" not in text and "—" in text


def test_agreement_stands_for_a_missing_metric() -> None:
    shown = console()
    show_result(shown, without_metric())
    text = "\n".join(lines(shown))
    assert "cosine" in text
    assert ">0.9999" in text
    assert "1.64 s" in text


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.status)
def test_a_trial_is_one_line(record: TrialRecord, width: int) -> None:
    shown = console(width)
    show_trial(shown, record)
    (line,) = lines(shown)
    assert cell_len(line) <= width
    assert line.startswith(record.status)


def test_a_trial_says_what_and_why() -> None:
    shown = console(100)
    for record in RECORDS:
        show_trial(shown, record)
    done, rejected, failed, refused = lines(shown)
    assert done.split()[1:6] == ["9.50×", "5.87", "ms", "drop", "0.08%"]
    assert "fuse_conv_bn + openvino (int8, threads 2)" in done
    assert rejected.split()[1:6] == ["123×", "12.3", "µs", "drop", "−50%"]
    assert "inductor: Killed by [bold]signal[/bold] 9" in failed
    assert "\x1b" not in failed
    assert failed.split()[1:4] == ["—", "—", "—"]
    assert refused.endswith("fuse_conv_bn: the model holds no convolution")


def test_a_fixed_batch_is_said_in_the_trial_and_in_the_table() -> None:
    shown = console()
    note = "fixed to batch 32: the model does not take a batch of 1: " + "why " * 30
    show_trial(shown, TrialRecord(number=0, steps=[FUSE], status="done", fixed_batch=32, notes=["other", note]))
    first, second = lines(shown)
    assert "fuse_conv_bn" in first and second.strip().startswith("fixed to batch 32: the model does not")
    assert len(second) <= 80
    result = gain()
    result.best.fixed_batch = 32
    show_result(shown := console(), result)
    assert any(line.startswith("fixed to batch 32") for line in lines(shown))


def test_a_disturbed_run_shows_no_table() -> None:
    shown = console()
    busy = {"verdict": "inconclusive", "busy": "2 cores", "sentence": "No verdict: 2 cores.", "finalists": []}
    show_result(shown, gain().model_copy(update=busy))
    assert "ms" not in "\n".join(lines(shown)).split()
    assert lines(shown)[1].startswith("INCONCLUSIVE") or lines(shown)[1].startswith("Inconclusive")


def test_a_disturbed_trial_shows_no_figures() -> None:
    shown = console()
    show_trial(shown, TrialRecord(number=0, steps=[], status="done", speedup=9.0, latency_ms=3.3, busy="2 cores"))
    text = "\n".join(lines(shown))
    assert "disturbed, as 2 cores" in text
    assert "9.00" not in text
    assert "3.3" not in text
