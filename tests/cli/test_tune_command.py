"""The command around whet.tune: its exit code, and what Ctrl-C leaves."""

import shlex

import pytest
from fake_results import no_gain

import whet.cli.tune
from whet.cli import INTERRUPTED, main
from whet.tuner.result import TrialRecord


def exit_code(*arguments: str) -> int:
    try:
        main(["tune", *arguments])
    except SystemExit as ended:
        return int(ended.code or 0)
    return 0


@pytest.mark.parametrize(("verdict", "code"), [("no-gain", 0), ("failed", 1)])
def test_a_search_in_which_all_failed_is_no_success(monkeypatch: pytest.MonkeyPatch, verdict: str, code: int) -> None:
    result = no_gain().model_copy(update={"verdict": verdict})
    monkeypatch.setattr(whet.cli.tune, "run_tune", lambda *_, **__: result)
    assert exit_code("digits-cnn", "docs-gpt") == code


def test_ctrl_c_says_how_to_go_on(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted(*_: object, listener: whet.cli.tune.Listener, **__: object) -> None:
        listener.tried(TrialRecord(number=0, steps=[], status="done"))
        raise KeyboardInterrupt

    monkeypatch.setattr(whet.cli.tune, "run_tune", interrupted)
    monkeypatch.setenv("COLUMNS", "80")
    options = ["--objective", "size", "--max-memory", "1GB", "--exclude", "bf16,fp16", "--out", "a directory"]
    assert exit_code("hf:some where?batch=8&seq=256", *options) == INTERRUPTED
    again = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("whet tune"))
    words = shlex.split(again)
    assert words[2] == "hf:some where?batch=8&seq=256"
    assert {"--resume", "size", "1000000000", "bf16,fp16", "a directory"} <= set(words)
