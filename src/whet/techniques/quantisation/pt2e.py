"""Quantise by PyTorch 2 export: linear layers and convolutions become "quantise, multiply, dequantise" in a graph.

int8_static and int8_dynamic share this module. torchao's prepare_pt2e and convert_pt2e insert the steps, by torchao's
recipe for x86 with two changes. Elementwise products stay in floating point, since two quantised inputs cost more than
the product gains. Scales have no lower bound: the recipe's bound of 2^-12 wastes levels on small weights.
"""

import warnings
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from whet.core.artefact import int8_fusion, program
from whet.errors import TargetError, foreign
from whet.measure.machine import describe
from whet.techniques.quantisation import quantisable
from whet.techniques.quantisation.observers import MinMaxObserver
from whet.techniques.rewriting.graph import Traced, operator
from whet.techniques.technique import Candidate

_aten = torch.ops.aten

_ADDITIONS = (_aten.add.Tensor, _aten.add_.Tensor)
_PASSING_ON = frozenset({
    "view", "reshape", "_unsafe_view", "flatten", "unflatten", "transpose", "permute", "t", "slice", "select", "expand",
    "unsqueeze", "squeeze", "contiguous", "clone", "detach", "alias", "to", "_to_copy", "dropout",
    "quantize_per_tensor", "dequantize_per_tensor",
})  # fmt: skip


def quantise(candidate: Candidate, observer: type[MinMaxObserver] | None) -> nn.Module:
    """Quantise a candidate's module, with int8 weights per channel and uint8 activations per tensor.

    Layers that the candidate keeps stay in floating point.

    Args:
        observer: Chooses the activations' ranges from the calibration batches. With None each call finds them
            (dynamic quantisation).

    Returns:
        A new module that takes tensors and returns a tuple of tensors.

    Raises:
        TargetError: torchao fails.
    """
    examined = candidate.examined
    module = candidate.module
    if any(quantisable.is_transposed_linear(m) for m in module.modules()):
        module = quantisable.with_linears(candidate.copy_module())
    graph_module = program.export(module, examined).module(check_guards=False)
    batches = examined.flat_calibration if observer is not None else examined.flat_calibration[:1]
    _clean(graph_module.graph)
    with foreign(TargetError, "torchao cannot quantise the model"), torch.no_grad(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", module=r"torch(ao)?\b.*")  # of both libraries about their own insides
        converted = _convert(graph_module, observer, sorted(candidate.kept), batches)
    converted.graph.set_codegen(fx.graph.CodeGen())
    shield_residuals(converted.graph)
    # built anew, without the methods that forbid eval()
    return Traced(fx.GraphModule(converted, converted.graph))


def _convert(
    graph_module: fx.GraphModule,
    observer: type[MinMaxObserver] | None,
    kept: Sequence[str],
    batches: Sequence[tuple[Tensor, ...]],
) -> fx.GraphModule:
    """Put observers in, let batches pass, replace the observers by quantisers with the ranges found."""
    with int8_fusion.quiet_import():
        from torchao.quantization.pt2e import observer as torchao_observer
        from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e
        from torchao.quantization.pt2e.quantizer import quantizer as specs
        from torchao.quantization.pt2e.quantizer.utils import QuantizationConfig
        from torchao.quantization.pt2e.quantizer.x86_inductor_quantizer import X86InductorQuantizer

    torchao_observer.ObserverBase.register(MinMaxObserver)
    epsilon = torch.finfo(torch.float32).tiny
    # an ObserverBase since it was registered as one
    ranges: Any = observer or torchao_observer.PlaceholderObserver.with_args(eps=epsilon)
    activation = specs.QuantizationSpec(
        dtype=torch.uint8,
        quant_min=0,
        # without VNNI, pairs of int8 products are summed in 16 bits, which saturate
        quant_max=255 if quantisable.has_int8_products(describe()) else 127,
        qscheme=torch.per_tensor_affine,
        is_dynamic=observer is None,
        observer_or_fake_quant_ctr=ranges,
    )
    weight = specs.QuantizationSpec(
        dtype=torch.int8,
        quant_min=-128,
        quant_max=127,
        qscheme=torch.per_channel_symmetric,
        ch_axis=0,
        observer_or_fake_quant_ctr=torchao_observer.PerChannelMinMaxObserver.with_args(eps=epsilon),
    )
    quantizer = X86InductorQuantizer().set_global(QuantizationConfig(activation, activation, weight, None))
    # int8 convolutions take their ranges as constants only
    for function in (torch.mul, *((F.conv1d, F.conv2d) if observer is None else ())):
        quantizer.set_function_type_qconfig(function, None)
    for name in kept:
        quantizer.set_module_name_qconfig(name, None)
    prepared = prepare_pt2e(graph_module, quantizer)
    for batch in batches:
        prepared(*batch)
    return convert_pt2e(prepared)


def _clean(graph: fx.Graph) -> None:
    """Take out what pins dtypes, and keep scalar additions from torchao.

    It takes every addition after a linear layer for one of tensors, and fails on x + 1.
    """
    for node in list(graph.nodes):
        if operator(node) == "_assert_tensor_metadata":
            graph.erase_node(node)
        elif node.target in _ADDITIONS and not all(isinstance(operand, fx.Node) for operand in node.args):
            for key in ("torch_fn", "source_fn_stack"):
                node.meta.pop(key, None)


def shield_residuals(graph: fx.Graph) -> None:
    """Write x + given as x - (-given) where `given` is an input or a constant; the same number, bit for bit.

    The compiler fuses an addition after an int8 product by adding in place, to the other operand's memory, and does not
    see that this memory may be the caller's input or a constant that the next call needs (torch 2.13 with torchao
    0.18). It only looks for additions.
    """
    for node in list(graph.nodes):
        if node.op != "call_function" or node.target not in _ADDITIONS or "alpha" in node.kwargs:
            continue
        operands = node.args[:2]
        given = [operand for operand in operands if isinstance(operand, fx.Node) and _is_given(operand)]
        if len(given) != 1 or not all(isinstance(operand, fx.Node) for operand in operands):
            continue
        computed = operands[0] if operands[1] is given[0] else operands[1]
        with graph.inserting_before(node):
            negative = graph.call_function(_aten.neg.default, (given[0],))
            difference = graph.call_function(_aten.sub.Tensor, (computed, negative))
        difference.meta = dict(node.meta)
        node.replace_all_uses_with(difference)
        graph.erase_node(node)


def _is_given(node: fx.Node) -> bool:
    """Return whether a node is an input or a constant, or only moves one without computing anything."""
    while True:
        if node.op in ("placeholder", "get_attr"):
            return True
        if not isinstance(node.target, torch._ops.OpOverload):
            return False
        source: Any = node.args[0] if node.args else None
        if node.target._schema.name.split("::")[1] not in _PASSING_ON or not isinstance(source, fx.Node):
            return False
        node = source
