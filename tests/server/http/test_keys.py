"""Who may ask, and what keys keep apart."""

from collections.abc import Iterator

import pytest
from asking import ask, serving
from fake_engine import FakeEngine

from whet.errors import OptionError
from whet.server.http.run import HttpServer
from whet.server.http.settings import Settings

ENGINE = FakeEngine()
KEYS = ("first-key", "second-key")
PATH = "/v1/completions"


@pytest.fixture(scope="module")
def server() -> Iterator[HttpServer]:
    with serving(ENGINE, api_keys=KEYS) as server:
        yield server


@pytest.fixture(autouse=True)
def engine() -> FakeEngine:
    ENGINE.reset()
    return ENGINE


def bearing(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


@pytest.mark.parametrize("key", KEYS)
def test_any_of_the_keys_opens(server: HttpServer, key: str) -> None:
    assert ask(server, PATH, {"prompt": "Once"}, headers=bearing(key)).status == 200
    assert ask(server, "/live", headers={"authorization": f"bearer  {key}"}).status == 200


@pytest.mark.parametrize(
    "headers",
    [
        {},
        bearing(""),
        bearing("first-ke"),
        bearing("first-key2"),
        bearing("FIRST-KEY"),
        bearing("first-key second-key"),
        bearing("sch\u00fcssel"),
        {"Authorization": "first-key"},
        {"Authorization": "Basic first-key"},
        {"X-Api-Key": "first-key"},
    ],
)
@pytest.mark.parametrize("path", [PATH, "/v1/chat/completions", "/tokenize", "/detokenize", "/v1/nowhere"])
def test_nothing_else_does(server: HttpServer, engine: FakeEngine, path: str, headers: dict[str, str]) -> None:
    answer = ask(server, path, {"prompt": "Once"}, headers=headers)
    assert (answer.status, answer.headers["www-authenticate"]) == (401, "Bearer")
    assert (answer.error["type"], answer.error["code"]) == ("authentication_error", "invalid_api_key")
    assert engine.asked == []


@pytest.mark.parametrize("path", ["/v1/models", "/v1/models/fake", "/live"])
def test_what_is_read_needs_one_too(server: HttpServer, path: str) -> None:
    assert ask(server, path).status == 401
    assert ask(server, path, headers=bearing(KEYS[0])).status == 200


@pytest.mark.parametrize("path", ["/health", "/version", "/metrics", "/", "/openapi.json"])
def test_what_is_open(server: HttpServer, path: str) -> None:
    assert ask(server, path).status == 200


def test_the_key_is_looked_at_before_the_body(server: HttpServer) -> None:
    assert ask(server, PATH, b"{").status == 401
    assert ask(server, PATH, b"x" * 9 * 2**20).status == 401


def test_a_key_lets_any_host_in(server: HttpServer) -> None:
    """Behind a proxy the name is another one; a site that points a name here has no key."""
    headers = {**bearing(KEYS[0]), "Host": "models.example"}
    assert ask(server, PATH, {"prompt": "Once"}, headers=headers).status == 200


def salt(server: HttpServer, engine: FakeEngine, key: str, asked: str | None = None) -> str:
    engine.asked.clear()
    assert ask(server, PATH, {"prompt": "Once", "cache_salt": asked}, headers=bearing(key)).status == 200
    return engine.asked[0].cache_salt


def test_cached_prompts_are_kept_apart(server: HttpServer, engine: FakeEngine) -> None:
    first, second = KEYS
    salts = [salt(server, engine, first), salt(server, engine, second)]
    salts += [salt(server, engine, first, "a"), salt(server, engine, first, "b"), salt(server, engine, second, "a")]
    assert len(set(salts)) == 5
    assert salt(server, engine, first) == salts[0]
    assert salt(server, engine, first, "a") == salts[2]
    assert not any(key in one for key in KEYS for one in salts)


def test_salts_without_keys() -> None:
    settings = Settings(served_names=("fake",))
    assert settings.cache_salt("", None) == ""
    assert settings.cache_salt("", "a") != settings.cache_salt("", "b")
    assert Settings(served_names=("fake",)).cache_salt("", "a") != settings.cache_salt("", "a")
    assert settings.cache_salt("1", "2") != settings.cache_salt("12", None)


@pytest.mark.parametrize("key", ["", "two words", "schl\u00fcssel", "line\n"])
def test_a_key_that_is_none(key: str) -> None:
    with pytest.raises(OptionError, match="--api-key"):
        Settings(served_names=("fake",), api_keys=(key,))


def test_keys_are_not_shown() -> None:
    assert "first-key" not in repr(Settings(served_names=("fake",), api_keys=KEYS))
