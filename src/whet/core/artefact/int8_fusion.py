"""Teach torch's compiler to run quantised graphs on int8 kernels.

A quantised graph says "dequantise, multiply, quantise" in plain operators. torchao has the patterns by which the
compiler turns that into one int8 product. Without them it multiplies in floating point, which gains nothing. They are
needed wherever such a graph is compiled: when a package is made, and when a program is compiled after loading.
"""

import importlib
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from whet.core.artefact.program import operators

_LOGGERS = ("torchao", "torch.utils._pytree")


def is_quantised(program: torch.export.ExportedProgram) -> bool:
    return any(getattr(target, "namespace", "") == "quantized_decomposed" for target in operators(program))


def register() -> None:
    """Make the patterns known to the compiler of this process. Takes seconds the first time: it imports torchao."""
    with quiet_import():
        importlib.import_module("torchao.quantization.pt2e.quantizer.x86_inductor_quantizer")


@contextmanager
def quiet_import() -> Iterator[None]:
    """Keep from the user what importing torchao says about itself.

    It warns of its own GPU libraries where they don't fit, of a deprecated call it makes, and, by way of the compiler,
    of torch.jit inside torch. Errors pass.
    """
    levels = {name: logging.getLogger(name).level for name in _LOGGERS}
    for name in _LOGGERS:
        logging.getLogger(name).setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", category=DeprecationWarning, message=".*torch.jit.*")
            warnings.filterwarnings("ignore", category=SyntaxWarning)
            yield
    finally:
        for name, level in levels.items():
            logging.getLogger(name).setLevel(level)
