"""Find what a model's forward does beside computing with tensors, by watching it run.

A graph of a model holds its operators and nothing else. It loses what the Python code around them does: printing,
waiting, counting, reading a clock or a file. A variant that is faster for that reason is not a faster model.
"""

import builtins
import datetime
import io
import os
import random
import socket
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import CodeType, FrameType, ModuleType
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from whet.measure.clock import no_collection
from whet.measure.load import thread_delay_s
from whet.measure.source_location import Line, is_standard, is_torch, user_line, who_asked
from whet.measure.state import State, changes, random_states, state_of

_CLOCKS = frozenset({
    "time", "time_ns", "perf_counter", "perf_counter_ns", "monotonic", "monotonic_ns", "process_time",
    "process_time_ns", "thread_time", "thread_time_ns", "clock_gettime", "clock_gettime_ns", "localtime", "gmtime",
})  # fmt: skip
_TODAY = frozenset({"now", "utcnow", "today"})
_OPENS = frozenset({"open", "open_code"})
_FILES = frozenset({
    "read", "write", "pread", "pwrite", "sendfile", "remove", "unlink", "rename", "replace", "mkdir", "rmdir", "link",
    "symlink", "truncate", "listdir", "scandir",
})  # fmt: skip
_PROCESSES = frozenset({"fork", "forkpty", "fork_exec", "posix_spawn", "posix_spawnp", "system", "execv", "execve"})
_READS = frozenset({"read", "read1", "readline", "readlines", "readinto", "readall"})
_WRITES = frozenset({"write", "writelines"})
_NETWORK = frozenset({
    "connect", "connect_ex", "bind", "accept", "_accept", "send", "sendall", "sendto", "sendmsg", "recv", "recv_into",
    "recvfrom", "recvmsg", "getaddrinfo", "gethostbyname", "gethostbyaddr",
})  # fmt: skip
_RANDOM = frozenset({"random", "getrandbits", "seed", "setstate", "urandom"})
_NAMES = (
    _CLOCKS | _TODAY | _OPENS | _FILES | _PROCESSES | _READS | _WRITES | _NETWORK | _RANDOM
    | {"print", "input", "sleep"}
)  # fmt: skip

_PYTHON_FUNCTIONS = {
    torch.save.__code__: "writes a file (torch.save)",
    torch.load.__code__: "reads a file (torch.load)",
}

# Outside operators a call may take this long, and this long more for each operator; Python's overhead is 5 to 30 us
# an operator.
_FREE_S = 1e-3
_FREE_PER_OPERATOR_S = 2e-4
_TIMED_CALLS = 5


@dataclass(frozen=True)
class Effect:
    """Describe something that forward does and that a graph would leave out; `what` is a verb with its object."""

    what: str
    where: Line | None = None

    def __str__(self) -> str:
        return f"{self.what} in {self.where}" if self.where is not None else self.what


def find_effects(model: nn.Module, call: Callable[[], Any], other: Callable[[], Any]) -> list[Effect]:
    """Find what forward does beside its operators.

    The model must have been called before, so that caches are filled and warnings given. Effects inside torch's own
    functions do not count, and neither do Python's warnings.

    Args:
        model: The model, whose state is compared between calls.
        call: Calls the model, each time with the same inputs.
        other: Calls the model with other inputs.
    """
    with (
        no_collection(),
        torch.no_grad(),
    ):  # a collection would run other libraries' callbacks, which are not the model's
        return _found(model, call, other)


def _found(model: nn.Module, call: Callable[[], Any], other: Callable[[], Any]) -> list[Effect]:
    first = _Watch(model)
    first.run(call)
    other()
    second = _Watch(model)
    second.run(call)
    found = [*second.named(), *second.drawn()]
    if changed := changes(first.state, second.state):
        names = list(dict.fromkeys(name.partition("[")[0].removesuffix(" (size)") for name in changed))
        shown = ", ".join(names[:3]) + ", ..." * (len(names) > 3)
        found.append(Effect(f"changes state that the next call finds ({shown})"))
    if (slow := _time_outside(call, second)) is not None:
        found.append(slow)
    return found


