"""Compiling the kernels: what is missing or broken is one clear message, and what is there is not compiled again."""

import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from whet.errors import KernelsError, OptionError
from whet.kernels import build, dispatch
from whet.kernels.build import Isa, library, supported

Compiler = Callable[[str], Path]
SMALL = """
#define EXPORT extern "C" __attribute__((visibility("default")))
EXPORT void whet_set_threads(int) {}
EXPORT void whet_use_openmp(void*) {}
"""


@pytest.fixture(autouse=True)
def fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A cache directory of its own, and nothing remembered from before or afterwards."""
    cached = (build.library, build._compiler, build._compiler_version, dispatch.kernels)
    monkeypatch.setenv("WHET_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("WHET_KERNELS", raising=False)
    monkeypatch.delenv("CXX", raising=False)
    for function in cached:
        function.cache_clear()
    yield
    for function in cached:
        function.cache_clear()


@pytest.fixture
def compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Compiler:
    """Puts a script in the compiler's place; it counts its runs in the file that is returned."""

    def put(script: str) -> Path:
        path, runs = tmp_path / "compiler", tmp_path / "runs"
        runs.touch()
        path.write_text(f"#!/bin/sh\nif [ $1 = --version ]; then echo one; exit; fi\necho run >> {runs}\n{script}\n")
        path.chmod(0o755)
        monkeypatch.setenv("CXX", str(path))
        return runs

    return put


@pytest.fixture
def small(tmp_path: Path) -> str:
    """A script that makes a small library in a moment, where a compiler is asked to."""
    source, made = tmp_path / "small.cpp", tmp_path / "small.so"
    source.write_text(SMALL)
    subprocess.run(["c++", "-shared", "-fPIC", str(source), "-o", str(made)], check=True)
    return f'while [ "$1" != -o ]; do shift; done; cp {made} "$2"'


def files(tmp_path: Path) -> list[Path]:
    """What was kept, but for the locks."""
    return [path for path in (tmp_path / "cache").rglob("*") if path.is_file() and path.suffix != ".lock"]


def test_without_a_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(KernelsError, match=r"need a C\+\+ compiler, and none of c\+\+, g\+\+, clang\+\+ is installed"):
        library()
    monkeypatch.setenv("CXX", "/no/such/compiler")
    with pytest.raises(KernelsError, match="none of /no/such/compiler is installed"):
        library()


