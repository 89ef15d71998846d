"""Connect to the storage of a study, and say in one line what is wrong with it, without its password."""

import functools
import re
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

import optuna
from optuna.exceptions import StorageInternalError
from optuna.storages import RDBStorage
from pydantic import ValidationError
from sqlalchemy import make_url
from sqlalchemy.exc import ArgumentError, SQLAlchemyError

from whet.errors import OutputError, StudyError, reason
from whet.tuner.command import without_password

_ANSWER_S = 10  # seconds that a database server may take to accept a connection
_WITH_TIMEOUT = ("psycopg", "psycopg2", "mysqldb", "pymysql")  # drivers that take connect_timeout
_FAILURES = (SQLAlchemyError, StorageInternalError, ValidationError)
UNUSABLE = (*_FAILURES, OutputError, RuntimeError, ImportError, ValueError, AssertionError, KeyError)
"""What opening a storage may raise."""

P = ParamSpec("P")
T = TypeVar("T")


class _Stored(Protocol):
    storage: str


S = TypeVar("S", bound=_Stored)


def telling(method: Callable[Concatenate[S, P], T]) -> Callable[Concatenate[S, P], T]:
    """Wrap a method of an object with a `storage` so that it raises StudyError where that fails or holds no record."""

    @functools.wraps(method)
    def told(self: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return method(self, *args, **kwargs)
        except _FAILURES as error:
            raise storage_error(self.storage, error) from error

    return told


def connected(storage: str) -> RDBStorage:
    """Return the storage with this URL. A server has 10 seconds to answer."""
    return RDBStorage(storage, engine_kwargs=_engine_options(storage))


def _engine_options(storage: str) -> dict[str, Any]:
    url = make_url(storage)
    if url.get_backend_name() == "sqlite":
        return {}
    options: dict[str, Any] = {"pool_pre_ping": True}  # a connection that the server has closed is opened again
    _, _, driver = url.drivername.partition("+")
    if (driver or "psycopg2") in _WITH_TIMEOUT and "connect_timeout" not in url.query:
        options["connect_args"] = {"connect_timeout": _ANSWER_S}
    return options


def study_names(storage: str) -> list[str]:
    """Return the names of the studies that a storage holds, and leave no connection open."""
    found = connected(storage)
    try:
        return optuna.get_all_study_names(found)
    finally:
        found.remove_session()
        found.engine.dispose()


def storage_error(storage: str, error: Exception) -> StudyError:
    """Return the error that says why a storage cannot be used, and what to do."""
    cause = error.__cause__ if isinstance(error, StorageInternalError | ImportError) and error.__cause__ else error
    why = _without_secret(storage, reason(cause).removesuffix("."))
    remedy = _remedy(storage, why, is_driver=isinstance(cause, ImportError))
    return StudyError(f"the study {without_password(storage)} cannot be used ({why}); {remedy}")


def _without_secret(storage: str, text: str) -> str:
    """Return a text without the password of a storage. Where the URL cannot be read, its error may quote any of it."""
    try:
        password = make_url(storage).password
    except ArgumentError:
        return text
    except ValueError:  # as of int(): its message has what stands in the port's place
        return "its port is no number"
    return re.sub(re.escape(str(password)), "***", text) if password else text


def _remedy(storage: str, why: str, *, is_driver: bool) -> str:
    if storage.startswith("sqlite:"):
        if any(word in why for word in ("unable to open", "readonly", "locked", "full", "cannot be written")):
            return "there must be room for it, and no other program may hold it; file and directory must be writable"
        return "remove it to start anew"
    if is_driver and storage.startswith("postgresql"):
        return "the URL must be one whose driver is installed: pip install 'psycopg[binary]' for postgresql+psycopg://"
    return (
        "the URL must be one that SQLAlchemy knows, with its server up and its driver installed, and that server must "
        "accept the user and the password"
    )
