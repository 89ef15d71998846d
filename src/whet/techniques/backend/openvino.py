"""Run the whole model in OpenVINO's CPU runtime, in int8, bfloat16 or float32.

What            The module's graph goes to OpenVINO, which fuses it, picks a memory layout per layer and compiles it for
                the chip. int8 is quantised by NNCF on the calibration batches: weights per channel, activations per
                tensor. Shapes that never vary are fixed before compiling.
When it helps   Nearly always on x86 at small batches: no dispatch between layers, and int8 or bf16 matrix units.
When it hurts   Graphs with operators it must emulate; models whose shapes change at every call.
Numerics        f32: within 1e-4 relative. bf16: 8 bits of mantissa. int8: 256 levels a tensor; `smooth_quant` moves
                outliers from activations into weights, `keep` leaves that many of the most sensitive layers out.
Composes        After every structure technique; it owns precision and backend.
Source          openvino.convert_model, nncf.quantize (OpenVINO and NNCF documentation).
"""

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, Literal

import torch
from torch import nn

from whet.artefact import program
from whet.artefact.openvino import OpenVINORuntime, Settings, import_openvino, said
from whet.errors import OptionError, TargetError, foreign
from whet.machine import Limits, Machine, describe
from whet.profiler import Profile
from whet.profiler.diagnosis import speedup_bound
from whet.quantisation import openvino_int8
from whet.quantisation.quantisable import branch_refusal
from whet.rewriting.low_precision import bfloat16_refusal
from whet.technique import BACKEND, PRECISION, Applicability, Applies, Candidate, NotApplicable, Stage, Technique
from whet.workload import ExaminedWorkload

_SPACE: Mapping[str, tuple[Any, ...]] = {
    "precision": ("int8", "bf16", "f32"),
    "preset": ("performance", "mixed"),
    "smooth_quant": (False, True),
    "keep": (0, 4, 12),
}

_DTYPES = {"int8": "int8", "bf16": "bfloat16", "f32": "float32"}
_BYTES = {"int8": 1, "bf16": 2, "f32": 4}


@dataclass(frozen=True, kw_only=True)
class Options:
    """precision: what most layers compute in.

    Of int8 alone: preset: "mixed" gives activations a zero point, which costs time, "performance" does not. ranges: how
    an activation's range is read from the batches: "mean" or "extreme" of their minima and maxima, "quantile" (0.01 %
    cut off at each end) or "histogram" (least rounding error). smooth_quant: move outliers of activations into the
    weights. keep: so many of the layers that int8 hurts most stay in floating point. rest: what all that is not int8
    computes in, "bf16" or "f32"; "" is bf16 where the chip has it. With bf16, attention's own products are left to it.
    """

    precision: str = "int8"
    preset: str = "performance"
    ranges: str = "mean"
    smooth_quant: bool = False
    keep: int = 0
    rest: str = ""

    def __post_init__(self) -> None:
        allowed = {
            "precision": tuple(_DTYPES),
            "preset": openvino_int8.PRESETS,
            "ranges": openvino_int8.RANGES,
            "rest": ("", "bf16", "f32"),
        }
        for name, values in allowed.items():
            if getattr(self, name) not in values:
                choices = ", ".join(repr(v) for v in values)
                raise OptionError(f"openvino: {name} must be one of {choices}, not {getattr(self, name)!r}")
        if self.keep < 0:
            raise OptionError(f"openvino: keep must be 0 or more layers, not {self.keep}")


def dtype_of(options: Options) -> str:
    """The dtype that most arithmetic runs in."""
    return _DTYPES[options.precision]


def check(examined: ExaminedWorkload, machine: Machine, options: Options) -> Applicability:
    """Applies where the packages are installed, the model is on the CPU, and the chip computes in the precision."""
    if examined.device_type != "cpu":
        return NotApplicable("the model is not on the CPU, where this backend runs")
    if find_spec("openvino") is None:
        return NotApplicable("openvino is not installed: pip install 'whet[openvino]'")
    if "bf16" in (options.precision, options.rest) and (why := bfloat16_refusal(examined, machine)):
        return NotApplicable(why)
    if options.precision != "int8":
        if options.smooth_quant or options.keep or options.rest:
            return NotApplicable(f"smooth_quant, keep and rest belong to int8, not to {options.precision}")
        return Applies(f"the whole graph, in {options.precision}")
    if why := branch_refusal(examined):
        return NotApplicable(why)
    if find_spec("nncf") is None:
        return NotApplicable("nncf, which int8 needs, is not installed: pip install 'whet[openvino]'")
    if options.smooth_quant and not _has_inner_linear(examined.workload.model):
        return NotApplicable(
            "smooth_quant is for linear layers in the midst of a model, and this one has a last one at most"
        )
    num_batches = len(examined.workload.calibration)
    return Applies(f"the whole graph, in int8 calibrated on {num_batches} batch{'es' * (num_batches > 1)}")


