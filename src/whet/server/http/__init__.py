"""Serve an engine over HTTP, with OpenAI's API."""

from whet.errors import MissingExtra

# Python imports this file before any module below it, and all of those need these packages. So one check is enough.
try:
    import fastapi
    import prometheus_client
    import uvicorn
except ImportError as error:
    raise MissingExtra(error.name or "fastapi", "serve", "whet serve") from error

__all__ = ["fastapi", "prometheus_client", "uvicorn"]
