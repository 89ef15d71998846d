"""Build the ASGI application: engines behind OpenAI's API, artefacts behind the Open Inference Protocol."""

from fastapi import FastAPI
from pydantic import BaseModel

from whet import __version__
from whet.server.engine import Engine
from whet.server.http import documented
from whet.server.http.cors import allow_origins
from whet.server.http.encoders import encoder_routes
from whet.server.http.errors import install_handlers
from whet.server.http.inference import inference_routes
from whet.server.http.lifecycle import Lifecycle
from whet.server.http.memory_routes import memory_routes
from whet.server.http.metrics import Metrics
from whet.server.http.models import Models
from whet.server.http.page import page_routes
from whet.server.http.request_checks import RequestChecks
from whet.server.http.request_parsing import KINDS
from whet.server.http.routes import completion_routes, state_routes, token_routes
from whet.server.http.service import Service
from whet.server.http.settings import Settings
from whet.server.http.tensors import InferenceRequest
from whet.server.http.text_requests import EmbeddingRequest, RerankRequest


def make_app(served: Engine | Models, settings: Settings, lifecycle: Lifecycle) -> FastAPI:
    """Build the application. It takes requests once the lifecycle is ready.

    FastAPI's interactive documentation pages are off, since they load scripts from other servers.
    """
    app = FastAPI(title="whet serve", version=__version__, docs_url=None, redoc_url=None)
    models = served if isinstance(served, Models) else Models({settings.served_names: served})
    service = Service(models, settings, lifecycle)
    app.state.intake = service.intake
    metrics = Metrics({one.model_name: one.engine for one in service.engines}, models.artefacts)
    routers = [
        completion_routes(service),
        token_routes(service),
        state_routes(service, metrics),
        memory_routes(service),
    ]
    for router in (*routers, inference_routes(models, lifecycle), encoder_routes(models, lifecycle), page_routes()):
        app.include_router(router)
    install_handlers(app)
    described = app.openapi()
    kinds: tuple[type[BaseModel], ...] = (*KINDS.values(), InferenceRequest, EmbeddingRequest, RerankRequest)
    described["components"]["schemas"].update(documented.schemas(*kinds))
    app.add_middleware(RequestChecks, settings=settings, lifecycle=lifecycle)
    allow_origins(app, settings.cors_origins)
    return app
