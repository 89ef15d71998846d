"""Run the whole model in ONNX Runtime, in int8 or float32.

What            The module's graph becomes an ONNX model, which ONNX Runtime fuses and runs. ONNX Runtime's own
                quantiser makes int8: `static` takes the ranges from the calibration batches; `dynamic` finds them at
                each call, for linear layers only. Weights are signed, with a scale per channel; activations are
                unsigned.
When it helps   Small batches on CPUs with VNNI or dot-product instructions; machines without OpenVINO.
When it hurts   Large float32 products, which torch computes just as fast; graphs full of operators that stay in
                float32.
Numerics        f32: within 1e-4 relative. int8: 256 levels per tensor; static also rounds the sums of residual
                connections.
Composes        After every structure technique; alone in its groups (precision, backend).
Source          torch.onnx.export; onnxruntime.quantization (ONNX Runtime's documentation).
"""

from dataclasses import dataclass
from importlib.util import find_spec

from whet.core.artefact.onnxruntime import ONNXRuntime
from whet.core.workload import ExaminedWorkload
from whet.errors import OptionError, how_to_install
from whet.measure.machine import Limits, Machine
from whet.profiling.model import Profile
from whet.profiling.model.diagnosis import speedup_bound
from whet.techniques.quantisation import onnx_int8
from whet.techniques.quantisation.quantisable import branch_refusal
from whet.techniques.rewriting import onnx_graph
from whet.techniques.technique import (
    BACKEND,
    PRECISION,
    Applicability,
    Applies,
    Candidate,
    NotApplicable,
    OptionSpace,
    Stage,
    Technique,
)

_SPACE: OptionSpace = {"precision": ("int8", "f32"), "mode": ("static", "dynamic")}

_DTYPES = {"int8": "int8", "f32": "float32"}
_PACKAGES = ("onnxruntime", "onnx", "onnxscript")


@dataclass(frozen=True, kw_only=True)
class Options:
    """Hold the options of onnxruntime.

    Attributes:
        precision: What most layers compute in: "int8" or "f32".
        mode: How int8 finds the ranges of activations: "static" takes them from the calibration batches, "dynamic"
            finds them at each call.
    """

    precision: str = "int8"
    mode: str = "static"

    def __post_init__(self) -> None:
        for name, values in _SPACE.items():
            if getattr(self, name) not in values:
                choices = ", ".join(repr(v) for v in values)
                raise OptionError(f"onnxruntime: {name} must be one of {choices}, not {getattr(self, name)!r}")


def dtype_of(options: Options) -> str:
    return _DTYPES[options.precision]


def check(examined: ExaminedWorkload, machine: Machine, options: Options) -> Applicability:
    """Check that the packages are installed, and that the model is on the CPU and takes no 16-bit floats."""
    if examined.device_type != "cpu":
        return NotApplicable("the model is not on the CPU, where this backend runs")
    missing = [name for name in _PACKAGES if find_spec(name) is None]
    if missing:
        verb = "is" if len(missing) == 1 else "are"
        return NotApplicable(f"{' and '.join(missing)} {verb} not installed: {how_to_install('onnx')}")
    if any(tensor.dtype.is_floating_point and tensor.dtype.itemsize == 2 for tensor in examined.flat_inputs[0]):
        return NotApplicable("the model takes 16-bit floats; ONNX Runtime's CPU kernels are for float32 and int8")
    if options.precision != "int8":
        if options.mode != _SPACE["mode"][0]:
            return NotApplicable("mode belongs to int8; leave it out with precision=f32")
        return Applies("the whole graph, in f32")
    if why := branch_refusal(examined):
        return NotApplicable(why)
    if options.mode == "dynamic":
        kinds = [type(module).__name__ for module in examined.workload.model.modules()]
        num_linear = sum(kind in ("Linear", "Conv1D", "MultiheadAttention") for kind in kinds)
        if num_linear < 2:
            return NotApplicable("dynamic int8 pays only with two or more linear layers, and the model has one at most")
        return Applies(f"{num_linear} linear layers, in int8 with ranges found at each call")
    num_batches = len(examined.workload.calibration)
    return Applies(f"the whole graph, in int8 calibrated on {num_batches} batch{'es' * (num_batches > 1)}")


def predict(profile: Profile, limits: Limits, options: Options) -> float:
    """Return the highest possible speedup. Dynamic int8 reads and writes activations in float32."""
    scale = 0.25 if options.precision == "int8" else 1.0
    return speedup_bound(
        profile,
        limits,
        dtype=dtype_of(options),
        weight_scale=scale,
        activation_scale=1.0 if options.mode == "dynamic" else scale,
        removes_overhead=True,
    )


def apply(candidate: Candidate, options: Options) -> Candidate:
    """Return the candidate as an ONNX model that ONNX Runtime runs.

    Raises:
        TargetError: The model cannot be exported or quantised, or ONNX Runtime rejects the export.
    """
    folder = onnx_graph.export(candidate)
    if options.precision == "int8":
        folder = onnx_int8.quantize(folder, candidate.examined.flat_calibration, options.mode)
    runtime = ONNXRuntime(folder)
    runtime.check()
    return candidate.with_runtime(runtime)


TECHNIQUE = Technique(
    name="onnxruntime",
    stage=Stage.BACKEND,
    order=30,
    card=__doc__,
    options=Options,
    check=check,
    predict=predict,
    apply=apply,
    space=_SPACE,
    groups=frozenset({PRECISION, BACKEND}),
    dtype_of=dtype_of,
)
