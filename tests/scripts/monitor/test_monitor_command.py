"""`whet.monitor_command` and `whet monitor -- COMMAND`: the same summary."""

import json
import sys
from pathlib import Path

import pytest

from whet.cli import main
from whet.errors import OptionError, TargetError
from whet.scripts.monitor.monitor_command import monitor_command
from whet.scripts.monitor.summary import Summary

COMMAND = [sys.executable, "-c", "import sys; sys.exit(3)"]


def test_the_command_and_the_function_say_the_same(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    seen: list[Summary] = []
    summary = monitor_command(COMMAND, page=False, name="three", out=tmp_path / "out", on_end=seen.append)
    assert seen == [summary]
    assert summary.exit_code == 3
    written = json.loads((tmp_path / "out" / "summary.json").read_text())
    with pytest.raises(SystemExit) as left:
        main(["monitor", "--no-page", "--name", "three", "--json", "--", *COMMAND])
    assert left.value.code == 3
    shown = json.loads(capfd.readouterr().out)
    for key in ("name", "command", "exit_code", "num_steps", "is_partial", "num_cores"):
        assert written[key] == shown[key]
    assert written["exit_code"] == summary.exit_code


def test_what_is_wrong_is_raised() -> None:
    with pytest.raises(TargetError, match="cannot run"):
        monitor_command(["./there-is-no-such-program"], page=False)
    with pytest.raises(OptionError, match="samples must be at least"):
        monitor_command(COMMAND, page=False, interval_s=0.001)


def test_the_page_has_an_address_while_the_command_runs() -> None:
    addresses: list[str | None] = []
    monitor_command(COMMAND, port=0, on_start=addresses.append)
    (address,) = addresses
    assert address is not None and address.startswith("http://127.0.0.1:")
