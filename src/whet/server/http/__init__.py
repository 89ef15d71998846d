"""A server that OpenAI's clients can talk to."""

from whet.errors import MissingExtra

# Here, once: every module below needs them, and this one is imported before any of them.
try:
    import fastapi
    import prometheus_client
    import uvicorn
except ImportError as error:
    raise MissingExtra(error.name or "fastapi", "serve", "whet serve") from error

__all__ = ["fastapi", "prometheus_client", "uvicorn"]
