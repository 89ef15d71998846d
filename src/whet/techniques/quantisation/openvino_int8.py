"""Quantise OpenVINO models to int8 with NNCF, without the layers that it would hurt most."""

import contextlib
import io
import logging
from collections.abc import Iterator, Sequence
from typing import Any

from torch import Tensor

from whet.core.artefact.openvino import core, import_openvino, no_telemetry, said, share
from whet.errors import MissingExtra, TargetError, foreign
from whet.measure.machine import describe
from whet.techniques.quantisation.openvino_sensitivity import rank
from whet.techniques.quantisation.quantisable import has_wide_sums

PRESETS = ("performance", "mixed")
RANGES = ("mean", "extreme", "quantile", "histogram")

_RANGE_NAMES = {"mean": "MEAN_MINMAX", "extreme": "MINMAX", "quantile": "MEAN_QUANTILE", "histogram": "HISTOGRAM"}


def quantize(
    model: Any,
    batches: Sequence[tuple[Tensor, ...]],
    *,
    preset: str,
    ranges: str,
    smooth_quant: bool,
    keep: int,
    quantizes_attention: bool,
) -> tuple[Any, list[str]]:
    """Quantise a copy of an OpenVINO model to int8.

    techniques.backend.openvino.Options explains the options.

    Args:
        batches: Calibration batches of flat inputs.
        quantizes_attention: Whether attention's products are quantised.

    Returns:
        The copy, and notes on what was left out.

    Raises:
        TargetError: NNCF cannot quantise the model.
    """
    nncf = import_nncf()
    contiguous = [[tensor.detach().contiguous() for tensor in batch] for batch in batches]
    openvino = import_openvino()
    shared = [[share(tensor, openvino) for tensor in batch] for batch in contiguous]
    arguments = {
        "model_type": nncf.ModelType.TRANSFORMER if is_transformer(model) else None,
        "preset": nncf.QuantizationPreset(preset),
        "target_device": nncf.TargetDevice.CPU,
        "subset_size": len(shared),
    }
    ignored = {*(_pooled(model) if smooth_quant else ()), *(() if quantizes_attention else _activation_products(model))}

    def int8(*, smooth_quant: bool, corrects_bias: bool) -> Any:
        return nncf.quantize(
            model.clone(),
            nncf.Dataset(shared),
            **arguments,
            ignored_scope=nncf.IgnoredScope(names=sorted(ignored)),
            advanced_parameters=_advanced(nncf, ranges, smooth_quant=smooth_quant, corrects_bias=corrects_bias),
        )

    notes = []
    with foreign(TargetError, "NNCF cannot quantise the model", words=said), _quiet(nncf), _one_core(openvino):
        if keep:
            names, places = rank(model, int8(smooth_quant=False, corrects_bias=False), shared[0])
            ignored |= set(names[:keep])
            kept = ", ".join(str(place + 1) for place in sorted(places[:keep]))
            notes.append(f"openvino: of {len(names)} layers in order, kept out of int8: {kept}")
        return int8(smooth_quant=smooth_quant, corrects_bias=True), notes


def is_transformer(model: Any) -> bool:
    """Return whether an OpenVINO model has attention or layer norm, for which NNCF has its own patterns."""
    return any(
        op.get_type_name() in ("ScaledDotProductAttention", "MVN")
        or (op.get_type_name() == "Softmax" and "MatMul" in _readers(op))
        for op in model.get_ops()
    )


def _readers(op: Any) -> list[str]:
    """Type names of what reads an operator's result, looking through operators that only move data."""
    names: list[str] = []
    for reader in op.output(0).get_target_inputs():
        node = reader.get_node()
        moves = node.get_type_name() in ("Reshape", "Transpose", "Broadcast", "Unsqueeze", "Squeeze")
        names += _readers(node) if moves else [node.get_type_name()]
    return names


def _activation_products(model: Any) -> Iterator[str]:
    """Names of the products in which neither side is a weight: attention.

    In bf16 they take as long as in int8 and lose less. And OpenVINO 2026.4 drops masks made by `where` from attention
    that is partly int8 and partly bf16.
    """
    for op in model.get_ops():
        is_product = op.get_type_name() == "MatMul" and not any(map(_is_constant, op.input_values()))
        if is_product or op.get_type_name() == "ScaledDotProductAttention":
            yield op.get_friendly_name()


def _is_constant(value: Any) -> bool:
    """Return whether a value is a stored weight, possibly converted, reshaped or transposed."""
    node = value.get_node()
    while node.get_type_name() in ("Convert", "Reshape", "Transpose"):
        node = node.input_value(0).get_node()
    return bool(node.get_type_name() == "Constant")


def _pooled(model: Any) -> Iterator[str]:
    """Names of the products that read a mean or another reduction.

    OpenVINO 2026.4 fuses the factors that SmoothQuant puts between the two into the reduction, and then applies them to
    the wrong channels. These few, small layers stay in floating point.
    """
    for op in model.get_ops():
        readers = (reader.get_node() for reader in op.output(0).get_target_inputs()) if op.get_output_size() else ()
        if op.get_type_name().startswith("Reduce"):
            yield from (node.get_friendly_name() for node in readers if node.get_type_name() == "MatMul")


def import_nncf() -> Any:
    """Import NNCF without its telemetry, and without its change of the program's logger class.

    Raises:
        MissingExtra: It is not installed.
    """
    logger_class = logging.getLoggerClass()
    try:
        with no_telemetry():
            import nncf
            import nncf.quantization.advanced_parameters
            import nncf.quantization.range_estimator
    except ImportError as error:
        raise MissingExtra("nncf", "openvino", "int8 in OpenVINO") from error
    finally:
        logging.setLoggerClass(logger_class)
    return nncf


def _advanced(nncf: Any, ranges: str, *, smooth_quant: bool, corrects_bias: bool) -> Any:
    parameters = nncf.quantization.advanced_parameters
    estimators = nncf.quantization.range_estimator.RangeEstimatorParametersSet
    return parameters.AdvancedQuantizationParameters(
        overflow_fix=nncf.OverflowFix.DISABLE if has_wide_sums(describe()) else nncf.OverflowFix.ENABLE,
        disable_bias_correction=not corrects_bias,
        activations_range_estimator_params=getattr(estimators, _RANGE_NAMES[ranges]),
        smooth_quant_alphas=parameters.AdvancedSmoothQuantParameters(
            matmul=parameters.AdvancedSmoothQuantParameters().matmul if smooth_quant else -1
        ),
    )


@contextlib.contextmanager
def _quiet(nncf: Any) -> Iterator[None]:
    """Keep NNCF's progress bars and reports off stdout, where whet's answers go. Errors are raised, not logged."""
    logger = logging.getLogger("nncf")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            yield
    finally:
        logger.setLevel(level)


@contextlib.contextmanager
def _one_core(openvino: Any) -> Iterator[None]:
    """NNCF makes a Core for each model that it runs; inside this it gets the one that stays."""
    class_, the_core = openvino.Core, core()
    openvino.Core = lambda: the_core
    try:
        yield
    finally:
        openvino.Core = class_
