"""The directory of shared weights: private, gone at the end, and gone later if its process was killed."""

import signal
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from whet.errors import OutputError
from whet.server.weights_directory import weights_directory

_HOLD = """
import sys
from pathlib import Path
from whet.server.weights_directory import weights_directory
with weights_directory(1000, Path(sys.argv[1])) as directory:
    print(directory, flush=True)
    sys.stdin.read()
assert "torch" not in sys.modules
"""


def held(place: Path) -> tuple[subprocess.Popen[str], Path]:
    """Return a process that has made a directory, and the directory."""
    process = subprocess.Popen(
        [sys.executable, "-c", _HOLD, str(place)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    return process, Path(process.stdout.readline().strip())


def test_it_is_private_and_lasts_as_long_as_the_block(tmp_path: Path) -> None:
    with weights_directory(1000, tmp_path) as directory:
        assert directory.parent == tmp_path
        assert stat.S_IMODE(directory.stat().st_mode) == 0o700
        (directory / "file").write_bytes(b"x")
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(KeyError), weights_directory(1000, tmp_path):
        raise KeyError
    assert list(tmp_path.iterdir()) == []


def test_where_memory_does_not_hold_it_it_lies_in_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WHET_CACHE", str(tmp_path / "cache"))
    in_memory = tmp_path / "memory"
    in_memory.mkdir()
    for size, place in ((2**60, in_memory), (1000, tmp_path / "missing")):
        with weights_directory(size, place) as directory:
            assert directory.parent == tmp_path / "cache" / "weights"
    (tmp_path / "file").write_bytes(b"")
    monkeypatch.setenv("WHET_CACHE", str(tmp_path / "file"))
    with pytest.raises(OutputError, match="cannot make a directory for shared weights"), weights_directory(2**60):
        pass


def test_what_killed_processes_left_is_removed_and_nothing_else(tmp_path: Path) -> None:
    killed, left = held(tmp_path)
    living, used = held(tmp_path)
    (left / "file").write_bytes(b"x")
    foreign = tmp_path / "whet-weights-of-somebody"
    foreign.mkdir()
    killed.send_signal(signal.SIGKILL)
    killed.communicate()
    assert left.exists()
    with weights_directory(1000, tmp_path) as own:
        assert not left.exists()
        assert used.exists()
        assert own.exists()
    living.communicate("")
    assert living.returncode == 0
    assert list(tmp_path.iterdir()) == [foreign]


def test_many_at_once_do_not_remove_each_other(tmp_path: Path) -> None:
    lost: list[Path] = []

    def make() -> None:
        for _ in range(50):
            with weights_directory(1000, tmp_path) as directory:
                if not directory.exists():
                    lost.append(directory)

    threads = [threading.Thread(target=make) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert lost == []
    assert list(tmp_path.iterdir()) == []
