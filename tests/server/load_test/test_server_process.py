"""The server's process: started, waited for, ended, whatever happens; and found by its address."""

import os
import socket
import sys
import textwrap
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from whet.errors import TargetError
from whet.server.load_test.client import is_up
from whet.server.load_test.server_process import server_on_this_machine, started_server

SERVE = """
import http.server, os, pathlib, sys

directory, _, host, _, port, *options = sys.argv[1:]
pathlib.Path(directory, "pid").write_text(str(os.getpid()))
pathlib.Path(directory, "options").write_text(" ".join([*options, os.environ.get("WHET_API_KEY", "no key")]))
print("loading")

class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200 if self.path == "/health" else 404)
        self.send_header("Content-Length", "0")
        self.end_headers()
    def log_message(self, *words):
        pass

http.server.HTTPServer((host, int(port)), Handler).serve_forever()
"""
FAIL = """
import sys
print("some log line")
sys.exit("error: model.safetensors is damaged\\n")
"""


def command(code: str, tmp_path: Path) -> Sequence[str]:
    path = tmp_path / "serve.py"
    path.write_text(textwrap.dedent(code))
    return [sys.executable, str(path)]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    directory = tmp_path / "model"
    directory.mkdir()
    (directory / "config.json").write_text("{}")
    return directory


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_it_serves_meanwhile_and_is_gone_afterwards(model: Path, tmp_path: Path) -> None:
    with started_server(model, ["--weights", "int8"], api_key="secret", command=command(SERVE, tmp_path)) as url:
        assert is_up(url)
        pid = int((model / "pid").read_text())
        assert is_alive(pid)
    assert (model / "options").read_text() == "--weights int8 secret"
    assert not is_alive(pid)
    assert not is_up(url)


def test_it_is_gone_after_an_error_too(model: Path, tmp_path: Path) -> None:
    with pytest.raises(RuntimeError), started_server(model, command=command(SERVE, tmp_path)):
        raise RuntimeError
    assert not is_alive(int((model / "pid").read_text()))


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (FAIL, "model.safetensors is damaged"),
        ("import sys; from whet.cli import main; main(['serve', *sys.argv[1:]])", "there is no option --weight"),
        ("pass", "it said nothing"),
    ],
)
def test_what_the_server_says_when_it_does_not_start(code: str, said: str, model: Path, tmp_path: Path) -> None:
    with (
        pytest.raises(TargetError) as raised,
        started_server(model, ["--weight", "8"], command=command(code, tmp_path)),
    ):
        pass
    assert str(raised.value).startswith(f"whet serve did not start: {said}")
    assert "\n" not in str(raised.value)


def test_what_is_no_model(tmp_path: Path) -> None:
    for path, said in ((tmp_path / "none", "is no directory"), (tmp_path, "holds no config.json")):
        with pytest.raises(TargetError, match=said), started_server(path):
            pass


@pytest.mark.skipif(sys.platform != "linux", reason="asks Linux's kernel")
def test_it_ends_with_a_benchmark_that_is_killed(model: Path, tmp_path: Path) -> None:
    words = command(SERVE, tmp_path)
    code = f"""
    import os, pathlib
    from whet.server.load_test.server_process import started_server
    with started_server(pathlib.Path({str(model)!r}), command={words!r}):
        os.kill(os.getpid(), 9)
    """
    assert os.spawnv(os.P_WAIT, sys.executable, [sys.executable, "-c", textwrap.dedent(code)]) == -9
    pid = int((model / "pid").read_text())
    for _ in range(2000):
        if not is_alive(pid):
            return
        time.sleep(0.01)
    pytest.fail("the server outlived the benchmark")


def test_a_server_on_this_machine_is_found_by_its_port() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        assert server_on_this_machine(f"http://127.0.0.1:{port}") == [os.getpid()]
        assert server_on_this_machine(f"http://localhost:{port}/v1") == [os.getpid()]
    assert server_on_this_machine(f"http://127.0.0.1:{port}") == []


def test_another_machines_server_is_none_of_ours() -> None:
    assert server_on_this_machine("http://192.0.2.1:80") == []  # an address for documentation (RFC 5737)
    assert server_on_this_machine("http://no.such.host.invalid") == []
