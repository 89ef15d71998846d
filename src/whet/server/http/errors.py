"""Answer failed requests in the form that OpenAI's clients read: {"error": {"message", "type", "param", "code"}}.

Source: platform.openai.com/docs/guides/error-codes; openai-python maps statuses to its exception classes.
"""

import json
import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError
from starlette.exceptions import HTTPException

from whet.errors import EngineClosed, QueueFull, RequestError

_log = logging.getLogger("whet.server")

_TYPES = {
    401: "authentication_error",
    404: "not_found_error",
    429: "rate_limit_error",
    500: "server_error",
    503: "service_unavailable_error",
}
_RETRY_S = 1
_TYPE_NAME = re.compile(r".*[\[(-].*|str|int|float|bool|none", re.DOTALL)  # as pydantic names the types of a union
INFERENCE = "/v2"  # where the paths of the Open Inference Protocol begin
HEADER_LENGTH = "Inference-Header-Content-Length"  # its header, for bodies with bytes behind their JSON


class ApiError(HTTPException):
    """Signal a request that failed, to be answered in OpenAI's form.

    `param` is the field of the request that is wrong; `code` is a fixed word that programs can test for.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(status, message, headers=headers)
        self.param = param
        self.code = code

    def content(self) -> dict[str, object]:
        """Return the body of the answer."""
        error = {
            "message": self.detail,
            "type": _TYPES.get(self.status_code, "invalid_request_error"),
            "param": self.param,
            "code": self.code,
        }
        return {"error": error}

    def response(self, path: str = "") -> Response:
        """Return the answer. Its JSON is escaped to ASCII: a message may quote a lone surrogate, which UTF-8 lacks.

        Paths of the Open Inference Protocol have errors of its shape: {"error": message}.
        """
        is_inference = path == INFERENCE or path.startswith(f"{INFERENCE}/")
        content = json.dumps({"error": self.detail} if is_inference else self.content()).encode()
        return Response(content, self.status_code, self.headers, media_type="application/json")


def invalid(message: str, param: str | None = None, code: str | None = None) -> ApiError:
    """Return the error for a request that is wrong (400)."""
    return ApiError(400, message, param=param, code=code)


def unavailable(message: str) -> ApiError:
    """Return the error for a server that is loading, overloaded or shutting down (503)."""
    return ApiError(503, message, code="unavailable", headers={"Retry-After": str(_RETRY_S)})


def failed(message: str) -> ApiError:
    """Return the error for an engine that failed (500)."""
    return ApiError(500, message, code="engine_error")


@contextmanager
def as_api_errors() -> Iterator[None]:
    """Turn every RequestError raised in the block into an ApiError: 429 for a full queue, 503 at the end, else 400."""
    try:
        yield
    except QueueFull as error:
        headers = {"Retry-After": str(_RETRY_S)}
        raise ApiError(429, str(error), code="queue_full", headers=headers) from error
    except EngineClosed as error:
        raise unavailable(str(error)) from error
    except RequestError as error:
        raise invalid(str(error), error.param, error.code) from error


def install_handlers(app: FastAPI) -> None:
    """Answer all errors in OpenAI's form: those of routes, unknown paths and methods, and unexpected exceptions."""

    @app.exception_handler(HTTPException)
    async def of_http(request: Request, error: HTTPException) -> Response:
        if not isinstance(error, ApiError):
            error = _named(request, error)
        return error.response(request.url.path)

    @app.exception_handler(RequestValidationError)
    async def of_fields(request: Request, error: RequestValidationError) -> Response:
        return of_field(error.errors()).response(request.url.path)

    @app.exception_handler(Exception)
    async def of_anything(request: Request, error: Exception) -> Response:
        _log.error("%s %s failed", request.method, request.url.path, exc_info=error)
        message = "the server failed on this request; its log says where"
        headers = {"Connection": "close"}  # as uvicorn does after it
        return ApiError(500, message, headers=headers).response(request.url.path)


def _named(request: Request, error: HTTPException) -> ApiError:
    """Return an error that FastAPI itself raised, with a message of our own."""
    path = request.url.path
    message = str(error.detail)
    if error.status_code == 404:
        message = f"there is no path {path}; GET /openapi.json lists all paths"
    elif error.status_code == 405:
        message = f"{path} does not take {request.method}; GET /openapi.json lists the methods of each path"
    elif error.status_code == 400:
        message = "the body cannot be read as JSON"
    return ApiError(error.status_code, message, headers=error.headers)


def of_validation(error: ValidationError) -> ApiError:
    return of_field(error.errors(include_url=False, include_input=False))


def of_field(errors: Sequence[Mapping[str, object]]) -> ApiError:
    """Return the error for the first wrong field in pydantic's list of errors.

    A field that may have several types has an error for each. One that is not about the type, or lies within the value,
    is of the type that was sent.
    """
    paths = [_path(error.get("loc")) for error in errors]
    of_first = [error for error, path in zip(errors, paths, strict=True) if path[:1] == paths[0][:1]]
    deepest = max(of_first, key=lambda error: len(_path(error.get("loc"))))
    first = next((error for error in of_first if not str(error.get("type")).endswith("_type")), deepest)
    path, message = _path(first.get("loc")), str(first.get("msg"))
    if not path:
        return invalid(message, param=str(first.get("type")))  # an error of the whole body is named after the field
    return invalid(f"{'.'.join(path)}: {message}", param=path[0])


def _path(where: object) -> list[str]:
    """Return the names and places that lead to a value, without pydantic's names for the types of a field."""
    parts = [str(part) for part in where if part != "body"] if isinstance(where, (tuple, list)) else []
    return [part for place, part in enumerate(parts) if not (place and _TYPE_NAME.fullmatch(part))]
