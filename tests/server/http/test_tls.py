"""HTTPS: what openai-python sees, clients that are slow at the handshake, and files that cannot be used."""

import http.client
import json
import logging
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from asking import serving
from fake_engine import TOKENIZER, WORD_IDS, WORDS, FakeEngine

from whet.errors import OptionError
from whet.server.http.run import HttpServer
from whet.server.http.settings import Settings

trustme = pytest.importorskip("trustme")
cryptography = pytest.importorskip("cryptography")

ENGINE = FakeEngine()
CHAT = [{"role": "user", "content": "Hi"}]


class Files:
    """A certificate authority, and files of certificates that it has signed."""

    def __init__(self, directory: Path) -> None:
        authority = trustme.CA()
        self.directory = directory
        self.context = ssl.create_default_context()
        authority.configure_trust(self.context)
        issued, other = authority.issue_cert("127.0.0.1", "localhost"), authority.issue_cert("127.0.0.1")
        self.cert = self._write("cert.pem", issued.cert_chain_pems[0].bytes())
        self.key = self._write("key.pem", issued.private_key_pem.bytes())
        self.both = self._write("both.pem", issued.private_key_and_cert_chain_pem.bytes())
        self.other_key = self._write("other.pem", other.private_key_pem.bytes())
        self.locked = self._write("locked.pem", _encrypted(issued.private_key_pem.bytes(), b"secret"))
        self.text = self._write("text.pem", b"nothing")
        self.damaged = self._write("damaged.pem", issued.private_key_pem.bytes().replace(b"\nM", b"\n%", 1))

    def _write(self, name: str, content: bytes) -> str:
        path = self.directory / name
        path.write_bytes(content)
        return str(path)


def _encrypted(key: bytes, password: bytes) -> bytes:
    from cryptography.hazmat.primitives import serialization as s

    read = s.load_pem_private_key(key, None)
    kind = s.PrivateFormat.TraditionalOpenSSL
    return bytes(read.private_bytes(s.Encoding.PEM, kind, s.BestAvailableEncryption(password)))


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    return Files(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def server(files: Files) -> Iterator[HttpServer]:
    with serving(ENGINE, ssl_certfile=files.cert, ssl_keyfile=files.key) as server:
        yield server


@pytest.fixture(autouse=True)
def engine() -> FakeEngine:
    ENGINE.reset()
    return ENGINE


def connect(server: HttpServer, files: Files) -> http.client.HTTPSConnection:
    return http.client.HTTPSConnection(server.host, server.port, timeout=20, context=files.context)


def get(server: HttpServer, files: Files, path: str = "/health") -> int:
    connection = connect(server, files)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        response.read()
        return response.status
    finally:
        connection.close()


def test_openai_python_speaks_to_it(server: HttpServer, files: Files) -> None:
    openai = pytest.importorskip("openai")
    import httpx2

    assert server.url.startswith("https://127.0.0.1:")
    with (
        httpx2.Client(verify=files.context) as http_client,
        openai.OpenAI(base_url=f"{server.url}/v1", api_key="x", max_retries=0, http_client=http_client) as client,
    ):
        answer = client.chat.completions.create(model="fake", messages=CHAT, max_completion_tokens=8)
        assert answer.choices[0].message.content == TOKENIZER.decode(WORD_IDS[:8])
        stream = client.chat.completions.create(model="fake", messages=CHAT, max_tokens=len(WORD_IDS), stream=True)
        assert "".join(chunk.choices[0].delta.content or "" for chunk in stream) == WORDS


def test_one_file_may_hold_both_and_a_key_may_be_encrypted(files: Files) -> None:
    with serving(ENGINE, ssl_certfile=files.both) as server:
        assert get(server, files) == 200
    locked = {"ssl_certfile": files.cert, "ssl_keyfile": files.locked, "ssl_keyfile_password": "secret"}
    with serving(ENGINE, **locked) as server:
        assert get(server, files) == 200
    assert "secret" not in repr(Settings(served_names=("x",), **locked))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("cert", "key", "password", "words"),
    [
        ("missing.pem", "", "", "--ssl-certfile .*missing.pem: No such file or directory"),
        ("cert.pem", "missing.pem", "", "--ssl-keyfile .*missing.pem: No such file or directory"),
        ("text.pem", "key.pem", "", "--ssl-certfile .*text.pem: there is no certificate in it"),
        ("cert.pem", "text.pem", "", "--ssl-keyfile .*text.pem: there is no private key in it"),
        ("cert.pem", "", "", "--ssl-certfile, without --ssl-keyfile .*cert.pem: there is no private key in it"),
        ("cert.pem", "other.pem", "", "the key in .*other.pem does not belong to the certificate in .*cert.pem"),
        ("cert.pem", "locked.pem", "", "locked.pem: the key is encrypted; give its password"),
        ("cert.pem", "locked.pem", "wrong", "locked.pem: --ssl-keyfile-password does not open the key"),
        ("cert.pem", "damaged.pem", "", "cert.pem and .*damaged.pem cannot be used for TLS"),
        ("", "key.pem", "", "HTTPS needs a certificate too"),
    ],
)
def test_files_that_cannot_be_used(files: Files, cert: str, key: str, password: str, words: str) -> None:
    certfile, keyfile = (str(files.directory / name) if name else "" for name in (cert, key))
    with pytest.raises(OptionError, match=words):
        Settings(served_names=("x",), ssl_certfile=certfile, ssl_keyfile=keyfile, ssl_keyfile_password=password)


