"""Quantise ONNX models to int8 with ONNX Runtime's own quantiser."""

from collections.abc import Iterator, Sequence
from typing import Any

from torch import Tensor

from whet.core.artefact.onnxruntime import Folder, import_onnxruntime
from whet.errors import TargetError, foreign
from whet.measure.machine import describe
from whet.techniques.quantisation.quantisable import has_wide_sums
from whet.techniques.rewriting.onnx_graph import import_onnx, quiet

# Those that gain by int8, and those between them that pass it on: without, values would go to float32 and back.
_STATIC = [
    *("Conv", "ConvTranspose", "MatMul", "Gemm", "Gather", "Add", "Relu", "Clip", "LeakyRelu", "MaxPool"),
    *("AveragePool", "GlobalAveragePool", "Reshape", "Transpose", "Squeeze", "Unsqueeze", "Concat", "Resize", "Pad"),
]
_DYNAMIC = ["MatMul", "Gather"]  # and Gemm, which is split into MatMul and Add


def quantize(folder: Folder, batches: Sequence[tuple[Tensor, ...]], mode: str) -> Folder:
    """Return a copy of an ONNX model in int8.

    Args:
        batches: Calibration batches of flat inputs.
        mode: "static" or "dynamic".

    Raises:
        TargetError: The quantiser cannot quantise the model.
    """
    onnx = import_onnx()
    import_onnxruntime()
    from onnxruntime import quantization

    common = {
        "per_channel": True,
        "weight_type": quantization.QuantType.QInt8,
        "reduce_range": not has_wide_sums(describe()),
        "use_external_data_format": folder.is_large,
    }
    graph = onnx.load(folder.model, load_external_data=False).graph
    quantized = Folder()
    with foreign(TargetError, "ONNX Runtime cannot quantise the model"), quiet():
        if mode == "dynamic":
            _forget_shapes(folder)
            quantization.quantize_dynamic(
                folder.model,
                quantized.model,
                op_types_to_quantize=_DYNAMIC,
                extra_options={"MatMulConstBOnly": True},
                **common,
            )
        else:
            quantization.quantize_static(
                folder.model,
                quantized.model,
                _reader(quantization, [value.name for value in graph.input], batches),
                op_types_to_quantize=_STATIC,
                nodes_to_exclude=list(_masked_scores(graph)),
                activation_type=quantization.QuantType.QUInt8,
                **common,
            )
    return quantized


def _reader(quantization: Any, names: Sequence[str], batches: Sequence[tuple[Tensor, ...]]) -> Any:
    """The calibration batches as ONNX Runtime reads them: one by one, None at the end."""
    feeds = iter([{n: x.detach().numpy() for n, x in zip(names, batch, strict=True)} for batch in batches])

    class Reader(quantization.CalibrationDataReader):  # type: ignore[misc]
        def get_next(self) -> dict[str, Any] | None:
            return next(feeds, None)

    return Reader()


def _masked_scores(graph: Any) -> Iterator[str]:
    """Yield the sums that a softmax reads. With a mask they reach down to -3e38, too wide a range for int8."""
    softmaxed = {name for node in graph.node if node.op_type == "Softmax" for name in node.input}
    for node in graph.node:
        if node.op_type == "Add" and softmaxed.intersection(node.output):
            yield node.name


def _forget_shapes(folder: Folder) -> None:
    """Drop recorded shapes: the quantiser transposes weights of Gemm, then finds that their shapes are not as noted."""
    onnx = import_onnx()
    model = onnx.load(folder.model, load_external_data=False)
    del model.graph.value_info[:]
    onnx.save(model, folder.model)
