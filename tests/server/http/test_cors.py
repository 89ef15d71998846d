"""Pages of other origins: what the headers say, and what a browser makes of them."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from asking import ask, serving
from fake_engine import FakeEngine

from whet.errors import OptionError
from whet.server.http.settings import Settings

ENGINE = FakeEngine()
ORIGIN = "https://app.example.org"
PREFLIGHT = {
    "Origin": ORIGIN,
    "Access-Control-Request-Method": "POST",
    "Access-Control-Request-Headers": "authorization,content-type,x-stainless-os",
}


def cors(headers: dict[str, str]) -> dict[str, str]:
    prefix = "access-control-"
    return {name.removeprefix(prefix): value for name, value in headers.items() if name.startswith(prefix)}


def test_without_the_option_nothing_is_said() -> None:
    with serving(ENGINE) as server:
        assert cors(ask(server, "/v1/models", headers={"Origin": ORIGIN}).headers) == {}
        answer = ask(server, "/v1/chat/completions", method="OPTIONS", headers=PREFLIGHT)
        assert (answer.status, cors(answer.headers)) == (405, {})


def test_a_named_origin_may_ask_with_credentials() -> None:
    with serving(ENGINE, cors_origins=(ORIGIN, "http://localhost:3000"), api_keys=("key",)) as server:
        answer = ask(server, "/v1/chat/completions", method="OPTIONS", headers=PREFLIGHT)
        found = cors(answer.headers)
        assert answer.status == 200  # a preflight brings no key
        assert (found["allow-origin"], found["allow-credentials"]) == (ORIGIN, "true")
        assert "POST" in found["allow-methods"]
        assert found["allow-headers"] == PREFLIGHT["Access-Control-Request-Headers"]
        refused = ask(server, "/v1/models", headers={"Origin": ORIGIN})
        assert (refused.status, cors(refused.headers)["allow-origin"]) == (401, ORIGIN)  # the page may read why
        known = ask(server, "/v1/models", headers={"Origin": ORIGIN, "Authorization": "Bearer key"})
        assert (known.status, known.headers["vary"]) == (200, "Origin")
        assert cors(known.headers)["expose-headers"] == "Retry-After, Inference-Header-Content-Length"
        for other in ("https://evil.example.org", "https://app.example.org.evil.org", "http://app.example.org", "null"):
            assert "allow-origin" not in cors(ask(server, "/v1/models", headers={"Origin": other}).headers)
            denied = ask(server, "/v1/models", method="OPTIONS", headers={**PREFLIGHT, "Origin": other})
            assert (denied.status, "allow-origin" in cors(denied.headers)) == (400, False)
        assert cors(ask(server, "/health").headers).keys() <= {"expose-headers", "allow-credentials"}


def test_all_origins_may_ask_without_credentials() -> None:
    with serving(ENGINE, cors_origins=("*", ORIGIN)) as server:
        for path, method in (("/v1/models", "GET"), ("/v1/chat/completions", "OPTIONS")):
            found = cors(ask(server, path, method=method, headers={**PREFLIGHT, "Origin": "null"}).headers)
            assert found["allow-origin"] == "*"
            assert "allow-credentials" not in found


@pytest.mark.parametrize(
    ("given", "origin"),
    [
        ("*", "*"), ("HTTPS://App.Example.org", ORIGIN), ("https://app.example.org:443", ORIGIN),
        ("http://[::1]:3000", "http://[::1]:3000"), ("tauri://localhost", "tauri://localhost"),
        ("chrome-extension://abcdef", "chrome-extension://abcdef"),
    ],
)  # fmt: skip
def test_origins_are_written_as_browsers_do(given: str, origin: str) -> None:
    assert Settings(served_names=("x",), cors_origins=(given,)).cors_origins == (origin,)


@pytest.mark.parametrize(
    "given",
    ["", "app.example.org", "https://app.example.org/", "https://x.org/a", "https://u@x.org", "https://*.x.org",
     "http://x.org:port", "null", "https://", "https://x.org?q"],
)  # fmt: skip
def test_what_is_no_origin_is_refused(given: str) -> None:
    with pytest.raises(OptionError, match="an origin is SCHEME://HOST"):
        Settings(served_names=("x",), cors_origins=(given,))


@contextmanager
def blank_page() -> Iterator[str]:
    """The address of an empty page on a port of its own, which is another origin."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=http.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{http.server_address[1]}"
    finally:
        http.shutdown()
        http.server_close()
        thread.join()


# Asks as openai's client for browsers does, and returns the status, or the name of the error.
_FETCH = """async ([url, body]) => {
  try {
    const headers = { "Content-Type": "application/json", Authorization: "Bearer key" };
    const response = await fetch(url, { method: "POST", headers, body });
    return [response.status, (await response.json()).choices[0].text.length > 0];
  } catch (error) {
    return error.name;
  }
}"""


def test_a_page_of_another_origin_in_a_browser(browser: Any) -> None:
    body = json.dumps({"model": "fake", "prompt": "Once", "max_tokens": 4})
    with blank_page() as origin, browser.new_context() as context:
        page = context.new_page()
        page.goto(origin)
        for allowed, expected in (((origin,), [200, True]), (("*",), [200, True]), ((), "TypeError")):
            with serving(ENGINE, cors_origins=allowed, api_keys=("key",)) as server:
                assert page.evaluate(_FETCH, [f"{server.url}/v1/completions", body]) == expected
        with serving(ENGINE, cors_origins=("https://elsewhere.org",), api_keys=("key",)) as server:
            assert page.evaluate(_FETCH, [f"{server.url}/v1/completions", body]) == "TypeError"