def test_a_client_without_tls_gets_nothing_and_harms_nobody(
    server: HttpServer, files: Files, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        for content in (b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n", b"\x16\x03\x01", b"\x00" * 500, b""):
            with socket.create_connection((server.host, server.port), timeout=20) as client:
                client.sendall(content)
                client.shutdown(socket.SHUT_WR)
                assert b"HTTP" not in client.recv(500)
        assert get(server, files) == 200
    assert not caplog.records


def test_a_handshake_must_end_in_time_and_holds_nobody_up(files: Files) -> None:
    pair = {"ssl_certfile": files.cert, "ssl_keyfile": files.key}
    with serving(ENGINE, head_timeout_s=0.5, **pair) as server, ExitStack() as stack:
        slow = [stack.enter_context(socket.create_connection((server.host, server.port), timeout=20)) for _ in range(5)]
        assert get(server, files) == 200
        for client in slow:
            assert client.recv(1) == b""  # closed by the server
        assert get(server, files) == 200


def test_handshakes_count_as_connections_and_make_room(files: Files) -> None:
    pair = {"ssl_certfile": files.cert, "ssl_keyfile": files.key}
    with serving(ENGINE, max_connections=4, head_timeout_s=60, **pair) as server, ExitStack() as stack:
        slow = [stack.enter_context(socket.create_connection((server.host, server.port), timeout=20)) for _ in range(4)]
        time.sleep(0.2)
        assert get(server, files) == 200
        assert slow[0].recv(1) == b""  # the oldest has made room
        slow[3].settimeout(0.1)
        with pytest.raises(TimeoutError):
            slow[3].recv(1)


def test_who_is_served_does_not_make_room_for_handshakes(files: Files, engine: FakeEngine) -> None:
    engine.held = True
    pair = {"ssl_certfile": files.cert, "ssl_keyfile": files.key}
    body = json.dumps({"prompt": "Once", "max_tokens": 10})
    with serving(ENGINE, max_connections=1, **pair) as server, ExitStack() as stack:
        served = connect(server, files)
        stack.callback(served.close)
        served.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
        engine.wait_running(1)
        late = stack.enter_context(socket.create_connection((server.host, server.port), timeout=20))
        assert late.recv(1) == b""
        engine.let_go()
        assert served.getresponse().status == 200


def test_a_large_body_is_read_whole_while_others_are_answered(server: HttpServer, files: Files) -> None:
    content = json.dumps({"prompt": "a " * 1_000_000, "max_tokens": 1}).encode()
    answered: list[int] = []
    stop = threading.Event()

    def ask_on() -> None:
        while not stop.is_set():
            answered.append(get(server, files))

    other = threading.Thread(target=ask_on)
    other.start()
    try:
        connection = connect(server, files)
        connection.putrequest("POST", "/v1/completions")
        connection.putheader("Content-Type", "application/json")
        connection.putheader("Transfer-Encoding", "chunked")
        connection.endheaders()
        pieces = [content[at : at + 1000] for at in range(0, len(content), 1000)]
        connection.send(b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n")
        response = connection.getresponse()
        said: Any = json.loads(response.read())
        connection.close()
    finally:
        stop.set()
        other.join()
    assert response.status == 400 and "tokens" in said["error"]["message"]  # read whole, and longer than the context
    assert answered and set(answered) == {200}
