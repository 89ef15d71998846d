"""Run OpenVINO models on the CPU: openvino_model.xml, openvino_model.bin, and the settings to compile them with.

Only this module imports OpenVINO. Small inputs are copied once, and large inputs are read from torch's memory. Outputs
are copied once, into tensors that belong to the caller.
"""

import functools
import logging
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, Self

import numpy as np
import torch
from pydantic import BaseModel, ValidationError
from torch import Tensor

from whet.core.artefact.runtime import Manifest, Runtime
from whet.errors import ArtefactError, MissingExtra, reason

FILE = "openvino_model.xml"  # the weights lie beside it, in openvino_model.bin

_COPIED_BYTES = 2**20  # and less, of an input; the copy takes 0.1 ms at most

_LOG = logging.getLogger("whet")
_UNSET = object()

# OpenVINO type name -> torch dtype
_DTYPES = {
    "boolean": torch.bool,
    "u8": torch.uint8,
    "i8": torch.int8,
    "i16": torch.int16,
    "i32": torch.int32,
    "i64": torch.int64,
    "f16": torch.float16,
    "bf16": torch.bfloat16,
    "f32": torch.float32,
    "f64": torch.float64,
}


class Settings(BaseModel, frozen=True, extra="forbid"):
    """Hold the settings that the model is compiled with.

    Attributes:
        precision: The type that floating-point layers compute in. The graph itself marks int8 layers.
        shapes: The shapes of the inputs that a model with free dimensions was tuned with. It is compiled for these
            shapes first, since code for known sizes may be far faster, and for any shape once another one occurs.
    """

    precision: Literal["f32", "bf16"] = "f32"
    shapes: tuple[tuple[int, ...], ...] | None = None


