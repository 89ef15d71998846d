"""Build the ASGI application, which offers one engine through OpenAI's API."""

from fastapi import FastAPI

from whet import __version__
from whet.server.engine import Engine
from whet.server.http import documented
from whet.server.http.errors import install_handlers
from whet.server.http.lifecycle import Lifecycle
from whet.server.http.metrics import Metrics
from whet.server.http.page import page_routes
from whet.server.http.reading import KINDS
from whet.server.http.request_checks import RequestChecks
from whet.server.http.routes import completion_routes, state_routes, token_routes
from whet.server.http.service import Service
from whet.server.http.settings import Settings


def make_app(engine: Engine, settings: Settings, lifecycle: Lifecycle) -> FastAPI:
    """Build the application. It takes requests once the lifecycle is ready.

    FastAPI's interactive documentation pages are off, since they load scripts from other servers.
    """
    app = FastAPI(title="whet serve", version=__version__, docs_url=None, redoc_url=None)
    service = Service(engine, settings, lifecycle)
    app.state.intake = service.intake
    metrics = Metrics(engine, service.model_name)
    for router in (completion_routes(service), token_routes(service), state_routes(service, metrics), page_routes()):
        app.include_router(router)
    install_handlers(app)
    described = app.openapi()
    described["components"]["schemas"].update(documented.schemas(*KINDS.values()))
    app.add_middleware(RequestChecks, settings=settings, lifecycle=lifecycle)
    return app
