"""Compile the kernels on first use with the machine's compiler, keep the library, and load it.

All kernels are one library, which has a build for each instruction set: AVX-512 with VNNI and bf16, AVX-512 with VNNI
alone, AVX2, or portable C++. The fastest one that this processor can run is taken; WHET_KERNELS=avx512, avx512_vnni,
avx2, portable or off overrules that.
"""

import contextlib
import ctypes
import fcntl
import functools
import hashlib
import logging
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import torch

from whet.errors import KernelsError, OptionError, OutputError
from whet.files import write_whole
from whet.kernels.prototypes import declare
from whet.measure.machine.cache import cache_dir
from whet.measure.machine.cpuinfo import instruction_sets, read_cpuinfo

_log = logging.getLogger("whet.kernels")

_DIRECTORY = Path(__file__).parent
_COMPILERS = ("c++", "g++", "clang++")
_FLAGS = (
    "-O3",
    "-std=c++17",
    "-ffp-contract=off",
    "-fno-math-errno",
    "-fvisibility=hidden",
    "-shared",
    "-fPIC",
    "-pthread",
    "-Wno-psabi",
)
_LONGEST_S = 300
_LOOK_S = 0.2  # how often signals are looked at meanwhile
_DIGEST_BYTES = 32
_OTHER_COMPILER = "name another compiler in CXX, or set WHET_KERNELS=off to do without them"
_NOT_KEPT = "whet's kernels cannot be kept: {}; name a directory that can be written in WHET_CACHE"


class Isa(StrEnum):
    """Name an instruction set that the kernels are compiled for."""

    AVX512 = "avx512"
    AVX512_VNNI = "avx512_vnni"
    AVX2 = "avx2"
    PORTABLE = "portable"


_VNNI = ("-DWHET_ISA=512", *(f"-mavx512{part}" for part in ("f", "bw", "vl", "dq", "vnni")), "-mfma")
_TARGETS = {
    Isa.AVX512: (*_VNNI, "-mavx512bf16"),
    Isa.AVX512_VNNI: _VNNI,
    Isa.AVX2: ("-DWHET_ISA=2", "-mavx2", "-mfma"),
    Isa.PORTABLE: ("-DWHET_ISA=0",),
}
_NEEDS = {
    Isa.AVX512: {"avx512", "avx512_vnni", "avx512_bf16"},
    Isa.AVX512_VNNI: {"avx512", "avx512_vnni"},
    Isa.AVX2: {"avx2"},
    Isa.PORTABLE: set[str](),
}


@dataclass(frozen=True)
class Library:
    """Hold compiled kernels. `name` is another one for other sources, compilers and instruction sets."""

    functions: ctypes.CDLL
    isa: Isa
    name: str = ""

    def set_threads(self, num_threads: int) -> None:
        """Set the number of threads of the kernels' own pool. A call that is running keeps its threads."""
        self.functions.whet_set_threads(num_threads)

    def use_openmp(self) -> None:
        """Have kernels that run between torch's operators run on torch's own threads, where these are OpenMP's."""
        self.functions.whet_use_openmp(_openmp())


_loaded: list[Library] = []


def supported() -> tuple[Isa, ...]:
    """The builds that this processor can run, fastest first."""
    has = set(instruction_sets(read_cpuinfo()))
    return tuple(isa for isa in Isa if _NEEDS[isa] <= has)


@functools.cache
def library(isa: Isa | None = None) -> Library:
    """Return the kernels for this processor, or those for one instruction set. They are compiled if need be.

    Raises:
        KernelsError: There is no compiler, or WHET_KERNELS is off.
        OptionError: WHET_KERNELS is not a known name.
    """
    wanted = isa or _wanted()
    path = _path(wanted)
    if not _is_whole(path):
        with _alone(path):
            if not _is_whole(path):  # another process may have compiled it meanwhile
                _compile(wanted, path)
    try:
        functions = ctypes.CDLL(str(path))
    except OSError as error:
        raise KernelsError(
            f"the compiled kernels cannot be loaded: {error}; delete {path}, and whet compiles them anew"
        ) from error
    declare(functions)
    loaded = Library(functions, wanted, path.stem)
    loaded.set_threads(torch.get_num_threads())
    loaded.use_openmp()
    _loaded.append(loaded)
    return loaded


def _openmp() -> ctypes.c_void_p:
    """Return the address of the function by which torch's OpenMP runs its threads; null where there is none."""
    try:
        return ctypes.cast(ctypes.CDLL(None).GOMP_parallel, ctypes.c_void_p)
    except (AttributeError, OSError):
        return ctypes.c_void_p(None)


def follow_torch() -> None:
    """Give the kernels that are loaded as many threads as torch has now."""
    for loaded in _loaded:
        loaded.set_threads(torch.get_num_threads())


def _wanted() -> Isa:
    named = os.environ.get("WHET_KERNELS", "")
    if named == "off":
        raise KernelsError("WHET_KERNELS=off turns whet's own kernels off; unset it to use them")
    if named:
        if named not in tuple(Isa):
            raise OptionError(f"WHET_KERNELS={named}: write {', '.join(Isa)} or off")
        if named not in supported():
            raise OptionError(f"WHET_KERNELS={named}: this processor cannot run it; it can: {', '.join(supported())}")
        return Isa(named)
    return supported()[0]