def test_operators_say_once_that_they_run_in_torch(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("WHET_KERNELS", "off")
    with caplog.at_level(logging.WARNING, "whet.kernels"):
        assert dispatch.kernels() is None
        assert dispatch.kernels() is None
    (record,) = caplog.records
    assert "run in torch, many times slower than its own kernels: WHET_KERNELS=off" in record.getMessage()


@pytest.mark.parametrize(
    ("script", "message"),
    [
        (
            "echo notes; echo file.cpp:1: error: boom >&2; echo more >&2; exit 1",
            "compiler: file.cpp:1: error: boom; name another compiler",
        ),
        ("echo out of memory >&2; exit 4", "compiler: out of memory; name another compiler"),
        ("exit 1", r"could not be compiled with .*compiler"),
        ("exit 0", "could not be compiled"),
    ],
)
def test_a_broken_compiler(compiler: Compiler, tmp_path: Path, script: str, message: str) -> None:
    compiler(script)
    with pytest.raises(KernelsError, match=message):
        library()
    assert files(tmp_path) == []


def test_what_is_compiled_is_found_again(compiler: Compiler, small: str, tmp_path: Path) -> None:
    runs = compiler(small)
    first = library()
    assert library() is first
    library.cache_clear()
    assert library().isa == first.isa
    assert runs.read_text().split() == ["run"]
    (path,) = files(tmp_path)
    assert path.parent.name == "kernels" and path.name.startswith(first.isa)


def test_another_compiler_or_source_makes_another_library(
    compiler: Compiler, small: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = compiler(small)
    library()
    monkeypatch.setattr(build, "_compiler_version", lambda: "two")
    library.cache_clear()
    library()
    sources = tmp_path / "sources"
    sources.mkdir()
    (sources / "library.cpp").write_text("// changed")
    monkeypatch.setattr(build, "_DIRECTORY", sources)
    library.cache_clear()
    library()
    assert len(runs.read_text().split()) == len(files(tmp_path)) == 3


@pytest.mark.parametrize("damage", ["cut", "emptied", "overwritten"])
def test_a_damaged_library_is_compiled_again(compiler: Compiler, small: str, tmp_path: Path, damage: str) -> None:
    """In a process of its own: one that loads a library that was cut off ends by a signal."""
    runs = compiler(small)
    library()
    (path,) = files(tmp_path)
    whole = path.read_bytes()
    path.unlink()  # what is loaded stays mapped
    path.write_bytes({"cut": whole[: len(whole) // 2], "emptied": b"", "overwritten": b"x" * len(whole)}[damage])
    code = "from whet.kernels.build import library; library().set_threads(1)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert len(runs.read_text().split()) == 2
    assert path.read_bytes() == whole


def test_a_library_that_cannot_be_loaded_at_all(compiler: Compiler, tmp_path: Path) -> None:
    compiler('while [ "$1" != -o ]; do shift; done; echo nonsense > "$2"')
    with pytest.raises(KernelsError, match="the compiled kernels cannot be loaded"):
        library()


def test_a_cache_that_cannot_be_written(compiler: Compiler, small: str, tmp_path: Path) -> None:
    compiler(small)
    (tmp_path / "cache").write_text("a file, not a directory")
    with pytest.raises(KernelsError, match="cannot be kept"):
        library()


def test_two_processes_at_once(compiler: Compiler, small: str, tmp_path: Path) -> None:
    compiler(f"sleep 0.2\n{small}")
    code = "from whet.kernels.build import library; library().set_threads(1); print('fine')"
    processes = [
        subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    for process in processes:
        out, err = process.communicate()
        assert out == "fine\n", err
    assert len(files(tmp_path)) == 1


def test_the_environment_chooses_the_build(compiler: Compiler, small: str, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler(small)
    for isa in supported():
        monkeypatch.setenv("WHET_KERNELS", isa)
        library.cache_clear()
        assert library().isa is isa
    monkeypatch.setenv("WHET_KERNELS", "")
    library.cache_clear()
    assert library().isa is supported()[0]
    assert library(Isa.PORTABLE).isa is Isa.PORTABLE


def test_the_environment_names_no_build(compiler: Compiler, small: str, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler(small)
    monkeypatch.setenv("WHET_KERNELS", "off")
    with pytest.raises(KernelsError, match="WHET_KERNELS=off turns"):
        library()
    monkeypatch.setenv("WHET_KERNELS", "sse9")
    with pytest.raises(OptionError, match="WHET_KERNELS=sse9: write avx512, avx512_vnni, avx2, portable or off"):
        library()
    monkeypatch.setattr(build, "instruction_sets", lambda _: ("avx2", "avx512", "avx512_vnni"))
    assert supported() == (Isa.AVX512_VNNI, Isa.AVX2, Isa.PORTABLE), "processors before bfloat16"
    monkeypatch.setattr(build, "instruction_sets", lambda _: ("avx2",))
    assert supported() == (Isa.AVX2, Isa.PORTABLE)
    monkeypatch.setenv("WHET_KERNELS", "avx512")
    with pytest.raises(OptionError, match="this processor cannot run it; it can: avx2, portable"):
        library()
    monkeypatch.delenv("WHET_KERNELS")
    assert library().isa is Isa.AVX2


def test_the_real_compiler_is_used_with_the_flags_of_the_build(compiler: Compiler, small: str, tmp_path: Path) -> None:
    log = tmp_path / "arguments"
    compiler(f'echo "$@" > {log}\n{small}')
    library(Isa.PORTABLE)
    arguments = log.read_text().split()
    assert "-DWHET_ISA=0" in arguments and not any(argument.startswith("-mavx") for argument in arguments)
    assert os.fspath(build._DIRECTORY / "library.cpp") in arguments


def test_sigterm_leaves_no_compiler_and_no_directory(tmp_path: Path, compiler: Compiler) -> None:
    """A compiler's driver runs the compiler proper as a child, which outlives the driver unless it is ended too."""
    runs = compiler('sleep 100 & echo $! > "$0.child"; wait')
    child = Path(f"{runs.parent / 'compiler'}.child")
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    code = "from whet.kernels.build import library; library()"
    process = subprocess.Popen([sys.executable, "-c", code], env={**os.environ, "TMPDIR": str(scratch)})
    deadline = time.monotonic() + 30
    while not (child.exists() and child.read_text()) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert len(list(scratch.iterdir())) == 1
    process.terminate()
    assert process.wait(20) == 128 + signal.SIGTERM
    assert list(scratch.iterdir()) == []
    number = int(child.read_text())
    while _is_alive(number) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not _is_alive(number)


def _is_alive(number: int) -> bool:
    """Whether the process runs; one that nobody has waited for yet does not."""
    try:
        return Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
