"""`whet bench-serve` as a user runs it, against a stand-in server."""

import csv
import json
import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from completion_server import FakeServer, tokens

from whet.cli import main

TRACE = "TIMESTAMP,ContextTokens,GeneratedTokens\n" + "".join(
    f"2023-11-16 18:17:{10 + i * i / 40:010.7f},{(i * 977) % 4000 + 5},{(i * 37) % 90 + 1}\n" for i in range(40)
)


def exit_code(arguments: list[str]) -> int:
    with pytest.raises(SystemExit) as left:
        main(["bench-serve", *arguments])
    code = left.value.code
    assert isinstance(code, int)
    return code


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.delenv("WHET_API_KEY", raising=False)
    (tmp_path / "t.csv").write_text(TRACE)
    (tmp_path / "damaged.csv").write_text(TRACE + "2023-11-16 18:19:00,many,1\n")
    return tmp_path


def report_of(captured: Any) -> dict[str, Any]:
    (line,) = captured.out.splitlines()
    report = json.loads(line)
    assert isinstance(report, dict)
    return report


def test_a_rate_with_a_shared_prefix_and_limits(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--rate", "200", "--num-requests", "40", "--input-len", "60-80", "--output-len", "2-5"]
    words += ["--shared-prefix", "50", "--slo", "ttft=0.001ms,tpot=60s", "--out", "kept", "--json"]
    with FakeServer(script=partial(tokens, token_s=0.005)) as server:
        assert exit_code([server.url, *words]) == 0
        sent = server.bodies[-40:]
    captured = capsys.readouterr()
    report = report_of(captured)
    figures = report["figures"]
    assert (figures["num_requests"], figures["num_answered"], figures["failures"]) == (40, 40, {})
    assert figures["output_tokens"] == sum(body["max_tokens"] for body in sent)
    assert figures["ttft"]["p99_ms"] is None
    assert figures["tpot"]["p50_ms"] > 0
    assert figures["goodput"]["num_requests"] == 0
    # In a row, prompts share 50 tokens and, by chance, a few more.
    lengths = [len(body["prompt"]) for body in sent]
    assert report["prefix_hit_rate"] == pytest.approx(40 * 50 / sum(lengths), rel=0.01)
    assert all(body["prompt"][:50] == sent[0]["prompt"][:50] for body in sent)
    assert max(map(len, captured.err.splitlines())) <= 80
    assert "no P99 from fewer than 500 samples" in captured.err
    assert json.loads((here / "kept" / "report.json").read_text()) == report
    rows = list(csv.DictReader((here / "kept" / "requests.csv").read_text().splitlines()))
    assert len(rows) == 40
    assert sum(int(row["num_output"]) for row in rows) == figures["output_tokens"]
    assert sorted(float(row["ttft_s"]) * 1e3 for row in rows)[-1] == pytest.approx(
        figures["ttft"]["longest_ms"], abs=0.01
    )


def test_a_trace_is_scaled_to_the_server(capsys: pytest.CaptureFixture[str]) -> None:
    with FakeServer(max_model_len=100, metrics_prefix=None) as server:
        assert exit_code([server.url, "--trace", "t.csv", "--num-requests", "30", "--load", "0.2"]) == 0
        sent = server.bodies[-30:]
        assert len(server.bodies) == 64 + 2 + 30
    out = capsys.readouterr().out
    rows = [line.split(",") for line in TRACE.split("\n")[1:-1]]
    scale = 100 / max(int(row[1]) + int(row[2]) for row in rows)
    expected = [(max(1, int(int(row[1]) * scale)), max(1, int(int(row[2]) * scale))) for row in rows[:30]]
    assert sorted((len(body["prompt"]), body["max_tokens"]) for body in sent) == sorted(expected)
    assert f"lengths × {scale:.4f}"[:15] in out
    assert "load 0.2: the server can do" in out
    assert "30 of 30 requests" in out
    assert "not known: no such counters at /metrics" in out
    assert max(map(len, out.splitlines())) <= 80


def test_a_trace_as_it_was(capsys: pytest.CaptureFixture[str]) -> None:
    words = [
        "--trace",
        "t.csv",
        "--time-scale",
        "0.01",
        "--duration",
        "0.1s",
        "--max-input",
        "50",
        "--concurrency",
        "2",
    ]
    with FakeServer(max_model_len=None, status=lambda number: 429 if number == 5 else 200) as server:
        assert exit_code([server.url, *words, "--json"]) == 0
        assert max(len(body["prompt"]) for body in server.bodies) == 50
        assert server.most_in_flight <= 2
    report = report_of(capsys.readouterr())
    assert report["capacity"] is report["load"] is None
    assert report["figures"]["num_refused"] == report["figures"]["failures"]["429 refused"] == 1
    assert report["num_planned"] == sum(i * i / 40 < 10 for i in range(40))
    assert report["num_cut"] == sum((i * 977) % 4000 + 5 > 50 for i in range(report["num_planned"]))
    assert any("not an open loop" in note for note in report["notes"])
    assert any("does not state its max_model_len" in note for note in report["notes"])


def test_a_server_that_fails_every_request(capsys: pytest.CaptureFixture[str]) -> None:
    with FakeServer(status=lambda number: 500) as server:
        assert exit_code([server.url, "--rate", "100", "--num-requests", "5"]) == 2
        assert "5 × HTTP 500 (status 500)" in capsys.readouterr().out
        assert exit_code([server.url, "--trace", "t.csv"]) == 2
        assert "answered none of 64 requests of the calibration (HTTP 500" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["http://127.0.0.1:9", "--rate", "1"], "cannot reach http://127.0.0.1:9"),
        (["http://", "--rate", "1"], "not a server's address"),
        (["http://127.0.0.1:9"], "either --trace FILE or --rate"),
        (["http://127.0.0.1:9", "--rate", "1", "--trace", "t.csv"], "either --trace FILE or --rate"),
        (["http://127.0.0.1:9", "--rate", "0"], "--rate 0"),
        (["http://127.0.0.1:9", "--rate", "-1"], "--rate -1"),
        (["http://127.0.0.1:9", "--rate", "nan"], "--rate nan"),
        (["http://127.0.0.1:9", "--rate", "1", "--load", "0.5"], "need --trace"),
        (["http://127.0.0.1:9", "--rate", "1", "--input-len", "9-3"], "--input-len 9-3"),
        (["http://127.0.0.1:9", "--rate", "1", "--output-len", "few"], "--output-len 'few'"),
        (["http://127.0.0.1:9", "--rate", "1", "--num-requests", "0"], "--num-requests 0"),
        (["http://127.0.0.1:9", "--rate", "1", "--concurrency", "0"], "--concurrency 0"),
        (["http://127.0.0.1:9", "--rate", "1", "--slo", "fast"], "--slo 'fast'"),
        (["http://127.0.0.1:9", "--rate", "1", "--duration", "long"], "'long'"),
        (["http://127.0.0.1:9", "--rate", "1", "--", "--weights", "int8"], "go with a DIR"),
        (["http://127.0.0.1:9", "--trace", "t.csv", "--load", "1", "--time-scale", "1"], "not both"),
        (["http://127.0.0.1:9", "--trace", "t.csv", "--time-scale", "0"], "--time-scale 0"),
        (["http://127.0.0.1:9", "--trace", "none.csv"], "cannot read the trace none.csv"),
        (["http://127.0.0.1:9", "--trace", "damaged.csv"], "damaged.csv line 42: ContextTokens is 'many'"),
        (["nowhere", "--rate", "1"], "nowhere is no directory"),
        ([".", "--rate", "1"], ". holds no config.json"),
        (["http://127.0.0.1:9", "--rate", "1", "--out", "t.csv"], "cannot make the directory t.csv"),
    ],
)
def test_wrong_use_is_one_clear_line(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code(arguments) == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("error: ")
    assert said in lines[0]


def test_a_wrong_key(capsys: pytest.CaptureFixture[str]) -> None:
    with FakeServer(api_key="right") as server:
        assert exit_code([server.url, "--rate", "1", "--api-key", "wrong"]) == 2
        assert "refuses the key (401)" in capsys.readouterr().err
        words = ["--rate", "100", "--num-requests", "3", "--api-key", "right", "--json"]
        assert exit_code([server.url, *words]) == 0


def test_ctrl_c_leaves_what_is_done(here: Path) -> None:
    words = ["--rate", "50", "--duration", "600s", "--out", "kept", "--json"]
    with FakeServer() as server:
        command = [sys.executable, "-m", "whet", "bench-serve", server.url, *words]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ)
        try:
            while len(server.bodies) < 20 and process.poll() is None:
                time.sleep(0.01)
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode == 130, err
    report = json.loads(out)
    assert report["is_partial"]
    assert report["figures"]["num_answered"] >= 9
    assert "ended early" in err
    assert json.loads((here / "kept" / "report.json").read_text()) == report


def test_a_wrong_address_is_told_before_the_wait_for_quiet(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def waits(_: object) -> None:
        raise AssertionError("it waited before it asked the server")

    monkeypatch.setattr("whet.measure.quiet.QuietWait.begin", waits)
    assert exit_code(["http://127.0.0.1:9", "--rate", "1"]) == 2
    assert "cannot reach http://127.0.0.1:9" in capsys.readouterr().err


def test_a_load_may_be_a_percentage(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code(["http://127.0.0.1:9", "--trace", "t.csv", "--load", "70%"]) == 2
    assert "cannot reach" in capsys.readouterr().err
    assert exit_code(["http://127.0.0.1:9", "--trace", "t.csv", "--load", "much"]) == 2
    assert "--load 'much': write a fraction such as 0.03, or 3%" in capsys.readouterr().err
