"""Rank the layers of an OpenVINO model by how much int8 hurts them.

One graph serves for all layers. Each layer y = f(x) becomes y + gate * (q(x) - y), where q is the quantised layer and
the gates are an input. The graph is compiled once, and run once for each layer with only that layer's gate open. The
error of the outputs is then that layer's share.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from whet.core.artefact.openvino import core, import_openvino

_LAYERS = frozenset({"MatMul", "Convolution", "GroupConvolution"})
_DECOMPRESSION = frozenset({"Convert", "Subtract", "Multiply", "Reshape"})
_DEPTH = 6  # how far above a layer its quantiser may stand: quantisers move up through reshapes and transposes


def rank(model: Any, quantized: Any, batch: Sequence[Any]) -> tuple[list[str], list[int]]:
    """Rank the quantised layers with weights by how much their rounding changes the outputs for a batch.

    Returns:
        The layers' names, the most damaging first, and their places in the order of execution.
    """
    gated, names = _gate(model.clone(), quantized)
    config = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": torch.get_num_threads()}
    request = core().compile_model(gated, "CPU", config).create_infer_request()

    def outputs(gates: Any) -> list[Any]:
        return [np.array(y, dtype=np.float64) for y in request.infer([*batch, gates], share_inputs=True).values()]

    exact = outputs(np.zeros(len(names), np.float32))
    harm = [
        max(_relative_error(y, wanted) for y, wanted in zip(outputs(gates), exact, strict=True))
        for gates in np.eye(len(names), dtype=np.float32)
    ]
    order = np.argsort(-np.array(harm), kind="stable").tolist()
    return [names[i] for i in order], order


def _relative_error(found: Any, wanted: Any) -> float:
    size = float(np.linalg.norm(wanted))
    return float(np.linalg.norm(found - wanted)) / (size or 1.0)


def _gate(model: Any, quantized: Any) -> tuple[Any, list[str]]:
    """Put a gate on every layer that the quantiser changed, and return the model with the gates as last input."""
    ops = import_openvino().opset13
    twins = {op.get_friendly_name(): op for op in quantized.get_ops()}
    found = []
    for op in model.get_ordered_ops():
        twin = twins.get(op.get_friendly_name())
        if op.get_type_name() in _LAYERS and twin is not None and _is_compressed(twin.input_value(1)):
            rounding = _quantizer_above(twin.input_value(0))
            if rounding is not None:
                found.append((op, twin, rounding))
    gates = ops.parameter([len(found)], np.float32, name="gates")
    zero = ops.constant(np.int64(0))
    for i, (op, twin, rounding) in enumerate(found):
        gate = ops.gather(gates, ops.constant(np.int64(i)), zero)
        _open(op, _quantized_twin(op, twin, rounding), gate)
    model.add_parameters([gates])
    model.validate_nodes_and_infer_types()
    return model, [op.get_friendly_name() for op, _, _ in found]


def _open(op: Any, quantized: Any, gate: Any) -> None:
    """Replace op's output, for everything that reads it, by op + gate * (quantized - op)."""
    ops = import_openvino().opset13
    readers = list(op.output(0).get_target_inputs())
    mixed = ops.add(op.output(0), ops.multiply(gate, ops.subtract(quantized, op.output(0))))
    for reader in readers:
        reader.replace_source_output(mixed.output(0))


def _quantized_twin(op: Any, twin: Any, rounding: Any) -> Any:
    """Return the layer applied to the rounded input, with the rounded weights."""
    openvino = import_openvino()
    ops = openvino.opset13
    limits = [ops.constant(_as_scalar(rounding.input_value(i))) for i in range(1, 5)]
    rounded = ops.fake_quantize(op.input_value(0), *limits, rounding.get_attributes()["levels"])
    inputs = [rounded.output(0), twin.input_value(1)]
    return openvino.utils.node_factory.NodeFactory("opset13").create(op.get_type_name(), inputs, op.get_attributes())


def _quantizer_above(value: Any) -> Any:
    """Return the FakeQuantize that rounds a layer's input, or None where the input is not rounded."""
    for _ in range(_DEPTH):
        node = value.get_node()
        if node.get_type_name() == "FakeQuantize":
            return node
        if not node.get_input_size():
            return None
        value = node.input_value(0)
    return None


def _as_scalar(value: Any) -> Any:
    """Return a quantiser's limit as a scalar, whatever its rank. Per-channel limits keep their shape."""
    data = value.get_node().data
    return data.reshape(()) if data.size == 1 else data


def _is_compressed(value: Any) -> bool:
    """Return whether a weight is stored in 8 bits by a quantiser: Constant -> Convert -> Subtract -> Multiply."""
    node = value.get_node()
    while node.get_type_name() in _DECOMPRESSION:
        node = node.input_value(0).get_node()
    return node.get_type_name() == "Constant" and node.get_output_element_type(0).get_type_name() in ("i8", "u8")
