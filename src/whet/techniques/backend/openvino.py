"""Run the whole model in OpenVINO's CPU runtime, in int8, bfloat16 or float32.

What            The module's graph goes to OpenVINO, which fuses it, chooses a memory layout per layer and compiles it
                for the chip. NNCF quantises to int8 on the calibration batches: weights per channel, activations per
                tensor. Sizes that never vary are fixed before compiling.
When it helps   Nearly always on x86 with small batches: nothing is dispatched between layers, and int8 and bf16 run on
                matrix units.
When it hurts   Graphs with operators that OpenVINO must emulate; models whose input shapes change at every call.
Numerics        f32: within 1e-4 relative. bf16: 8 bits of mantissa. int8: 256 levels per tensor. `smooth_quant` moves
                outliers from activations into weights. `keep` leaves that many of the most sensitive layers in floating
                point.
Composes        After every structure technique; alone in its groups (precision, backend).
Source          openvino.convert_model, nncf.quantize (OpenVINO and NNCF documentation).
"""

import warnings
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, Literal

import torch
from torch import nn

from whet.core.artefact.openvino import OpenVINORuntime, Settings, import_openvino, openvino_type, said
from whet.core.workload import ExaminedWorkload
from whet.errors import OptionError, TargetError, foreign, how_to_install
from whet.measure.machine import Limits, Machine, describe
from whet.profiling.model import Profile
from whet.profiling.model.diagnosis import speedup_bound
from whet.techniques.quantisation import openvino_int8
from whet.techniques.quantisation.quantisable import branch_refusal
from whet.techniques.rewriting import torch_semantics
from whet.techniques.rewriting.graph import cleaned
from whet.techniques.rewriting.integer_ranges import conditions_for_int32
from whet.techniques.rewriting.low_precision import bfloat16_refusal
from whet.techniques.technique import (
    BACKEND,
    PRECISION,
    Applicability,
    Applies,
    Candidate,
    NotApplicable,
    Stage,
    Technique,
)

_DTYPES = {"int8": "int8", "bf16": "bfloat16", "f32": "float32"}
_BYTES = {"int8": 1, "bf16": 2, "f32": 4}


