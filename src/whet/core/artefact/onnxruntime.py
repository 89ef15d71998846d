"""Run ONNX models with ONNX Runtime on the CPU: model.onnx, and model.onnx.data beside it where weights are large.

Only this module imports ONNX Runtime.
"""

import shutil
import tempfile
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor

from whet.core.artefact.ranges import finds_ranges_in_onnx
from whet.core.artefact.runtime import Manifest, Runtime
from whet.errors import ArtefactError, MissingExtra, TargetError, foreign, reason

FILE = "model.onnx"
DATA = "model.onnx.data"

_REJECTED = frozenset({"NotImplemented", "InvalidGraph"})  # ONNX Runtime's errors for whole files that it does not run

_QUIET = 3  # errors only: the rest is for those who make models


class Folder:
    """Hold a temporary directory with an ONNX model. It is deleted when the last reference is released."""

    def __init__(self) -> None:
        self.path = Path(tempfile.mkdtemp(prefix="whet-onnx-"))
        weakref.finalize(self, shutil.rmtree, self.path, ignore_errors=True)

    @property
    def model(self) -> Path:
        return self.path / FILE

    @property
    def is_large(self) -> bool:
        """Return whether the weights lie in a file of their own."""
        return (self.path / DATA).exists()


class ONNXRuntime(Runtime):
    """Run an ONNX model in a permanent or a temporary directory."""

    NAME = "onnxruntime"

    def __init__(self, place: Path | Folder) -> None:
        self._place = place  # holds on to a temporary one
        self._directory = place.path if isinstance(place, Folder) else place
        self._session: Any = None
        self._names: list[str] = []

    def run(self, tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
        if self._session is None:
            self._start()
        feeds = {name: x.detach().contiguous().numpy() for name, x in zip(self._names, tensors, strict=True)}
        return tuple(torch.from_numpy(y) for y in self._session.run(None, feeds))

    def write(self, directory: Path) -> None:
        for name in (FILE, DATA):
            if (self._directory / name).exists():
                shutil.copyfile(self._directory / name, directory / name)

    @property
    def ranges_per_call(self) -> bool:
        return finds_ranges_in_onnx(self._directory / FILE)

    @classmethod
    def read(cls, directory: Path, manifest: Manifest) -> Self:
        """Read and prepare, on as many threads as torch has now."""
        import_onnxruntime()
        runtime = cls(directory)
        path = directory / FILE
        try:
            runtime._start()
        except Exception as error:  # the errors of ONNX Runtime have no base of their own
            if type(error).__name__ in _REJECTED:
                raise ArtefactError(
                    f"ONNX Runtime cannot run {path} here: {reason(error)}; apply the recipe again with `whet apply` "
                    "on this machine"
                ) from error
            raise ArtefactError(f"{path} is damaged: {reason(error)}; write it again with `whet apply`") from error
        return runtime

    def check(self) -> None:
        """Raise TargetError where ONNX Runtime rejects the graph, which it loads here without what makes it fast."""
        options = import_onnxruntime().GraphOptimizationLevel
        with foreign(TargetError, "ONNX Runtime rejects the graph that torch.onnx made of the model"):
            self._new_session(options.ORT_DISABLE_ALL)

    def _new_session(self, level: Any = None) -> Any:
        onnxruntime = import_onnxruntime()
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()
        options.log_severity_level = _QUIET
        if level is not None:
            options.graph_optimization_level = level
        path = str(self._directory / FILE)
        return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])

    def _start(self) -> None:
        self._session = self._new_session()
        self._names = [value.name for value in self._session.get_inputs()]


def import_onnxruntime() -> Any:
    """Return the onnxruntime package, or raise MissingExtra where it is not installed."""
    try:
        import onnxruntime
    except ImportError as error:
        raise MissingExtra("onnxruntime", "onnx", "an ONNX model") from error
    return onnxruntime
