"""Hold the settings of the page's server: who may use it."""

from contextlib import suppress
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from whet.errors import OptionError
from whet.ui.network import ANY_ORIGIN, checked_keys, is_key, names_loopback, origin

DEFAULT_PORT = 8600


@dataclass(frozen=True, kw_only=True)
class PageSettings:
    """Hold the settings of the page's server.

    Attributes:
        is_local: Whether only this machine can connect. Then requests must name it as their host.
        api_keys: A viewer must give one of these. Without keys, everybody may watch who can connect.
        cors_origins: Pages of these origins may connect, beside the server's own page. "*" lets all.

    Raises:
        OptionError: A key or an origin cannot be used.
    """

    is_local: bool = True
    api_keys: tuple[str, ...] = field(default=(), repr=False)
    cors_origins: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        checked_keys(self.api_keys)
        object.__setattr__(self, "cors_origins", tuple(map(origin, self.cors_origins)))

    def allows_host(self, host_header: str) -> bool:
        return not self.is_local or names_loopback(host_header)

    def allows_origin(self, host_header: str, origin_header: str | None) -> bool:
        """Return whether a page of this origin may connect. Browsers do not hold pages of other origins back.

        They always send an Origin header; None stands for a program that sent none.
        """
        if origin_header is None or ANY_ORIGIN in self.cors_origins or origin_header in self.cors_origins:
            return True
        scheme = urlsplit(origin_header).scheme  # a proxy may speak HTTPS to the browser
        with suppress(OptionError):  # the host is none
            return scheme in ("http", "https") and origin(f"{scheme}://{host_header}") == origin_header
        return False

    def is_key(self, given: str) -> bool:
        """Return whether a viewer with this key may watch."""
        return not self.api_keys or is_key(given, self.api_keys)
