"""Reference implementations of others, taken from the checkouts that $WHET_FOREIGN names.

$WHET_FOREIGN is a directory with checkouts of github.com/state-spaces/mamba, github.com/Dao-AILab/causal-conv1d,
github.com/fla-org/flash-linear-attention, github.com/lucidrains/titans-pytorch, and of github.com/arogozhnikov/einops,
which the others use. Their packages import what a CPU has not, so that single functions are taken from their files.
"""

import ast
import importlib.util
import math
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
import torch.nn.functional as F

_ENVIRONMENT = "WHET_FOREIGN"

marks = [
    pytest.mark.foreign,
    pytest.mark.slow,
    pytest.mark.skipif(_ENVIRONMENT not in os.environ, reason=f"${_ENVIRONMENT} names no checkouts"),
]
"""What a file of such tests has as its pytestmark."""


def checkout(name: str) -> Path:
    """The directory of a checkout. The test is skipped where it is not there."""
    found = Path(os.environ[_ENVIRONMENT]).resolve() / name
    if not found.is_dir():
        pytest.skip(f"${_ENVIRONMENT} has no checkout of {name}")
    return found


def einops() -> ModuleType:
    """The package, from its checkout where it is not installed."""
    if importlib.util.find_spec("einops") is None:
        sys.path.append(str(checkout("einops")))
    return importlib.import_module("einops")


def functions(repository: str, places: dict[str, list[str]]) -> dict[str, Any]:
    """Functions by name, without the rest of their files, which may call each other.

    Args:
        repository: The name of a checkout.
        places: Files, from the checkout's root, each with the functions that are taken from it.
    """
    shared = einops()
    known = {"torch": torch, "F": F, "math": math, "rearrange": shared.rearrange, "repeat": shared.repeat}
    for file, names in places.items():
        path = checkout(repository) / file
        tree = ast.parse(path.read_text(), str(path))
        tree.body = [part for part in tree.body if isinstance(part, ast.FunctionDef) and part.name in names]
        assert {part.name for part in tree.body} == set(names), f"{path} has not all of {names}"
        exec(compile(tree, str(path), "exec"), known)
    return known


def module(repository: str, file: str) -> ModuleType:
    """A file that imports no other file of its package."""
    einops()
    path = checkout(repository) / file
    spec = importlib.util.spec_from_file_location("foreign_" + path.parent.name, path)
    assert spec is not None and spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


def parametrised(repository: str, file: str, test: str) -> dict[str, tuple[Any, ...]]:
    """The values over which one of their tests runs, by the names of its arguments; literals alone."""
    path = checkout(repository) / file
    tree = ast.parse(path.read_text(), str(path))
    (function,) = (part for part in tree.body if isinstance(part, ast.FunctionDef) and part.name == test)
    marks = [part for part in function.decorator_list if isinstance(part, ast.Call) and len(part.args) == 2]
    return {ast.literal_eval(mark.args[0]): ast.literal_eval(mark.args[1]) for mark in marks}
