"""Run the whole model as one call of whet's own kernels, in int8, bfloat16 or float32.

What            The module's graph becomes a list of operations on memory that is planned ahead: linear layers with
                their activation and residual, norms, attention, embeddings. Weights are packed once, and a call runs
                all operations on one pool of threads. int8 has a scale for each output of the weights and, found at
                each call, for each row of activations.
When it helps   Transformer encoders on x86 with AVX-512 VNNI: nothing is dispatched between layers, and int8 products
                take a quarter of the instructions. Sizes may vary from call to call. Rows of padding are not computed
                where no output depends on them: those of classifiers, masked means, single places.
When it hurts   Convolutional networks, whose windows are copied into rows; chips without VNNI.
Numerics        f32: within 1e-4 relative. bf16: 8 bits of mantissa in linear layers. int8: 256 levels per row; nothing
                is calibrated. All else is in float32.
Composes        After every structure technique; alone in its groups (precision, backend).
Source          torch.export; Jacob et al., "Quantization and Training of Neural Networks for Efficient
                Integer-Arithmetic-Only Inference", 2018 (arXiv:1712.05877).
"""

from dataclasses import dataclass
from weakref import WeakKeyDictionary

import torch
from torch import fx

from whet.core.artefact import program
from whet.core.artefact.native.program import Padding
from whet.core.artefact.native.runtime import NativeRuntime
from whet.core.workload import ExaminedWorkload
from whet.core.workload.unseen import masked
from whet.errors import InputsError, KernelsError, OptionError, TargetError
from whet.kernels.build import library
from whet.measure.machine import Limits, Machine
from whet.profiling.model import Profile
from whet.profiling.model.diagnosis import speedup_bound
from whet.techniques.rewriting.attention_pattern import find_attention, fuse
from whet.techniques.rewriting.graph import Traced, verify
from whet.techniques.rewriting.low_precision import bfloat16_refusal
from whet.techniques.rewriting.native_program.padding import padding_of
from whet.techniques.rewriting.native_program.precision import with_precision
from whet.techniques.rewriting.native_program.whole_graph import functional, lower
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

_SPACE: OptionSpace = {"precision": ("int8", "f32", "bf16")}

_DTYPES = {"int8": "int8", "bf16": "bfloat16", "f32": "float32"}
_WEIGHT_SCALES = {"int8": 0.25, "bf16": 0.5, "f32": 1.0}
_TOLERANCE = 1e-4  # of attention that is fused


_LOWERED: WeakKeyDictionary[torch.export.ExportedProgram, int | str] = WeakKeyDictionary()
"""How many operations a graph becomes, or why it cannot be lowered."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """Hold the options of native.

    Attributes:
        precision: What linear layers and convolutions compute in: "int8", "f32" or "bf16".
    """

    precision: str = "int8"

    def __post_init__(self) -> None:
        if self.precision not in _SPACE["precision"]:
            choices = ", ".join(map(repr, _SPACE["precision"]))
            raise OptionError(f"native: precision must be one of {choices}, not {self.precision!r}")


def dtype_of(options: Options) -> str:
    return _DTYPES[options.precision]


def _num_operations(exported: torch.export.ExportedProgram) -> int:
    """Return how many operations a graph becomes, or raise TargetError. Each precision asks for it."""
    found = _LOWERED.get(exported)
    if found is None:
        try:
            found = len(lower(functional(exported)).steps)
        except TargetError as error:
            found = str(error)
        _LOWERED[exported] = found
    if isinstance(found, str):
        raise TargetError(found)
    return found


def check(examined: ExaminedWorkload, machine: Machine, options: Options) -> Applicability:
    """Check that the model is on the CPU, that there are kernels, and that they know every operator of the graph."""
    if examined.device_type != "cpu":
        return NotApplicable("the model is not on the CPU, where this backend runs")
    if options.precision == "bf16" and (why := bfloat16_refusal(examined, machine)):
        return NotApplicable(why)
    try:
        library()
        count = _num_operations(program.original(examined))
    except (KernelsError, TargetError) as error:
        return NotApplicable(str(error))
    return Applies(f"the whole graph, {count} operations, in {options.precision}")


def predict(profile: Profile, limits: Limits, options: Options) -> float:
    """Return the highest possible speedup. Activations are read and written in float32."""
    return speedup_bound(
        profile,
        limits,
        dtype=dtype_of(options),
        weight_scale=_WEIGHT_SCALES[options.precision],
        activation_scale=1.0,
        removes_overhead=True,
    )


def apply(candidate: Candidate, options: Options) -> Candidate:
    """Return the candidate as a program of whet's kernels.

    Raises:
        TargetError: The graph has an operator that the kernels lack; the message names it.
        KernelsError: There are no compiled kernels here.
    """
    lowered = lower(_with_fused_attention(candidate))
    runtime = NativeRuntime(*with_precision(lowered, options.precision))  # type: ignore[arg-type]
    padding = padding_of(lowered, candidate.signature)
    return candidate.with_runtime(runtime if padding is None else _leaving_out(padding, runtime, candidate.examined))


def _leaving_out(padding: Padding, runtime: NativeRuntime, examined: ExaminedWorkload) -> NativeRuntime:
    """Return the runtime that leaves out padding, if there is one, and if it changes no bit of the outputs.

    That follows from the program. It is tried nonetheless, with masks of several kinds.
    """
    other = runtime.leaving_out(padding)
    for _, batch in masked(examined.flat_calibration):
        try:
            found, wanted = other.run(batch), runtime.run(batch)
        except InputsError:  # the batch is one that the model does not take
            continue
        if not all(torch.equal(y.nan_to_num(), exact.nan_to_num()) for y, exact in zip(found, wanted, strict=True)):
            return runtime
    return other if other.leaves_out_padding else runtime


def _with_fused_attention(candidate: Candidate) -> fx.GraphModule:
    """Return the candidate's graph, with one operator in place of attention that is written out by hand.

    Where that would change the outputs, attention stays as it is.
    """
    examined = candidate.examined
    exported = program.export(candidate.module, examined)
    traced = functional(exported)
    found = find_attention(traced)
    if not found:
        return traced
    module = Traced(fuse(traced, found))
    try:
        verify("native", module, candidate.module, examined, _TOLERANCE)
    except TargetError:
        return functional(exported)
    return functional(program.export(module, examined))


TECHNIQUE = Technique(
    name="native",
    stage=Stage.BACKEND,
    order=15,
    card=__doc__,
    options=Options,
    check=check,
    predict=predict,
    apply=apply,
    space=_SPACE,
    groups=frozenset({PRECISION, BACKEND}),
    dtype_of=dtype_of,
)
