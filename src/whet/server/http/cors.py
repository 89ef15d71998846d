"""Let web pages of other origins send requests from a browser (CORS)."""

from urllib.parse import urlsplit

from fastapi import FastAPI
from starlette.middleware.cors import CORSMiddleware

from whet.errors import OptionError
from whet.server.http.tensors import HEADER_LENGTH

ANY = "*"
_PORTS = {"http": 80, "https": 443}
_MAX_AGE_S = 600  # for which a browser may cache the answer to a preflight request


def origin(given: str) -> str:
    """Return an origin as browsers write it: in lower case, without the scheme's default port.

    Raises:
        OptionError: It is no origin, for example because a path follows the host.
    """
    if given == ANY:
        return given
    try:
        parts = urlsplit(given)
        port, host = parts.port, parts.hostname
    except ValueError:
        port, host = None, None
    rest = host and (parts.path or parts.query or parts.fragment or "@" in parts.netloc)
    if not host or rest or not parts.scheme or ANY in host:
        raise OptionError(f"--cors-origin {given}: an origin is SCHEME://HOST or SCHEME://HOST:PORT, or * for all")
    name = f"[{host}]" if ":" in host else host
    return f"{parts.scheme}://{name}" + ("" if port in (None, _PORTS.get(parts.scheme)) else f":{port}")


def allow_origins(app: FastAPI, origins: tuple[str, ...]) -> None:
    """Let pages of these origins read the answers. Credentials such as cookies are allowed for named origins only.

    A preflight request carries no API key and is answered here. The request itself is checked like any other.

    Args:
        app: The application, whose other middleware is there already.
        origins: As `origin` returns them; with none, nothing changes.
    """
    if not origins:
        return
    app.add_middleware(
        CORSMiddleware,
        allow_origins=[ANY] if ANY in origins else list(origins),
        allow_methods=["GET", "POST"],
        allow_headers=["*"],
        allow_credentials=ANY not in origins,
        expose_headers=["Retry-After", HEADER_LENGTH],
        max_age=_MAX_AGE_S,
    )
