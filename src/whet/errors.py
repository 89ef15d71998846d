"""Define the errors that a user can cause. Each message says what was wrong and what to do.

WhetError                     exit code 2
├── TargetError               the target cannot be found or used
│   ├── InputsError           the inputs do not fit the model
│   ├── ModelError            the model raises, hangs, returns NaN or is not deterministic
│   ├── TrainingTarget        the target is a training run, where a model to call is wanted
│   └── StreamTarget          the target is a stream of frames, where a model to call is wanted
├── OptionError               an option's value is out of its range
├── OperatorError             a custom operator does not do what its reference does
├── MissingExtra              an optional package is not installed
├── RanksError                one of several processes that compute together failed, or does not answer
├── OutputError               the output directory cannot be written, or would be overwritten
├── RecipeError               a recipe is damaged or does not fit
│   └── RecipeRefused         a recipe is for another model, or costs too much quality; exit code 3
├── ArtefactError             a saved artefact is damaged or was called with inputs that it does not take
├── CheckpointError           a training's checkpoint is damaged, is of a newer format, or does not fit
├── StudyError                a study file is damaged or belongs to another search
├── BaselineError             a baseline is damaged, missing, or of another machine; a git reference does not exist
├── TraceError                a trace file is damaged, or is of another kind
├── AuditError                an audit's settings, codes or baseline cannot be used
├── RequestError              a request cannot be served
│   ├── QueueFull             too many requests wait already; it may be sent again later
│   └── EngineClosed          the engine is ending, or has ended, and takes no more requests
└── MachineError              the machine cannot be read or measured
    └── KernelsError          whet's own kernels cannot be compiled or loaded here
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

DISTRIBUTION = "torch-whet"  # what pip installs; `whet` on the package index belongs to somebody else


class WhetError(Exception):
    """Report a mistake that the user can mend. The message says what was wrong and what to do."""


class TargetError(WhetError):
    """The target cannot be found or used."""


class InputsError(TargetError):
    """The inputs do not fit the model."""


class ModelError(TargetError):
    """The model raises an error, hangs, returns NaN or is not deterministic."""


class TrainingTarget(TargetError):
    """The target is a training run, where a model to call is wanted."""


class StreamTarget(TargetError):
    """The target is a stream of frames, where a model to call is wanted."""


class OptionError(WhetError):
    """An option's value is out of its range."""


class OperatorError(WhetError):
    """A custom operator does not do what its reference does."""


class OutputError(WhetError):
    """The output directory cannot be written, or would be overwritten."""


class RecipeError(WhetError):
    """A recipe is damaged, or does not fit what it is applied to."""


class RecipeRefused(RecipeError):
    """A recipe was made for another model, or costs more quality here than it allows. `force` applies it anyway."""


class ArtefactError(WhetError):
    """A saved artefact is damaged, or was called with inputs that it does not take."""


class CheckpointError(WhetError):
    """A training's checkpoint is damaged, is of a newer format, or does not fit the training that loads it."""


class RanksError(WhetError):
    """Another process of the same training or served model has failed, or does not answer.

    Attributes:
        is_told: Whether another process tells people about it, so that this one need not.
    """

    def __init__(self, message: str, *, is_told: bool = False) -> None:
        super().__init__(message)
        self.is_told = is_told


class StudyError(WhetError):
    """A study file is damaged, or belongs to another search."""


class TraceError(WhetError):
    """A trace file is damaged, or is of another kind."""


class AuditError(WhetError):
    """An audit's settings, codes or baseline cannot be used."""


class RequestError(WhetError):
    """A request cannot be served. The message says which part of it is at fault.

    Attributes:
        param: The field at fault, as named by OpenAI's API; None where it is no single field.
        code: A word for programs, as in OpenAI's API; None without one.
    """

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.param = param
        self.code = code


class QueueFull(RequestError):
    """Too many requests are waiting already. The same request may be sent again later."""


class EngineClosed(RequestError):
    """The engine is ending, or has ended, and takes no more requests."""


class BaselineError(WhetError):
    """A baseline is damaged, missing or of another machine, or a git reference does not exist."""


class MachineError(WhetError):
    """The machine cannot be read or measured."""


class KernelsError(MachineError):
    """whet's own kernels cannot be compiled or loaded here. torch does their work instead, slowly."""


class MissingExtra(WhetError):
    """An optional package is not installed."""

    def __init__(self, package: str, extra: str, purpose: str) -> None:
        super().__init__(f"{purpose} needs {package}, which is not installed: {how_to_install(extra)}")
        self.package = package
        self.extra = extra


def how_to_install(extra: str) -> str:
    """Return the commands that install one of whet's extras: from a package index, and in a clone of whet."""
    return f"pip install '{DISTRIBUTION}[{extra}]', or in a clone of whet: pip install '.[{extra}]'"


@contextmanager
def foreign(kind: type[WhetError], what: str, *, words: Callable[[Exception], str] | None = None) -> Iterator[None]:
    """Turn whatever another library raises inside the block into an error that says what could not be done.

    Errors of whet and MemoryError pass through unchanged.

    Args:
        what: What could not be done, as the beginning of the message.
        words: Returns what the library's error says; `reason`, if not given.
    """
    try:
        yield
    except (WhetError, MemoryError):
        raise
    except Exception as error:  # libraries raise errors of all kinds
        raise kind(f"{what}: {(words or reason)(error)}") from error


def is_out_of_memory(error: BaseException | None) -> bool:
    """Return whether an error says that memory ran out.

    It is Python's MemoryError, PyTorch's OutOfMemoryError on a GPU, or the RuntimeError of PyTorch's CPU allocator.
    """
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    return isinstance(error, RuntimeError) and "DefaultCPUAllocator: " in str(error)


def memory_shortage(message: str) -> str:
    """Return what the CPU's allocator was asked for, from its message; any other message as it is."""
    _, found, asked = message.partition("DefaultCPUAllocator: ")
    return asked.partition(". Error code")[0] if found else message


def reason(error: BaseException) -> str:
    """Return the first line of an exception's message, or the name of its type where it has no message."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


def named_reason(error: BaseException) -> str:
    """Return an exception's type and the first line of its message: "ValueError: no such size"."""
    return f"{type(error).__name__}: {reason(error)}"


def type_name(value: object) -> str:
    """Return the name of a value's type with its article: "an int", "a list"."""
    name = type(value).__name__
    return f"{'an' if name[0].lower() in 'aeiou' else 'a'} {name}"
