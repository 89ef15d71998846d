"""Export modules as ONNX models on disk."""

import contextlib
import io
import logging
import warnings
from collections.abc import Iterator
from typing import Any

import torch

from whet.core.artefact.onnxruntime import Folder, ONNXRuntime
from whet.errors import MissingExtra, TargetError, foreign
from whet.techniques.rewriting import torch_semantics
from whet.techniques.technique import Candidate

LARGEST_FILE_BYTES = 1_800_000_000  # protobuf ends at 2 GiB; the graph takes room too

_OPSET = 20  # the newest whose operators onnxruntime.quantization knows


def export(candidate: Candidate) -> Folder:
    """Export a candidate's module as an ONNX model, with torch's exporter from torch.export's graph.

    torch's older exporter is never used: its trace records one path through the code and drops every branch.

    Raises:
        TargetError: There is no graph, or it has no ONNX form.
    """
    onnx = import_onnx()
    folder = Folder()
    exported = torch_semantics.export(candidate.module, candidate.examined, ONNXRuntime.NAME)
    with quiet(), torch.no_grad(), foreign(TargetError, "the model cannot be written as ONNX"):
        _write(exported, candidate, folder)
    graph = onnx.load(folder.model, load_external_data=False).graph
    counts = (len(graph.input), len(graph.output))
    wanted = (len(candidate.signature.inputs), len(candidate.examined.outputs[0]))
    if counts != wanted:
        raise TargetError(
            f"the model cannot be written as ONNX: its graph has {counts[0]} inputs and {counts[1]} outputs, "
            f"the model {wanted[0]} and {wanted[1]}"
        )
    return folder


def import_onnx() -> Any:
    """Import onnx, and check that onnxscript can be imported.

    Raises:
        MissingExtra: One of them is not installed.
    """
    for name in ("onnx", "onnxscript"):
        try:
            __import__(name)
        except ImportError as error:
            raise MissingExtra(name, "onnx", "writing a model as ONNX") from error
    return __import__("onnx")


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Silence the log messages of exporters and quantisers. Errors are raised, not logged."""
    level = logging.root.manager.disable
    logging.disable(logging.ERROR)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(level)


def _write(exported: torch.export.ExportedProgram, candidate: Candidate, folder: Folder) -> None:
    written = torch.onnx.export(exported, dynamo=True, opset_version=_OPSET, verbose=False)
    assert written is not None
    weight_bytes = sum(t.untyped_storage().nbytes() for t in candidate.module.state_dict().values())
    written.save(folder.model, external_data=weight_bytes > LARGEST_FILE_BYTES)