def predict(profile: Profile, limits: Limits, options: Options) -> float:
    """At most, every layer reaches the machine's limit in the precision, and nothing is spent between layers."""
    scale = _BYTES[options.precision] / 4
    return speedup_bound(
        profile,
        limits,
        dtype=dtype_of(options),
        weight_scale=scale,
        activation_scale=scale,
        removes_overhead=True,
    )


def apply(candidate: Candidate, options: Options) -> Candidate:
    """The candidate compiled by OpenVINO. Raises TargetError where OpenVINO cannot take the model."""
    model = convert(candidate)
    notes: list[str] = []
    precision = _float_precision(options, candidate.examined)
    if options.precision == "int8":
        model, notes = openvino_int8.quantize(
            model,
            candidate.examined.flat_calibration,
            preset=options.preset,
            ranges=options.ranges,
            smooth_quant=options.smooth_quant,
            keep=options.keep,
            quantizes_attention=precision == "f32",
        )
    if options.precision != "f32":
        halve_weights(model)
    settings = Settings(precision=precision, shapes=_tuned_shapes(candidate.examined))
    return candidate.with_runtime(OpenVINORuntime(model, settings), *notes)


def _tuned_shapes(examined: ExaminedWorkload) -> tuple[tuple[int, ...], ...] | None:
    """Return the shapes of the inputs of a model with free dimensions; None where the batches differ in them."""
    found = {tuple(tuple(x.shape) for x in batch) for batch in examined.flat_inputs}
    return found.pop() if examined.signature.is_dynamic and len(found) == 1 else None


def _float_precision(options: Options, examined: ExaminedWorkload) -> Literal["f32", "bf16"]:
    """What all that is not int8 computes in."""
    asked = options.rest if options.precision == "int8" else options.precision
    if not asked:
        return "f32" if bfloat16_refusal(examined, describe()) else "bf16"
    return "bf16" if asked == "bf16" else "f32"


def convert(candidate: Candidate) -> Any:
    """The candidate's module as an OpenVINO model, from torch.export's graph.

    Raises TargetError where there is no such graph or OpenVINO cannot take it. OpenVINO can also trace a model by
    itself, but that records one path through the code and drops every branch: it is never used.
    """
    openvino = import_openvino()
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")  # tracers warn about each other's deprecations
        exported = program.export(candidate.module, candidate.examined)
        with foreign(TargetError, "OpenVINO cannot convert the model", words=said):
            model = openvino.convert_model(exported)
            _fix_shapes(model, candidate.examined)
    return model


def _has_inner_linear(model: nn.Module) -> bool:
    """More than one linear layer; Hugging Face's Conv1D is one too."""
    return (
        sum(isinstance(m, nn.Linear | nn.MultiheadAttention) or type(m).__name__ == "Conv1D" for m in model.modules())
        > 1
    )


def halve_weights(model: Any) -> None:
    """Keep floating-point weights as float16, in place: half the size on disk, and 3 bits finer than bfloat16.

    The compiler turns them into what it computes in. int8 weights stay as they are.
    """
    import_openvino()._offline_transformations.compress_model_transformation(model)  # as openvino.save_model does


def _fix_shapes(model: Any, examined: ExaminedWorkload) -> None:
    """Set every dimension that never varies. Raises TargetError where the graph lost or gained an input or output."""
    arguments, num_outputs = examined.signature.inputs, len(examined.outputs[0])
    if (len(model.inputs), len(model.outputs)) != (len(arguments), num_outputs):
        raise TargetError(
            f"its graph has {len(model.inputs)} inputs and {len(model.outputs)} outputs, "
            f"the model {len(arguments)} and {num_outputs}"
        )
    openvino = import_openvino()
    shapes = ([-1 if size is None else size for size in argument.shape] for argument in arguments)
    model.reshape({port: openvino.PartialShape(shape) for port, shape in zip(model.inputs, shapes, strict=True)})


TECHNIQUE = Technique(
    name="openvino",
    stage=Stage.BACKEND,
    order=20,
    card=__doc__,
    options=Options,
    check=check,
    predict=predict,
    apply=apply,
    space=_SPACE,
    groups=frozenset({PRECISION, BACKEND}),
    dtype_of=dtype_of,
)
