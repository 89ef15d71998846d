"""Who may use the page: hosts, origins and keys."""

import pytest

from whet.errors import OptionError
from whet.streamer.http.settings import PageSettings


@pytest.mark.parametrize(
    ("origin", "host", "named", "is_allowed"),
    [
        (None, "127.0.0.1:8600", (), True),
        ("http://127.0.0.1:8600", "127.0.0.1:8600", (), True),
        ("https://video.example.org", "video.example.org", (), True),  # a proxy with TLS
        ("http://LOCALHOST:8600".lower(), "LOCALHOST:8600", (), True),
        ("http://[::1]:8600", "[::1]:8600", (), True),
        ("http://127.0.0.1:8601", "127.0.0.1:8600", (), False),
        ("http://localhost:8600", "127.0.0.1:8600", (), False),
        ("http://evil.example", "127.0.0.1:8600", (), False),
        ("http://127.0.0.1:8600.evil.example", "127.0.0.1:8600", (), False),
        ("null", "127.0.0.1:8600", (), False),
        ("", "127.0.0.1:8600", (), False),
        ("file://127.0.0.1:8600", "127.0.0.1:8600", (), False),
        ("http://", "", (), False),
        ("http://app.example", "127.0.0.1:8600", ("http://App.example:80",), True),
        ("http://app.example:81", "127.0.0.1:8600", ("http://app.example",), False),
        ("http://evil.example", "127.0.0.1:8600", ("*",), True),
    ],
)
def test_origins(origin, host, named, is_allowed):
    assert PageSettings(cors_origins=named).allows_origin(host, origin) is is_allowed


def test_hosts():
    local, other = PageSettings(is_local=True), PageSettings(is_local=False)
    for host in ("127.0.0.1:1", "localhost", "[::1]:9"):
        assert local.allows_host(host) and other.allows_host(host)
    for host in ("evil.example", "127.0.0.1.evil.example:8600", "", "[::1"):
        assert not local.allows_host(host) and other.allows_host(host)


def test_keys():
    assert PageSettings().is_key("") and PageSettings().is_key("any")
    keyed = PageSettings(api_keys=("secret",))
    assert keyed.is_key("secret") and not keyed.is_key("") and not keyed.is_key("Secret")
    assert "secret" not in repr(keyed)
    with pytest.raises(OptionError, match="a key is printable ASCII"):
        PageSettings(api_keys=("",))
    with pytest.raises(OptionError, match="an origin is"):
        PageSettings(cors_origins=("example.org",))
