"""The peers, used directly by their own documented calls, and the models they are compared on.

PEERS: name -> build(model, inputs) -> call. Each builder follows its project's own guide, named beside it; where a
guide leaves a choice, the faster on x86 is taken. Calibration sees the one batch given: speed is compared here, quality
is not.
"""

import contextlib
import copy
import inspect
import io
import logging
import tempfile
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

Inputs = Mapping[str, Tensor]
Call = Callable[[], Any]


def make_hf_directories(path: Path) -> dict[str, Path]:
    """Write BERT-base, ViT-base and ResNet-50 with weights at random, each as a Hugging Face directory."""
    import transformers

    shapes = {
        "bert-base": (transformers.BertModel, transformers.BertConfig()),
        "vit-base": (transformers.ViTModel, transformers.ViTConfig()),
        "resnet-50": (transformers.ResNetForImageClassification, transformers.ResNetConfig()),
    }
    directories = {}
    for name, (kind, config) in shapes.items():
        torch.manual_seed(0)
        directories[name] = Path(path) / name
        kind(config).eval().save_pretrained(directories[name])
    return directories


def named_inputs(model: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return a call's inputs by the names that the model's forward gives them."""
    return dict(inspect.signature(model.forward).bind(*args, **kwargs).arguments)


def eager(model: nn.Module, inputs: Inputs) -> Call:
    """PyTorch as it comes, float32."""
    return _without_gradients(model, inputs)


def bf16_eager(model: nn.Module, inputs: Inputs) -> Call:
    """PyTorch in bfloat16: model.to(torch.bfloat16)."""
    half = copy.deepcopy(model).to(torch.bfloat16)
    return _without_gradients(half, {k: x.bfloat16() if x.is_floating_point() else x for k, x in inputs.items()})


def compiled(model: nn.Module, inputs: Inputs) -> Call:
    """torch.compile(model): PyTorch's tutorial "Introduction to torch.compile"."""
    return _without_gradients(torch.compile(model), inputs)


def openvino_f32(model: nn.Module, inputs: Inputs) -> Call:
    """OpenVINO's guide "Converting a PyTorch Model", computing in float32."""
    openvino = _import_openvino()
    converted = _openvino_model(openvino, model, inputs)
    return _openvino_call(openvino, converted, inputs, {"INFERENCE_PRECISION_HINT": "f32"})


def openvino_int8(model: nn.Module, inputs: Inputs) -> Call:
    """OpenVINO's guide "Quantizing Models Post-training": nncf.quantize as it comes, transformers named as such."""
    return _openvino_call(_import_openvino(), _quantized_by_nncf(model, inputs), inputs, {})


def openvino_int8_model(model: nn.Module, inputs: Inputs, out: Path) -> None:
    """Write model.xml and model.bin of `openvino_int8` into a new directory."""
    out.mkdir()
    _import_openvino().save_model(_quantized_by_nncf(model, inputs), out / "model.xml", compress_to_fp16=False)


def _quantized_by_nncf(model: nn.Module, inputs: Inputs) -> Any:
    from whet.techniques.quantisation.openvino_int8 import import_nncf

    openvino, nncf = _import_openvino(), import_nncf()
    nncf.set_log_level(logging.ERROR)
    converted = _openvino_model(openvino, model, inputs)
    dataset = nncf.Dataset([{name: x.numpy() for name, x in inputs.items()}])
    model_type = nncf.ModelType.TRANSFORMER if _is_transformer(model) else None
    with contextlib.redirect_stdout(io.StringIO()):
        return nncf.quantize(converted, dataset, model_type=model_type)


def onnxruntime_int8(model: nn.Module, inputs: Inputs) -> Call:
    """ONNX Runtime's guide "Quantize ONNX Models": dynamic for transformers, static (QDQ, U8S8) for CNNs."""
    import onnxruntime

    with tempfile.TemporaryDirectory() as directory:
        onnxruntime_int8_file(model, inputs, out := Path(directory) / "out")
        session = onnxruntime.InferenceSession(out / "model.onnx", providers=["CPUExecutionProvider"])
    feeds = dict(zip([i.name for i in session.get_inputs()], [x.numpy() for x in inputs.values()], strict=True))
    return lambda: session.run(None, feeds)


def onnxruntime_int8_file(model: nn.Module, inputs: Inputs, out: Path) -> None:
    """Write model.onnx of `onnxruntime_int8` into a new directory."""
    from onnxruntime import quantization
    from onnxruntime.quantization.shape_inference import quant_pre_process

    out.mkdir()
    quantized = str(out / "model.onnx")
    with tempfile.TemporaryDirectory() as directory:
        plain, prepared = (str(Path(directory) / f"{n}.onnx") for n in ("plain", "prepared"))
        torch.onnx.export(model, (), plain, kwargs=dict(inputs), dynamo=True, external_data=False, verbose=False)
        quant_pre_process(plain, prepared)
        if _is_transformer(model):
            quantization.quantize_dynamic(prepared, quantized, weight_type=quantization.QuantType.QInt8)
        else:
            quantization.quantize_static(
                prepared,
                quantized,
                _reader(quantization, prepared, inputs),
                per_channel=True,
                activation_type=quantization.QuantType.QUInt8,
                weight_type=quantization.QuantType.QInt8,
            )


def torch_int8(model: nn.Module, inputs: Inputs) -> Call:
    """PyTorch's tutorial "PyTorch 2 Export Quantization with X86 Backend through Inductor", mixed with bfloat16."""
    import torch._inductor.config as inductor
    from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e
    from torchao.quantization.pt2e.quantizer import x86_inductor_quantizer as x86

    inductor.freezing = True
    with torch.no_grad():
        exported = torch.export.export(model, (), dict(inputs)).module()
        quantizer = x86.X86InductorQuantizer().set_global(x86.get_default_x86_inductor_quantization_config())
        prepared = prepare_pt2e(exported, quantizer)
        prepared(**inputs)
        optimized = torch.compile(convert_pt2e(prepared))

    def call() -> Any:
        with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
            return optimized(**inputs)

    return call


PEERS: dict[str, Callable[[nn.Module, Inputs], Call]] = {
    "eager": eager,
    "bf16 eager": bf16_eager,
    "torch.compile": compiled,
    "torch int8": torch_int8,
    "openvino f32": openvino_f32,
    "openvino int8": openvino_int8,
    "onnxruntime int8": onnxruntime_int8,
}


def _without_gradients(model: Callable[..., Any], inputs: Inputs) -> Call:
    def call() -> Any:
        with torch.no_grad():
            return model(**inputs)

    return call


def _openvino_model(openvino: Any, model: nn.Module, inputs: Inputs) -> Any:
    """Converted for the shapes at hand: left open, they cost time, and a network with a mean over them does not compile
    in int8."""
    return openvino.convert_model(
        model, example_input=dict(inputs), input=[(name, list(x.shape)) for name, x in inputs.items()]
    )


def _openvino_call(openvino: Any, model: Any, inputs: Inputs, config: dict[str, str]) -> Call:
    compiled_model = openvino.Core().compile_model(model, "CPU", config)
    arrays = {name: x.numpy() for name, x in inputs.items()}
    return lambda: compiled_model(arrays)


def _import_openvino() -> Any:
    from whet.core.artefact.openvino import import_openvino

    warnings.filterwarnings("ignore", module=r"transformers|torch\.jit|openvino")
    return import_openvino()  # without telemetry


def _reader(quantization: Any, model: str, inputs: Inputs) -> Any:
    import onnx

    names = [value.name for value in onnx.load(model, load_external_data=False).graph.input]
    batches = iter([dict(zip(names, [x.numpy() for x in inputs.values()], strict=True))])

    class Reader(quantization.CalibrationDataReader):  # type: ignore[misc]
        def get_next(self) -> dict[str, Any] | None:
            return next(batches, None)

    return Reader()


def _is_transformer(model: nn.Module) -> bool:
    return any("Attention" in type(module).__name__ for module in model.modules())