class _Watch:
    """Watches one call through Python's profile function."""

    def __init__(self, model: nn.Module) -> None:
        self.state: State = {}
        self.seconds: dict[str, float] = {}  # by C function
        self._model = model
        self._found: dict[str, Line] = {}
        self._codes: dict[CodeType, dict[str, Any]] = {}  # what ran -> its globals
        self._free: dict[str, Any] = {}  # variables of enclosing functions, as they were first met
        self._began: list[tuple[Any, float]] = []
        self._drawn: list[str] = []

    def run(self, call: Callable[[], Any]) -> None:
        """Make the call, and compare the state after it with the state before."""
        kept = random.getstate()
        numpy = sys.modules.get("numpy")
        kept_by_numpy = numpy.random.get_state() if numpy is not None else None
        random.seed(0x5EED)  # a state that no seed in forward would leave
        if numpy is not None:
            numpy.random.seed(0x5EED)
        before = random_states()
        others = sys.getprofile()
        sys.setprofile(self._see)
        try:
            call()
        finally:
            sys.setprofile(others)
            self._drawn = [name for name, state in random_states().items() if before.get(name, state) != state]
            random.setstate(kept)
            if numpy is not None:
                numpy.random.set_state(kept_by_numpy)
        self.state = state_of(self._model, {**self._globals(), **self._free})

    def named(self) -> list[Effect]:
        return [Effect(what, line) for what, line in self._found.items()]

    def drawn(self) -> list[Effect]:
        """Return the random number generators whose state changed although no use of them was seen."""
        seen = "".join(self._found)
        return [Effect(f"draws {name}") for name in self._drawn if name not in seen]

    def _see(self, frame: FrameType, event: str, arg: Any) -> None:
        if event == "c_call":
            self._began.append((arg, time.perf_counter()))
            if arg.__name__ in _NAMES and (what := _what(arg)):
                self._note(what, frame)
        elif event in ("c_return", "c_exception"):
            if self._began and self._began[-1][0] is arg:
                _, began = self._began.pop()
                if not _is_of_torch(arg):
                    self.seconds[arg.__qualname__] = (
                        self.seconds.get(arg.__qualname__, 0.0) + time.perf_counter() - began
                    )
        elif event == "call" and frame.f_code not in self._codes:
            self._enter(frame)

    def _enter(self, frame: FrameType) -> None:
        code = frame.f_code
        self._codes[code] = frame.f_globals
        if (what := _PYTHON_FUNCTIONS.get(code)) and frame.f_back is not None:
            self._note(what, frame.f_back)
        if code.co_freevars and not (is_torch(code.co_filename) or is_standard(code.co_filename)):
            values = frame.f_locals
            for name in code.co_freevars:
                if name in values and name not in ("self", "__class__"):
                    self._free.setdefault(f"{name} of {code.co_name}", values[name])

    def _note(self, what: str, frame: FrameType) -> None:
        is_users, through = who_asked(frame)
        if not is_users or "warnings" in through:
            return
        if "logging" in through:
            if what != _PRINTS and not what.startswith("writes"):
                return
            what = "writes a log"
        self._found.setdefault(what, user_line(frame))

    def _globals(self) -> dict[str, Any]:
        """Return the global variables that the user's functions name, including constants of libraries."""
        found = {}
        for code, variables in self._codes.items():
            if is_torch(code.co_filename) or is_standard(code.co_filename):
                continue
            for name in code.co_names:
                if name in variables and not isinstance(variables[name], nn.Module):
                    found[f"{variables.get('__name__', '')}.{name}"] = variables[name]
        return found


_PRINTS = "prints"