@dataclass(frozen=True, kw_only=True)
class Options:
    """Hold the options of openvino. All but `precision` apply to int8 only.

    Attributes:
        precision: What most layers compute in: "int8", "bf16" or "f32".
        preset: "mixed" gives activations a zero point, which costs time. "performance" does not.
        ranges: How the range of an activation is found from the batches: "mean" or "extreme" of their minima and
            maxima, "quantile" (0.01 % cut off at each end) or "histogram" (least rounding error).
        smooth_quant: Whether outliers of activations are moved into the weights.
        keep: How many of the layers that int8 hurts most stay in floating point.
        rest: What all other operators compute in: "bf16" or "f32". "" is bf16 where the chip has it. With bf16, the
            matrix products inside attention are not quantised either.
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
    return _DTYPES[options.precision]


def check(examined: ExaminedWorkload, machine: Machine, options: Options) -> Applicability:
    """Check that the packages are installed, the model is on the CPU, and the chip computes in the precision."""
    if examined.device_type != "cpu":
        return NotApplicable("the model is not on the CPU, where this backend runs")
    if find_spec("openvino") is None:
        return NotApplicable(f"openvino is not installed: {how_to_install('openvino')}")
    if "bf16" in (options.precision, options.rest) and (why := bfloat16_refusal(examined, machine)):
        return NotApplicable(why)
    if options.precision != "int8":
        if options.smooth_quant or options.keep or options.rest:
            return NotApplicable(f"smooth_quant, keep and rest belong to int8, not to {options.precision}")
        return Applies(f"the whole graph, in {options.precision}")
    if why := branch_refusal(examined):
        return NotApplicable(why)
    if find_spec("nncf") is None:
        return NotApplicable(f"nncf, which int8 needs, is not installed: {how_to_install('openvino')}")
    if options.smooth_quant and not _has_inner_linear(examined.workload.model):
        return NotApplicable("smooth_quant pays only with two or more linear layers, and the model has one at most")
    num_batches = len(examined.workload.calibration)
    return Applies(f"the whole graph, in int8 calibrated on {num_batches} batch{'es' * (num_batches > 1)}")


def predict(profile: Profile, limits: Limits, options: Options) -> float:
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
    """Return the candidate compiled by OpenVINO.

    Raises:
        TargetError: OpenVINO cannot convert or quantise the model.
    """
    exported = torch_semantics.export(candidate.module, candidate.examined, OpenVINORuntime.NAME)
    batches = [*candidate.examined.flat_inputs, *candidate.examined.flat_calibration]
    conditions = conditions_for_int32(cleaned(exported), batches, "OpenVINO")
    model = convert(candidate, exported)
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
    return candidate.with_runtime(OpenVINORuntime(model, settings, conditions), *notes)


def _tuned_shapes(examined: ExaminedWorkload) -> tuple[tuple[int, ...], ...] | None:
    """Return the input shapes of a model with free dimensions, or None where the batches have different shapes."""
    found = {tuple(tuple(x.shape) for x in batch) for batch in examined.flat_inputs}
    return found.pop() if examined.signature.is_dynamic and len(found) == 1 else None


def _float_precision(options: Options, examined: ExaminedWorkload) -> Literal["f32", "bf16"]:
    """Return what the operators that are not in int8 compute in."""
    asked = options.rest if options.precision == "int8" else options.precision
    if not asked:
        return "f32" if bfloat16_refusal(examined, describe()) else "bf16"
    return "bf16" if asked == "bf16" else "f32"


def convert(candidate: Candidate, exported: torch.export.ExportedProgram) -> Any:
    """Return torch.export's graph of the candidate's module as an OpenVINO model.

    OpenVINO's own tracing is never used: it records one path through the code and drops every branch.

    Raises:
        TargetError: OpenVINO cannot convert the graph.
    """
    openvino = import_openvino()
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")  # tracers warn about each other's deprecations
        with foreign(TargetError, "OpenVINO cannot convert the model", words=said):
            model = _with_all_inputs(openvino.convert_model(exported), exported)
            _fix_shapes(model, candidate.examined)
    return model


def _with_all_inputs(model: Any, exported: torch.export.ExportedProgram) -> Any:
    """Return the model with the inputs that it does not read, which OpenVINO's converter leaves out."""
    openvino = import_openvino()
    read = {name: port.get_node() for port in model.inputs for name in port.get_names()}
    names = exported.graph_signature.user_inputs
    if set(names) <= read.keys() or not set(read) <= set(names):
        return model
    shapes = {node.name: node.meta["val"] for node in exported.graph_module.graph.nodes if node.name in set(names)}
    ports = [
        read.get(name)
        or openvino.opset13.parameter([-1] * shapes[name].dim(), openvino_type(shapes[name].dtype), name=name)
        for name in names
    ]
    return openvino.Model(model.get_results(), ports, model.get_friendly_name())


def _has_inner_linear(model: nn.Module) -> bool:
    """Return whether the model has more than one linear layer. Hugging Face's Conv1D counts as one."""
    return (
        sum(isinstance(m, nn.Linear | nn.MultiheadAttention) or type(m).__name__ == "Conv1D" for m in model.modules())
        > 1
    )


def halve_weights(model: Any) -> None:
    """Store floating-point weights as float16, in place. That halves the file, and is 3 bits finer than bfloat16.

    OpenVINO converts them when it compiles, to the dtype that it computes in. int8 weights stay as they are.
    """
    import_openvino()._offline_transformations.compress_model_transformation(model)  # as openvino.save_model does


def _fix_shapes(model: Any, examined: ExaminedWorkload) -> None:
    """Fix every dimension of the inputs that never varies.

    Raises:
        TargetError: The graph and the model differ in their numbers of inputs or outputs.
    """
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
    space={
        "precision": ("int8", "bf16", "f32"),
        "preset": ("performance", "mixed"),
        "smooth_quant": (False, True),
        "keep": (0, 4, 12),
    },
    groups=frozenset({PRECISION, BACKEND}),
    dtype_of=dtype_of,
)
