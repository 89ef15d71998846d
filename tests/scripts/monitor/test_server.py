"""The page's data over HTTP, as a browser and as a stranger asks for it."""

import json
import socket
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest
from made_runs import feed, make_run

from whet.errors import MissingExtra, OptionError
from whet.scripts.monitor.run import Run
from whet.scripts.monitor.served_page import page_server
from whet.scripts.monitor.server import PageServer


@pytest.fixture
def run() -> Run:
    return make_run()


@pytest.fixture
def server(run: Run) -> Iterator[PageServer]:
    server = PageServer(run)
    server.start()
    yield server
    server.stop()


def get(url: str, **headers: str) -> tuple[int, str, Any]:
    """Status, content type, content; JSON is read."""
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=10) as answer:
            content, kind = answer.read().decode(), answer.headers["content-type"]
            return answer.status, kind, json.loads(content) if "json" in kind else content
    except urllib.error.HTTPError as error:
        with error:
            return error.code, "", error.read().decode()


def test_only_what_is_new_is_sent(server: PageServer, run: Run) -> None:
    feed(run)
    feed(run)
    first = get(f"{server.url}/api/update")[2]
    assert (first["num_rows"], len(first["rows"]["ended_s"])) == (2, 2)
    feed(run, steps_ms=40)
    later = get(f"{server.url}/api/update?of={run.id}&after=2")[2]
    assert later["rows"]["cells"]["step_ms"]["mean"] == pytest.approx([40])
    other = get(f"{server.url}/api/update?of=another&after=2")[2]
    assert len(other["rows"]["ended_s"]) == 3


def test_a_question_waits_for_news(server: PageServer, run: Run) -> None:
    feed(run)
    began = time.monotonic()
    threading.Timer(0.4, feed, (run,)).start()
    update = get(f"{server.url}/api/update?of={run.id}&after=1")[2]
    assert time.monotonic() - began > 0.3
    assert update["num_rows"] == 2


def test_the_end_is_told_at_once(server: PageServer, run: Run) -> None:
    feed(run)
    threading.Timer(0.3, run.end, (3,)).start()
    update = get(f"{server.url}/api/update?of={run.id}&after=1")[2]
    assert update["state"]["ended"] == {"exit_code": 3, "message": ""}


def test_all_that_is_served(server: PageServer, run: Run) -> None:
    feed(run)
    for path, kind in (
        ("/", "text/html"),
        ("/page/live.js", "text/javascript"),
        ("/page/style.css", "text/css"),
        ("/page/plot.js", "text/javascript"),
        ("/page/uPlot.min.css", "text/css"),
        ("/api/history", "application/json"),
        ("/api/charts", "application/json"),
        ("/summary.json", "application/json"),
        ("/summary.html", "text/html"),
        ("/metrics", "text/plain"),
    ):
        status, content_type, content = get(server.url + path)
        assert (status, content_type.startswith(kind)) == (200, True), path
        assert content
    assert get(f"{server.url}/page/saved.html.j2")[0] == 404
    assert get(f"{server.url}/page/..%2Frun.py")[0] == 404
    assert get(f"{server.url}/docs")[0] == 404


def test_a_foreign_name_for_this_address_is_refused(server: PageServer, run: Run) -> None:
    feed(run)
    assert get(f"{server.url}/api/update", Host="evil.example")[0] == 421
    assert get(f"{server.url}/api/update", Host=f"localhost:{server.port}")[0] == 200


def test_a_port_in_use_is_one_clear_message(server: PageServer) -> None:
    with pytest.raises(OptionError, match=f"port {server.port} of 127.0.0.1 is in use"):
        PageServer(make_run(), port=server.port)


def test_the_port_is_free_after(run: Run) -> None:
    server = PageServer(run)
    server.start()
    get(f"{server.url}/metrics")
    server.stop()
    PageServer(make_run(), port=server.port).stop()
    with pytest.raises(OSError, match="refused"), socket.create_connection(("127.0.0.1", server.port), timeout=2):
        pass


@pytest.mark.parametrize("package", ["fastapi", "uvicorn", "prometheus_client"])
def test_a_missing_extra_says_what_to_install(package: str, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("whet.scripts.monitor.server", "whet.ui.asgi_server"):
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingExtra, match=r"pip install 'torch-whet\[monitor\]'"):
        page_server(run, "127.0.0.1", 0)