def _path(isa: Isa) -> Path:
    """Return the library's path. Its name depends on the sources, the compiler and the flags."""
    digest = hashlib.sha256(repr((_compiler_version(), _FLAGS, _TARGETS[isa], platform.machine())).encode())
    for source in sorted([*_DIRECTORY.rglob("*.h"), *_DIRECTORY.rglob("*.cpp")]):
        digest.update(str(source.relative_to(_DIRECTORY)).encode() + source.read_bytes())
    return cache_dir() / "kernels" / f"{isa}-{digest.hexdigest()[:16]}.so"


@functools.cache
def _compiler() -> str:
    names = (os.environ["CXX"],) if os.environ.get("CXX") else _COMPILERS
    found = next((path for name in names if (path := shutil.which(name))), None)
    if found is None:
        raise KernelsError(
            f"whet's own kernels need a C++ compiler, and none of {', '.join(names)} is installed: install "
            "one (Debian: apt install g++), or name one in CXX"
        )
    return found


@functools.cache
def _compiler_version() -> str:
    run = subprocess.run([_compiler(), "--version"], capture_output=True, text=True, check=False)
    return run.stdout


def try_compiler() -> tuple[str, str]:
    """Compile a line of C++ with the kernels' flags, and return the compiler's path and the first line of its version.

    Raises:
        KernelsError: There is no compiler, or it fails.
        OptionError: WHET_KERNELS is not a known name.
    """
    isa, compiler = _wanted(), _compiler()
    with tempfile.TemporaryDirectory(prefix="whet-kernels-") as scratch:
        source, target = Path(scratch) / "trial.cpp", Path(scratch) / "trial.so"
        source.write_text("#include <thread>\nint main() { return 0; }\n", encoding="ascii")
        _call_compiler([compiler, *_FLAGS, *_TARGETS[isa], str(source), "-o", str(target)])
    return compiler, next(iter(_compiler_version().splitlines()), "")


def _compile(isa: Isa, path: Path) -> None:
    _log.info("compiling whet's kernels for %s, once, which takes about half a minute", isa)
    with tempfile.TemporaryDirectory(prefix="whet-kernels-") as scratch:
        target = Path(scratch) / path.name
        command = [_compiler(), *_FLAGS, *_TARGETS[isa], str(_DIRECTORY / "library.cpp"), "-o", str(target)]
        _call_compiler(command)
        if not target.exists():
            raise KernelsError(f"whet's kernels could not be compiled: {command[0]} wrote nothing; {_OTHER_COMPILER}")
        built = target.read_bytes()
        try:
            write_whole(path, built + hashlib.sha256(built).digest())
        except OutputError as error:
            raise KernelsError(_NOT_KEPT.format(error)) from error


def _call_compiler(command: list[str]) -> None:
    """Run the compiler, and raise KernelsError with the first error that it prints where it fails."""
    try:
        returncode, said = _run(command)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise KernelsError(f"whet's kernels could not be compiled: {error}; {_OTHER_COMPILER}") from error
    if returncode:
        lines = [line for line in said.splitlines() if "error" in line] or said.splitlines() or ["?"]
        raise KernelsError(f"whet's kernels could not be compiled with {command[0]}: {lines[0]}; {_OTHER_COMPILER}")


def _run(command: list[str]) -> tuple[int, str]:
    """Run the compiler, and return its exit code and what it wrote to standard error.

    It and its child processes (cc1plus) are a process group, and an interrupted wait ends all of them. SIGTERM and
    SIGHUP raise SystemExit, so that unfinished files are removed.

    Raises:
        OSError: The compiler cannot be started.
        subprocess.TimeoutExpired: It takes too long.
    """
    pipe = subprocess.PIPE
    with (
        _noting_signals() as noted,
        subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, start_new_session=True) as process,
    ):
        try:
            return _waited(process, noted)
        except BaseException:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            raise


def _waited(process: subprocess.Popen[str], noted: list[int]) -> tuple[int, str]:
    deadline = time.monotonic() + _LONGEST_S
    while not noted:
        try:
            _, said = process.communicate(timeout=_LOOK_S)
        except subprocess.TimeoutExpired:
            if time.monotonic() > deadline:
                raise
        else:
            return process.returncode, said
    if noted[0] == signal.SIGINT:
        raise KeyboardInterrupt
    sys.exit(128 + noted[0])


@contextlib.contextmanager
def _noting_signals() -> Iterator[list[int]]:
    """Note the signals that would end the process, in a list that the caller looks at, rather than end it.

    An exception from a handler could come before the compiler's process is known, and leave it running. Nothing changes
    outside the main thread, nor for signals that the program handles itself.
    """
    noted: list[int] = []
    replaced = {}
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            if signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler):
                replaced[number] = signal.signal(number, lambda number, _frame: noted.append(number))
    try:
        yield noted
    finally:
        for number, handler in replaced.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def _alone(path: Path) -> Iterator[None]:
    """One process at a time compiles a library: two would take twice as long each."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = path.with_suffix(".lock").open("wb")
    except OSError as error:
        raise KernelsError(_NOT_KEPT.format(error)) from error
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _is_whole(path: Path) -> bool:
    """Return whether a library ends with its digest: loading a truncated one would end the process by a signal."""
    try:
        content = path.read_bytes()
    except OSError:
        return False
    return hashlib.sha256(content[:-_DIGEST_BYTES]).digest() == content[-_DIGEST_BYTES:]