class OpenVINORuntime(Runtime):
    """Run a compiled OpenVINO model. It owns a single inference request, so only one thread at a time may use it."""

    NAME = "openvino"

    def __init__(self, model: Any, settings: Settings, conditions: Sequence[str] = ()) -> None:
        self._model = model
        self._conditions = list(conditions)
        self._settings = settings
        self._file: Path | None = None  # of a model that was loaded: once compiled, it need not stay in memory
        self._tuned: _Compiled | None = None  # for settings.shapes alone
        self._free: _Compiled | None = None

    def run(self, tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
        if self._settings.shapes is not None and tuple(tuple(x.shape) for x in tensors) == self._settings.shapes:
            if self._tuned is None:
                self._tuned = _Compiled(self._read(), self._settings, is_tuned=True)
            return self._tuned(tensors)
        if self._free is None:
            self._free = _Compiled(self._read(), self._settings)
        return self._free(tensors)

    def write(self, directory: Path) -> None:
        import_openvino().save_model(self._read(), directory / FILE, compress_to_fp16=False)

    def _read(self) -> Any:
        return self._model if self._file is None else core().read_model(self._file)

    @property
    def settings(self) -> dict[str, Any]:
        return self._settings.model_dump(mode="json", exclude_none=True)

    @property
    def conditions(self) -> list[str]:
        """Return the conditions under which no integer overflows. A loaded model's stand in its manifest."""
        return self._conditions

    @classmethod
    def read(cls, directory: Path, manifest: Manifest) -> Self:
        """Read and compile, on as many threads as torch has now."""
        path = directory / FILE
        try:
            settings = Settings.model_validate(manifest.settings)
            model = core().read_model(path)
        except (RuntimeError, ValidationError) as error:
            raise ArtefactError(f"{path} is damaged: {said(error)}; write it again with `whet apply`") from error
        runtime = cls(None, settings)
        runtime._file = path
        try:
            if settings.shapes is None:
                runtime._free = _Compiled(model, settings)
            else:
                runtime._tuned = _Compiled(model, settings, is_tuned=True)
        except RuntimeError as error:
            raise ArtefactError(
                f"OpenVINO cannot compile {path} here: {said(error)}; apply the recipe again with `whet apply` on this "
                "machine"
            ) from error
        return runtime


class _Compiled:
    """Hold the compiled model and its inference request; with `is_tuned`, it accepts settings.shapes alone."""

    def __init__(self, model: Any, settings: Settings, *, is_tuned: bool = False) -> None:
        self._openvino = import_openvino()
        if is_tuned and settings.shapes is not None:
            model = model.clone()
            shapes = (self._openvino.PartialShape(list(shape)) for shape in settings.shapes)
            model.reshape(dict(zip(model.inputs, shapes, strict=True)))
        compiled = core().compile_model(model, "CPU", properties(settings))
        _report_downgrade(compiled, settings)
        self._request = compiled.create_infer_request()
        # The request's own inputs, filled in each call: the array, and the dtype of the tensors that fill it.
        self._inputs: dict[int, tuple[Any, torch.dtype]] = {}
        self._dtypes = [_DTYPES[output.element_type.get_type_name()] for output in compiled.outputs]

    def __call__(self, tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
        request = self._request
        taken = [self._give(i, tensor) for i, tensor in enumerate(tensors)]
        request.infer(share_inputs=True, share_outputs=True)
        del taken  # not earlier: the request reads large inputs where they lie
        # Copies, as in torch: what a caller keeps must outlive the next call.
        return tuple(_copy(request.get_output_tensor(i), dtype) for i, dtype in enumerate(self._dtypes))

    def _give(self, i: int, tensor: Tensor) -> Any:
        """Make a tensor the request's input i, and return the array that must live until the call is over.

        A small tensor is copied into an array that is used for all calls. A new array would make OpenVINO walk over its
        graph (docs-gpt, 1 KB of input, 2 cores: 3.19 ms a call became 3.34).
        """
        given = _array(tensor)
        if given.nbytes > _COPIED_BYTES:
            large = np.ascontiguousarray(given)
            self._request.set_input_tensor(i, _share(large, tensor.dtype, self._openvino))
            self._inputs.pop(i, None)
            return large
        own, dtype = self._inputs.get(i, (None, None))
        if own is None or own.shape != given.shape or dtype is not tensor.dtype:
            own = np.empty_like(given, order="C")
            self._request.set_input_tensor(i, _share(own, tensor.dtype, self._openvino))
            self._inputs[i] = own, tensor.dtype
        np.copyto(own, given)
        return own


def properties(settings: Settings) -> dict[str, Any]:
    """Return the CPU plugin's options: one request at a time, lowest latency, torch's number of threads."""
    return {
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_PRECISION_HINT": settings.precision,
        "INFERENCE_NUM_THREADS": torch.get_num_threads(),
    }


def import_openvino() -> ModuleType:
    """Return the openvino package, imported without its telemetry, or raise MissingExtra where it is not installed."""
    try:
        with no_telemetry():
            import openvino
    except ImportError as error:
        raise MissingExtra("openvino", "openvino", "an OpenVINO model") from error
    return openvino


@functools.cache
def core() -> Any:
    """Return OpenVINO's Core. There is one for the whole process, and it is never deleted.

    The CPU plugin of each Core gives the thread that first uses it a stack for signal handlers, and frees that stack
    with the Core. If two Cores end in the order in which they began, the thread keeps a freed stack, and the next
    signal with a handler in Python, such as Ctrl-C, ends the process by SIGSEGV (seen with OpenVINO 2026.4.1).

    Raises:
        MissingExtra: OpenVINO is not installed.
    """
    return import_openvino().Core()


def openvino_type(dtype: torch.dtype) -> Any:
    return getattr(import_openvino().Type, next(name for name, found in _DTYPES.items() if found is dtype))


def said(error: Exception) -> str:
    """Return OpenVINO's message without the places in its source code that raised it."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    lines = [line for line in lines if not line.startswith(("Check ", "Exception from ", "FrontEnd API failed"))]
    details = [line.removeprefix("-- ") for line in lines if line.startswith("-- ")]
    return "; ".join(details) or "".join(lines[-1:]) or reason(error)


def share(tensor: Tensor, openvino: Any) -> Any:
    """Return an OpenVINO tensor on a torch tensor's memory. That tensor must be contiguous and outlive the result."""
    return _share(_array(tensor), tensor.dtype, openvino)


def _share(array: Any, dtype: torch.dtype, openvino: Any) -> Any:
    if dtype is torch.bfloat16:
        return openvino.Tensor(array, openvino.Shape(list(array.shape)), openvino.Type.bf16)
    return openvino.Tensor(array, shared_memory=True)


def _array(tensor: Tensor) -> Any:
    """Return a numpy array that shares a tensor's memory. bfloat16, which numpy lacks, becomes 16-bit integers."""
    if tensor.requires_grad:
        tensor = tensor.detach()
    return tensor.view(torch.int16).numpy() if tensor.dtype is torch.bfloat16 else tensor.numpy()


@contextmanager
def no_telemetry() -> Iterator[None]:
    """Prevent the telemetry of OpenVINO and NNCF that are imported inside this context.

    They then neither send anything nor write a client's id into $HOME/intel. Both treat a missing package
    openvino_telemetry as a refusal, and a present package without a consent file as consent. A module that the program
    imported before is not changed.
    """
    before = sys.modules.get("openvino_telemetry", _UNSET)
    sys.modules["openvino_telemetry"] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        if before is _UNSET:
            sys.modules.pop("openvino_telemetry", None)
        else:
            sys.modules["openvino_telemetry"] = before  # type: ignore[assignment]


def _copy(result: Any, dtype: torch.dtype) -> Tensor:
    """Copy an OpenVINO tensor's values into a torch tensor of its own.

    numpy copies them, on this thread. torch's clone would wake its OpenMP threads, which spin for milliseconds on the
    cores that OpenVINO's own threads need for the next call (BERT-base, 2 cores: 19.3 ms a call became 23.5).
    """
    if dtype is torch.bfloat16:
        return torch.from_numpy(result.data.view("int16").copy()).view(dtype)
    return torch.from_numpy(result.data.copy())


def _report_downgrade(compiled: Any, settings: Settings) -> None:
    used = compiled.get_property("INFERENCE_PRECISION_HINT").get_type_name()
    if used != settings.precision:
        _LOG.warning("OpenVINO computes in %s here, not in %s: the chip lacks it", used, settings.precision)
