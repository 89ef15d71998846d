"""whet serve with a certificate and for pages of other origins, as a user starts it."""

import json
import ssl
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from whet.cli import main
from whet.server.http.settings import Settings

trustme = pytest.importorskip("trustme")


def settings_of(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> Settings:
    """What the server is given, without starting it."""
    given: list[Settings] = []
    monkeypatch.setattr("whet.server.one_process.serve_here", lambda asked, *_, **__: given.append(asked.settings))
    with pytest.raises(SystemExit) as end:
        main(["serve", "docs-gpt", *arguments])
    assert end.value.code in (0, None)
    return given[0]


def test_origins_come_under_whets_name_and_vllms(monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["--cors-origin", "http://a.org", "--cors-origin", "http://b.org:8080", "--allowed-origins", "http://c.org"]
    found = settings_of(monkeypatch, *words, "--allowed-origins", '["http://d.org", "*"]')
    assert found.cors_origins == ("http://a.org", "http://b.org:8080", "http://c.org", "http://d.org", "*")
    assert settings_of(monkeypatch).cors_origins == ()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--ssl-certfile", "missing.pem"], "--ssl-certfile missing.pem: No such file or directory"),
        (["--ssl-keyfile", "key.pem"], "HTTPS needs a certificate too: --ssl-certfile FILE"),
        (["--cors-origin", "example.org"], "an origin is SCHEME://HOST"),
        (["--allowed-origins", "[1"], "write an origin, or a JSON list of origins"),
    ],
)
def test_what_cannot_be_is_said_before_the_model_is_loaded(
    words: list[str], said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("whet.server.one_process.serve_here", lambda *_, **__: pytest.fail("it went on"))
    with pytest.raises(SystemExit) as end:
        main(["serve", "docs-gpt", *words])
    shown = capsys.readouterr()
    [line] = shown.err.strip().splitlines()
    assert end.value.code == 2 and shown.out == ""
    assert line.startswith("error: ") and said in line


def test_https_is_what_it_says_and_what_it_speaks(tmp_path: Path) -> None:
    authority = trustme.CA()
    issued = authority.issue_cert("127.0.0.1")
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    issued.cert_chain_pems[0].write_to_path(cert)
    issued.private_key_pem.write_to_path(key)
    context = ssl.create_default_context()
    authority.configure_trust(context)
    words = ["serve", "docs-gpt", "--port", "0", "--json", "--ssl-certfile", str(cert), "--ssl-keyfile", str(key)]
    process = subprocess.Popen(
        [sys.executable, "-m", "whet", *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        url = json.loads(process.stdout.readline())["url"]
        assert url.startswith("https://127.0.0.1:")
        with urllib.request.urlopen(f"{url}/v1/models", timeout=60, context=context) as answer:
            assert json.load(answer)["data"][0]["id"] == "docs-gpt"
        process.terminate()
        _, said = process.communicate(timeout=60)
        assert f"{url} answers as docs-gpt" in said
        assert process.returncode == 0
    finally:
        process.kill()
        process.communicate()