def _what(function: Any) -> str:
    """Return in words what a C function does that no graph would do, or "" for a harmless function."""
    owner, name = getattr(function, "__self__", None), function.__name__
    if isinstance(owner, ModuleType):
        return _what_of_module(owner.__name__, name)
    if isinstance(owner, io.IOBase) and name in _READS | _WRITES:
        if isinstance(owner, io.StringIO | io.BytesIO):
            return ""
        if owner in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__):
            return _PRINTS
        return "writes a file" if name in _WRITES else "reads a file"
    if isinstance(owner, random.Random) and name in _RANDOM:
        return f"draws Python's random numbers ({type(owner).__name__}.{name})"
    if isinstance(owner, type) and issubclass(owner, datetime.date) and name in _TODAY:
        return f"reads the clock ({owner.__name__}.{name})"
    if isinstance(owner, socket.socket.__base__ or socket.socket) and name in _NETWORK:
        return f"uses the network ({name})"
    return ""


def _what_of_module(module: str, name: str) -> str:
    if module == builtins.__name__ and name in ("print", "input"):
        return _PRINTS if name == "print" else "asks for input"
    if module == "time" and name in _CLOCKS | {"sleep"}:
        return "waits (time.sleep)" if name == "sleep" else f"reads the clock (time.{name})"
    if module in ("builtins", "io", "_io") and name in _OPENS:
        return f"opens a file ({name})"
    if module == os.name and name in _OPENS | _FILES:
        return f"uses files (os.{name})"
    if module in (os.name, "_posixsubprocess") and name in _PROCESSES:
        return f"starts a process ({name})"
    if module == os.name and name == "urandom":
        return "draws random numbers of the system (os.urandom)"
    return f"uses the network ({name})" if module == "_socket" and name in _NETWORK else ""


def _is_of_torch(function: Any) -> bool:
    owner = getattr(function, "__self__", None)
    names = (function.__module__, getattr(owner, "__module__", None), getattr(owner, "__name__", None))
    return isinstance(owner, torch.Tensor) or any(isinstance(n, str) and n.split(".")[0] == "torch" for n in names)


@dataclass
class _Operators(TorchDispatchMode):
    """Adds up the time that operators take."""

    seconds: float = 0.0
    count: int = 0
    takes_graphs: bool = False  # whether one was torch.cond or another that takes functions
    supports_higher_order_operators: bool = field(default=True)

    def __post_init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def __torch_dispatch__(self, func: Any, types: Sequence[type], args: Any = (), kwargs: Any = None) -> Any:
        began = time.perf_counter()
        try:
            return func(*args, **(kwargs or {}))
        finally:
            self.seconds += time.perf_counter() - began
            self.count += 1
            self.takes_graphs = self.takes_graphs or isinstance(func, torch._ops.HigherOrderOperator)


def _time_outside(call: Callable[[], Any], watch: _Watch) -> Effect | None:
    """Return the time of a call outside operators as an effect, if it is far more than Python's overhead.

    The least of several calls counts: each of them contains what the model itself waits for, while other processes
    disturb only some. Time that the thread waited for a core does not count.
    """
    least, total = float("inf"), 0.0
    for _ in range(_TIMED_CALLS):
        operators = _Operators()
        began, waited_s = time.perf_counter(), thread_delay_s()
        with operators:
            call()
        seconds = time.perf_counter() - began - (thread_delay_s() - waited_s)
        outside = seconds - operators.seconds
        if operators.takes_graphs:
            torch._dynamo.reset()  # else the next torch.cond outside of the watching fails (torch 2.13)
            return None  # torch compiles what it is given, and nobody knows how much of the time that was
        if outside < least:
            least, total = outside, seconds
        if least <= max(_FREE_S + _FREE_PER_OPERATOR_S * operators.count, total / 2):
            return None
    name, longest = max(watch.seconds.items(), key=lambda entry: entry[1], default=("", 0.0))
    where = f", most of it in {name}" if longest > least / 2 else ""
    return Effect(f"spends {least * 1e3:.3g} of {total * 1e3:.3g} ms outside operators{where}")
