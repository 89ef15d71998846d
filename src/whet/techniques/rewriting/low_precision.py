"""Convert models to a 16-bit floating-point type, with float32 inputs and outputs. bf16 and fp16 share this."""

import copy
import itertools
import math
from typing import Any

import torch
from torch import Tensor, fx, nn

from whet.core.workload import ExaminedWorkload
from whet.errors import TargetError
from whet.measure.closeness import finite_entries
from whet.measure.machine import Machine
from whet.measure.machine.description import BFLOAT16
from whet.techniques.rewriting.graph import Traced, rebuild, trace
from whet.techniques.rewriting.precision_wrapper import PrecisionWrapper
from whet.techniques.technique import Candidate

_aten = torch.ops.aten


def bfloat16_refusal(examined: ExaminedWorkload, machine: Machine) -> str:
    """Return why bfloat16 cannot pay here; "" where the chip computes it natively."""
    dtypes = {p.dtype for p in examined.workload.model.parameters() if p.is_floating_point()}
    if dtypes and torch.float32 not in dtypes:
        return f"the model's weights are {', '.join(sorted(str(d).removeprefix('torch.') for d in dtypes))} already"
    if machine.computes_bfloat16(examined.device_type):
        return ""
    if examined.device_type == "cuda":
        return f"{machine.gpu} has no native bfloat16 (sm_80 has)"
    return f"{machine.chip} has no native bfloat16 (none of {', '.join(sorted(BFLOAT16))}): it would emulate it"


def to_half(candidate: Candidate, dtype: torch.dtype, name: str) -> Candidate:
    """Convert a candidate so that it computes in `dtype`.

    Most modules can simply be converted. A module that fixes float32 somewhere, as a traced graph does, is repaired: a
    cast is inserted before each operator that would receive two dtypes.

    Args:
        name: What messages call the type.

    Raises:
        TargetError: The outputs overflow.
    """
    notes = []
    outputs = candidate.examined.outputs[0]
    module: nn.Module
    if isinstance(candidate.module, Traced):
        module, _ = _repaired(copy.deepcopy(candidate.module), candidate.examined, dtype)
    else:
        module = _cast(candidate.copy_module(), dtype)
        if (reason := _failure(PrecisionWrapper(module, outputs, inputs=dtype), candidate.examined)) is not None:
            traced = Traced(trace(candidate.copy_module(), candidate.examined))
            module, num_casts = _repaired(traced, candidate.examined, dtype)
            notes.append(f"{name}: the model pins float32 ({reason}); {num_casts} casts were put into its graph")
    half = PrecisionWrapper(module, outputs, inputs=dtype)
    with torch.no_grad():
        answers = half(*candidate.examined.flat_inputs[0])
        overflows = not all(torch.isfinite(t).all() for t in answers)
        if overflows:  # unless the original's masked places are infinite themselves
            wanted = candidate.module(*candidate.examined.flat_inputs[0])
            overflows = any(finite_entries(a, b) is None for a, b in zip(answers, wanted, strict=True))
    if overflows:
        raise TargetError(f"{name}: the outputs overflow to infinity or NaN; leave it out of the recipe")
    return candidate.with_module(half, *notes)


def _cast(module: nn.Module, dtype: torch.dtype) -> nn.Module:
    """Convert parameters and buffers in place, but for those whose precision the model lives on.

    Batch norm keeps its statistics and affine parameters (its kernels take 16-bit activations with them), and rotary
    embeddings their frequencies: rounded, they turn distant positions by whole angles.
    """
    tensors = dict(itertools.chain(module.named_parameters(), module.named_buffers()))
    norms = tuple(name.removesuffix("running_var") for name in tensors if name.endswith(".running_var"))
    for name, tensor in tensors.items():
        keeps = "inv_freq" in name or name.rpartition(".")[0] + "." in norms
        if tensor.dtype in (torch.float32, torch.float64) and not keeps:
            tensor.data = tensor.data.to(dtype)
    return module


def _failure(half: PrecisionWrapper, examined: ExaminedWorkload) -> str | None:
    """Return torch's message if the converted module mixes dtypes; None where it runs."""
    try:
        with torch.no_grad():
            half(*examined.flat_inputs[0])
    except RuntimeError as error:
        return str(error).strip().splitlines()[0]
    return None


def _repaired(traced: Traced, examined: ExaminedWorkload, dtype: torch.dtype) -> tuple[Traced, int]:
    """A converted graph with a cast wherever an operator needs one, and how many."""
    _cast(traced, dtype)
    repair = _Repair(traced.body, dtype)
    with torch.no_grad():
        repair.run(*(x.to(dtype) if x.is_floating_point() else x for x in examined.flat_inputs[0]))
    num_casts = _insert_casts(traced.body.graph, repair.wide_inputs, dtype)
    return Traced(rebuild(traced.body)), num_casts


class _Repair(fx.Interpreter):
    """Runs a graph once and finds the operators that refuse float32 beside a narrower dtype.

    Numbers in the graph that the narrow dtype can't hold (a float32 minimum as a mask's fill) become its own extremes.
    """

    def __init__(self, body: fx.GraphModule, dtype: torch.dtype) -> None:
        super().__init__(body)
        self.dtype = dtype
        self.wide_inputs: dict[fx.Node, list[fx.Node]] = {}  # by the operator that refused them

    def run_node(self, n: fx.Node) -> Any:
        try:
            return super().run_node(n)
        except RuntimeError as error:
            if "overflow" in str(error):
                n.args = fx.node.map_aggregate(n.args, self._into_range)
            wide = {node: x for node in n.all_input_nodes if (x := self.env.get(node)) is not None and _is_wide(x)}
            if not wide and "overflow" not in str(error):
                raise
            self.wide_inputs[n] = list(wide)
            self.env.update({node: x.to(self.dtype) for node, x in wide.items()})
            try:
                return super().run_node(n)
            finally:
                self.env.update(wide)

    def _into_range(self, argument: Any) -> Any:
        if isinstance(argument, float) and math.isfinite(argument):
            limits = torch.finfo(self.dtype)
            return min(max(argument, limits.min), limits.max)
        return argument


def _is_wide(x: Any) -> bool:
    return isinstance(x, Tensor) and x.dtype == torch.float32


def _insert_casts(graph: fx.Graph, wide_inputs: dict[fx.Node, list[fx.Node]], dtype: torch.dtype) -> int:
    """Insert one cast for each wide tensor, before the first operator that needs it narrow. Return their number."""
    narrow: dict[fx.Node, fx.Node] = {}
    for node, inputs in wide_inputs.items():
        for wide in inputs:
            if wide not in narrow:
                with graph.inserting_before(node):
                    narrow[wide] = graph.call_function(_aten.to.dtype, (wide, dtype))
            node.replace_input_with(wide, narrow[wide])
    return len(narrow)
