"""Find out which of the packages that whet and its extras need are installed, and which of them import.

Each package is imported in a child process, so that one that is broken, or that ends its process, is reported.
"""

import importlib.metadata
import json
import subprocess
import sys
import threading
from collections.abc import Iterable, Sequence
from typing import Any, Self

from packaging.requirements import Requirement
from pydantic import BaseModel

from whet.errors import DISTRIBUTION, reason

_LIMIT_S = 90.0  # for the imports of all packages together
_MODULES = {  # where a package's module has another name
    "scikit-learn": "sklearn",
    "torch-pruning": "torch_pruning",
    "nvidia-ml-py": "pynvml",
    "opencv-python-headless": "cv2",
    "pillow": "PIL",
    "markdown-it-py": "markdown_it",
    "mkdocs-material": "material",
}
_NOT_FOR_USE = frozenset({"all", "dev", "docs", "mutants"})  # extras for developers, and all extras together

EXTRAS = {
    "openvino": "the technique openvino, and saved models that run in OpenVINO",
    "onnx": "the technique onnxruntime, and saved models that run in ONNX Runtime",
    "hf": "targets hf:DIR (Hugging Face directories)",
    "examples": "the built-in targets digits-cnn, docs-encoder, docs-gpt and docs-ssm",
    "report": "the plots of whet tune's report and of whet bench --plot",
    "nvidia": "an NVIDIA GPU's load, clocks and energy",
    "monitor": "the page and the metrics of whet monitor",
    "serve": "whet serve, and whet bench-serve with a model",
    "ray": "whet serve --ray and whet tune --workers ray",
    "train": "whet train: tokenizers, TensorBoard, and the live page",
    "stream": "whet stream: videos, cameras, diffusers directories, the page",
    "compress": "the technique prune_channels",
    "lora": "whet train with a [lora] table: peft, and transformers",
}
"""Each extra, with what needs it."""

# Imports each module that is named, and prints a line before and after. Packages print what they like elsewhere.
# OpenVINO and NNCF take the absence of openvino_telemetry for a no: artefact.openvino.no_telemetry has the reasons.
_CHILD = """
import importlib, json, os, sys
lines = os.fdopen(os.dup(1), "w", buffering=1)
os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
sys.modules["openvino_telemetry"] = None
for name in sys.argv[1:]:
    lines.write(json.dumps([name, None]) + "\\n")
    try:
        importlib.import_module(name)
        problem = ""
    except BaseException as error:
        problem = f"{type(error).__name__}: {error}"
    lines.write(json.dumps([name, problem]) + "\\n")
"""


class Package(BaseModel):
    """Describe one package that whet can use.

    Attributes:
        name: The name that pip knows.
        wanted: The versions that whet works with, as ">=2.13"; "" for any.
        version: The version that is installed; "" for none.
        problem: Why it cannot be used; "" where it can.
    """

    name: str
    wanted: str = ""
    version: str = ""
    problem: str = ""

    @property
    def requirement(self) -> str:
        """Return what pip is given to install it."""
        return f"{self.name}{self.wanted}"


class Extra(BaseModel):
    """Describe one extra of whet.

    Attributes:
        name: The name between brackets in `pip install 'torch-whet[NAME]'`.
        gives: What needs it.
    """

    name: str
    gives: str
    packages: tuple[Package, ...]

    @property
    def unusable(self) -> tuple[Package, ...]:
        return tuple(package for package in self.packages if package.problem)


class ImportTrials:
    """Import modules in order in a child process, with one time limit for all. The child ends with the context."""

    def __init__(self, modules: Iterable[str], *, limit_s: float = _LIMIT_S) -> None:
        self._waiting = list(dict.fromkeys(modules))
        self._problems: dict[str, str] = {}
        self._begun = ""
        self._limit_s = limit_s
        self._is_late = False
        self._child: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        self._timer = threading.Timer(self._limit_s, self._end_late)
        self._timer.daemon = True
        self._timer.start()
        self._start()
        return self

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()
        if self._child is not None:
            self._child.kill()
            with self._child:  # waits for its end, and closes the pipe
                pass

    def problem(self, module: str) -> str:
        """Wait for a module, and return why it does not import; "" where it does."""
        while module not in self._problems:
            self._read()
        return self._problems[module]

    def _start(self) -> None:
        command = [sys.executable, "-c", _CHILD, *self._waiting]
        self._child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)

    def _read(self) -> None:
        """Take one line from the child. Where it has ended in the middle, note that and start another one."""
        assert self._child is not None
        assert self._child.stdout is not None
        line = self._child.stdout.readline()
        if line:
            name, problem = json.loads(line)
            self._begun = name
            if problem is not None:
                self._note(name, " ".join(problem.split()))
            return
        self._child.stdout.close()
        code = self._child.wait()
        if self._is_late:
            for name in list(self._waiting):
                self._note(name, f"was not imported within {self._limit_s:.0f} s")
            return
        ended = f"signal {-code}" if code < 0 else f"exit code {code}"
        self._note(self._begun or self._waiting[0], f"ends the process that imports it ({ended})")
        self._begun = ""
        self._start()

    def _note(self, name: str, problem: str) -> None:
        self._problems[name] = problem
        self._waiting.remove(name)

    def _end_late(self) -> None:
        self._is_late = True
        if self._child is not None:
            self._child.kill()


def requirements() -> tuple[list[Requirement], dict[str, list[Requirement]]]:
    """Return what whet itself needs, and what each extra needs, as its own metadata says.

    Raises:
        importlib.metadata.PackageNotFoundError: whet runs from its source and is not installed.
    """
    every = [Requirement(text) for text in importlib.metadata.requires(DISTRIBUTION) or ()]
    names = importlib.metadata.metadata(DISTRIBUTION).get_all("Provides-Extra") or []
    base = [one for one in every if one.marker is None or one.marker.evaluate({"extra": ""})]
    extras = {}
    for name in names:
        if name not in _NOT_FOR_USE:
            chosen = [one for one in every if one.marker is not None and one.marker.evaluate({"extra": name})]
            extras[name] = [one for one in chosen if one not in base]
    return base, extras


def module_of(package: str) -> str:
    """Return the name by which a package is imported."""
    return _MODULES.get(package, package.replace("-", "_"))


def installed(requirement: Requirement) -> Package:
    """Return a package as it is installed, before anybody has tried to import it."""
    known: dict[str, Any] = {"name": requirement.name, "wanted": str(requirement.specifier)}
    try:
        version = importlib.metadata.version(requirement.name)
    except importlib.metadata.PackageNotFoundError:
        return Package(**known, problem="not installed")
    except Exception as error:  # noqa: BLE001 - broken metadata raises whatever the parser stumbles over
        return Package(**known, problem=f"its metadata cannot be read: {reason(error)}")
    if not requirement.specifier.contains(version, prereleases=True):
        return Package(**known, version=version, problem=f"is {version}, and whet needs {requirement.specifier}")
    return Package(**known, version=version)


def checked(packages: Sequence[Package], trials: ImportTrials) -> tuple[Package, ...]:
    """Return packages with what is wrong with those that do not import."""
    return tuple(
        package
        if package.problem
        else package.model_copy(update={"problem": _does_not_import(trials.problem(module_of(package.name)))})
        for package in packages
    )


def _does_not_import(problem: str) -> str:
    return f"does not import: {problem}" if problem else ""
