"""`whet monitor -- COMMAND` as a user runs it: exit codes, signals, steps of scripts that know nothing of it."""

import json
import os
import signal
import socket
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest

from whet.scripts.injection.launching import INJECT, environment, name_of
from whet.scripts.monitor.launch import Launch

TRAIN = """
import sys, torch
from torch.utils.data import DataLoader, TensorDataset

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = DataLoader(TensorDataset(torch.randn(200, 4)), batch_size=8)
for epoch in range(4):
    for (x,) in loader:
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
print("the script's own output")
"""


def monitor(*words: str, cwd: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "whet", "monitor", "--interval", "0.1", *words]
    variables = {**os.environ, **variables}
    return subprocess.run(command, cwd=cwd, env=variables, capture_output=True, text=True, timeout=60)


def python(code: str, path: Path) -> list[str]:
    path.write_text(textwrap.dedent(code), encoding="utf-8")
    return [sys.executable, path.name]


def summary_of(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    facts = json.loads(done.stdout.splitlines()[-1])
    assert isinstance(facts, dict)
    return facts


def test_steps_of_a_script_that_knows_nothing_of_it(tmp_path: Path) -> None:
    words = ["--json", "--no-page", "--out", "kept", "--", *python(TRAIN, tmp_path / "train.py")]
    done = monitor(*words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("the script's own output\n")
    summary = summary_of(done)
    assert summary["name"] == "train.py"
    assert 98 <= summary["num_steps"] <= 100
    assert summary["num_samples"] == 8 * summary["num_steps"]
    assert {"data_wait", "forward", "backward", "optimiser"} <= set(summary["phases"])
    assert (summary["exit_code"], summary["is_partial"]) == (0, False)
    assert summary["peak_rss_bytes"] > 50 << 20
    assert json.loads((tmp_path / "kept" / "summary.json").read_text(encoding="utf-8")) == summary
    assert "step latency" in done.stderr
    assert max(map(len, done.stderr.splitlines())) <= 80


@pytest.mark.parametrize(
    ("code", "expected"),
    [("raise SystemExit(7)", 7), ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", 128 + 9), ("1 / 0", 1)],
)
def test_the_exit_code_is_the_commands(code: str, expected: int, tmp_path: Path) -> None:
    done = monitor("--no-page", "--json", "--", sys.executable, "-c", code, cwd=tmp_path)
    assert done.returncode == expected
    summary = summary_of(done)
    assert summary["exit_code"] == expected
    assert summary["message"] == ("ended by SIGKILL" if expected == 137 else "")
    assert summary["is_partial"] is True
    assert "The figures are partial" in done.stderr
    assert "no step was seen: the command ran no Python" in summary["unavailable"]["steps"]
    assert summary["latency"] is None


def test_standard_input_is_the_commands(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "whet", "monitor", "--no-page", "--", "cat"]
    done = subprocess.run(command, input="handed on", capture_output=True, text=True, cwd=tmp_path, timeout=60)
    assert (done.returncode, done.stdout) == (0, "handed on")


def test_user_mistakes_are_one_line_and_2(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        done = monitor("--port", port, "--", "true", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.splitlines() == [
        f"error: port {port} of 127.0.0.1 is in use; name another one, or 0 for any that is free"
    ]
    done = monitor("--no-page", "--", "no-such-program", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.splitlines() == [
        "error: cannot run no-such-program: there is no such program; write it as: -- python train.py"
    ]
    assert monitor("--interval", "0.001", "--", "true", cwd=tmp_path).returncode == 2
    assert monitor(cwd=tmp_path).returncode == 2


WAITING = """
import sys, time
sys.stdout.write("ready\\n"); sys.stdout.flush()
try:
    time.sleep(60)
except KeyboardInterrupt:
    time.sleep(0.3)  # as a script that saves a checkpoint
    print("saved")
    sys.exit(5)
"""
# A session of its own with a terminal, of which no stream is left, as in `whet monitor ... < file 2>&1 | tee log`.
AT_A_TERMINAL = """
import fcntl, os, sys, termios
os.setsid()
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
"""


def test_ctrl_c_at_a_terminal_ends_both_with_a_summary(tmp_path: Path) -> None:
    (tmp_path / "wait.py").write_text(WAITING, encoding="utf-8")
    ours, theirs = os.openpty()
    words = ["-m", "whet", "monitor", "--port", "0", "--", sys.executable, "wait.py"]
    process = subprocess.Popen(
        [sys.executable, "-c", AT_A_TERMINAL, *words],
        cwd=tmp_path, stdin=theirs, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    os.close(theirs)
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "ready\n"
        time.sleep(0.3)
        os.write(ours, b"\x03")
        out, err = process.communicate(timeout=30)
    finally:
        process.kill()
        os.close(ours)
    assert out == "saved\n"  # interrupted once, not twice
    assert process.returncode == 5
    assert "whet monitor  wait.py  exit code 5" in err
    assert "The figures are partial" in err
    assert "Traceback" not in err


def test_a_signal_sent_to_the_monitor_reaches_the_command(tmp_path: Path) -> None:
    (tmp_path / "wait.py").write_text(WAITING, encoding="utf-8")
    process = subprocess.Popen(
        [sys.executable, "-m", "whet", "monitor", "--no-page", "--", sys.executable, "wait.py"],
        cwd=tmp_path, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        start_new_session=True,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 128 + signal.SIGTERM
    assert "ended by SIGTERM" in err


def test_a_signal_before_there_is_a_command_is_handed_to_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original = subprocess.Popen

    def late(*args: Any, **options: Any) -> Any:
        signal.raise_signal(signal.SIGTERM)
        return original(*args, **options)

    monkeypatch.setattr(subprocess, "Popen", late)
    before = signal.getsignal(signal.SIGTERM)
    launch = Launch(["sleep", "60"], name=None, interval_s=0.1, address=None)
    assert launch.wait() == 128 + signal.SIGTERM
    launch.close()
    assert signal.getsignal(signal.SIGTERM) is before


def test_another_sitecustomize_still_runs(tmp_path: Path) -> None:
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text("import builtins; builtins.was_there = True")
    code = "import sys, sitecustomize; print(was_there, sitecustomize.__file__, *sys.path)"
    done = monitor("--no-page", "--", sys.executable, "-c", code, cwd=tmp_path, PYTHONPATH=str(tmp_path / "site"))
    assert done.stdout.startswith(f"True {tmp_path / 'site' / 'sitecustomize.py'}")
    assert str(INJECT) not in done.stdout


def test_a_program_that_looks_for_torch_before_it_loads_it(tmp_path: Path) -> None:
    """As transformers does; and torch's loader is as it was when torch is there."""
    looks = "import importlib.util, sys\nassert importlib.util.find_spec('torch')\n"
    leaves = "\nassert 'exec_module' not in vars(torch.__spec__.loader) and 'sitecustomize' not in str(sys.meta_path)"
    done = monitor("--no-page", "--json", "--", *python(looks + TRAIN + leaves, tmp_path / "train.py"), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert summary_of(done)["num_steps"] >= 98


def test_a_hidden_sitecustomize_that_fails_ends_nothing(tmp_path: Path) -> None:
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text("1 / 0")
    command = python(TRAIN, tmp_path / "train.py")
    done = monitor("--no-page", "--json", "--", *command, cwd=tmp_path, PYTHONPATH=str(tmp_path / "site"))
    assert "Error in sitecustomize" in done.stderr
    assert summary_of(done)["num_steps"] >= 98


def test_a_python_without_whet_says_so(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("")
    (tmp_path / "main.py").write_text("import torch; print('trained')")
    # -S: no site-packages, so sitecustomize is loaded by hand, as the site module would have
    script = f"import sys; sys.path.insert(0, {str(INJECT)!r}); import sitecustomize, torch; print('went on')"
    done = monitor("--no-page", "--json", "--", sys.executable, "-S", "-c", script, cwd=tmp_path)
    assert "went on" in done.stdout
    assert "ModuleNotFoundError: No module named 'whet'" in summary_of(done)["unavailable"]["steps"]


def test_what_a_command_is_called() -> None:
    assert name_of(["python3.11", "-u", "src/train.py", "--lr", "1"]) == "train.py"
    assert name_of(["/usr/bin/python", "-m", "package.train"]) == "package.train"
    assert name_of(["torchrun", "--nproc", "2", "train.py"]) == "train.py"
    assert name_of(["./run.sh", "x.py"]) == "run.sh"


def test_the_commands_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PYTHONPATH", "/given")
    found = environment({"WHET_MONITOR_SOCKET": str(tmp_path / "socket")})
    assert found["PYTHONPATH"] == f"{INJECT}{os.pathsep}/given"
    assert found["WHET_MONITOR_SOCKET"] == str(tmp_path / "socket")
    monkeypatch.delenv("PYTHONPATH")
    assert environment({})["PYTHONPATH"] == str(INJECT)


def test_no_terminal_no_foreground() -> None:
    code = "from whet.scripts.injection.launching import in_foreground; print(in_foreground())"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, start_new_session=True, capture_output=True, text=True, timeout=60)
    assert done.stdout == "False\n", done.stderr
