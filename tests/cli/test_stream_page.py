"""whet stream --page as a process: its first line, its end, and what it refuses."""

import json
import os
import signal
import subprocess
import sys
from types import SimpleNamespace

import pytest
from page_servers import Viewer

from whet.cli import main

MODEL = """
import torch
import whet

def negative():
    return whet.StreamWorkload(
        open=lambda: lambda frame: 1 - frame, frames=[torch.zeros(3, 16, 24)], frame_budget_s=5.0, name="negative"
    )
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_page_is_served_until_a_signal_ends_it(number, tmp_path):
    (tmp_path / "model.py").write_text(MODEL)
    command = [sys.executable, "-m", "whet", "stream", "model.py:negative", "--page", "--port", "0", "--json"]
    process = subprocess.Popen(
        command,
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"WHET_API_KEY": "secret"},
    )
    try:
        ready = json.loads(process.stdout.readline())
        assert ready == {"url": ready["url"], "model": "negative", "pid": process.pid}
        assert ready["url"].startswith("http://127.0.0.1:")
        server = SimpleNamespace(url=ready["url"])
        with Viewer(server, key="secret") as viewer:
            viewer.send(0, 100)
            assert abs(int(viewer.answer()[1].mean()) - 155) <= 2
            process.send_signal(number)
            out, err = process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait()
    report = json.loads(out)
    assert process.returncode == 0
    assert (report["counts"]["final"], report["interrupted"], report["sink"]) == (1, True, "the page")
    assert "1 final frames of 1 that arrived" in err and "whet stream: ended" in err and "Traceback" not in err


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--page", "--sink", "out.mp4"], "--page shows the answers in the browser"),
        (["--host", "0.0.0.0"], "go with --page"),
        (["--port", "0"], "go with --page"),
        (["--cors-origin", "http://a.example"], "go with --page"),
        (["--page", "--port", "70000"], "--port takes 0"),
        (["--page", "--cors-origin", "a.example"], "an origin is SCHEME"),
        (["--page", "--api-key", "a b"], "a key is printable ASCII"),
        (["--page", "--source", "/nowhere.mp4"], "/nowhere.mp4"),
        (["--page", "--host", "192.0.2.1"], "cannot listen on 192.0.2.1"),
    ],
)
def test_mistakes_are_told_before_anything_starts(words, why, tmp_path, monkeypatch, capsys):
    (tmp_path / "model.py").write_text(MODEL)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as left:
        main(["stream", "model.py:negative", *words])
    assert left.value.code == 2
    assert why in capsys.readouterr().err
