"""Let web pages of other origins send requests from a browser (CORS)."""

from typing import Any

from fastapi import FastAPI
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp

from whet.server.http.errors import HEADER_LENGTH
from whet.ui.network import ANY_ORIGIN

_MAX_AGE_S = 600  # for which a browser may cache the answer to a preflight request


def allow_origins(app: FastAPI, origins: tuple[str, ...]) -> None:
    """Let pages of these origins read the answers. Credentials such as cookies are allowed for named origins only.

    A preflight request carries no API key and is answered here. The request itself is checked like any other.

    Args:
        app: The application, whose other middleware is there already.
        origins: As `origin` returns them; with none, nothing changes.
    """
    if origins:
        app.add_middleware(CORSMiddleware, **_options(origins))


def with_origins(app: ASGIApp, origins: tuple[str, ...]) -> ASGIApp:
    """Return an ASGI application that is not FastAPI's, with the same done around it."""
    return CORSMiddleware(app, **_options(origins)) if origins else app


def _options(origins: tuple[str, ...]) -> dict[str, Any]:
    return {
        "allow_origins": [ANY_ORIGIN] if ANY_ORIGIN in origins else list(origins),
        "allow_methods": ["GET", "POST"],
        "allow_headers": ["*"],
        "allow_credentials": ANY_ORIGIN not in origins,
        "expose_headers": ["Retry-After", HEADER_LENGTH],
        "max_age": _MAX_AGE_S,
    }
