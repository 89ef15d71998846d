"""Modules as ONNX models on disk."""

import contextlib
import io
import logging
import warnings
from collections.abc import Iterator
from typing import Any

import torch

from whet.artefact import program
from whet.artefact.onnxruntime import Folder
from whet.errors import MissingExtra, TargetError, reason
from whet.techniques.technique import Candidate

LARGEST_FILE_BYTES = 1_800_000_000  # protobuf ends at 2 GiB; the graph takes room too

_OPSET = 20  # the newest whose operators onnxruntime.quantization knows


def export(candidate: Candidate) -> tuple[Folder, list[str]]:
    """The candidate's module as an ONNX model, with notes on how.

    By torch's exporter from its graph; where that fails, by the older one, which traces and knows one path through the
    code only. Raises TargetError where neither can.
    """
    onnx = import_onnx()
    folder, notes = Folder(), []
    with quiet(), torch.no_grad():
        try:
            _export_graph(candidate, folder)
        except Exception as error:  # noqa: BLE001 - the exporters raise whatever they stumble over
            notes.append(f"onnxruntime: converted by tracing, as the export of the graph failed ({reason(error)})")
            folder = Folder()
            try:
                _export_trace(candidate, folder)
            except Exception as second:
                raise TargetError(f"the model cannot be written as ONNX: {reason(second)}") from second
    graph = onnx.load(folder.model, load_external_data=False).graph
    counts = (len(graph.input), len(graph.output))
    wanted = (len(candidate.signature.inputs), len(candidate.subject.outputs[0]))
    if counts != wanted:
        raise TargetError(
            f"the model cannot be written as ONNX: its graph has {counts[0]} inputs and {counts[1]} outputs, "
            f"the model {wanted[0]} and {wanted[1]}"
        )
    return folder, notes


def import_onnx() -> Any:
    """onnx, with onnxscript known to be there. Raises MissingExtra."""
    for name in ("onnx", "onnxscript"):
        try:
            __import__(name)
        except ImportError as error:
            raise MissingExtra(name, "onnx", "writing a model as ONNX") from error
    return __import__("onnx")


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Silence what exporters and quantisers say about their own insides; errors are raised, not logged."""
    level = logging.root.manager.disable
    logging.disable(logging.ERROR)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(level)


def _export_graph(candidate: Candidate, folder: Folder) -> None:
    exported = program.export(candidate.module, candidate.subject)
    written = torch.onnx.export(exported, dynamo=True, opset_version=_OPSET, verbose=False)
    assert written is not None
    written.save(folder.model, external_data=_weight_bytes(candidate) > LARGEST_FILE_BYTES)


def _export_trace(candidate: Candidate, folder: Folder) -> None:
    arguments = candidate.signature.inputs
    names = [f"input_{i}" for i in range(len(arguments))]
    free = {
        name: {i: f"{name}_{i}" for i, size in enumerate(argument.shape) if size is None}
        for name, argument in zip(names, arguments, strict=True)
    }
    torch.onnx.export(
        candidate.copy_module(),
        candidate.subject.flat_inputs[0],
        str(folder.model),
        dynamo=False,
        opset_version=_OPSET,
        input_names=names,
        dynamic_axes=free,
    )


def _weight_bytes(candidate: Candidate) -> int:
    return sum(t.untyped_storage().nbytes() for t in candidate.module.state_dict().values())
