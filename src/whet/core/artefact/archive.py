"""Check that a .pt2 archive holds raw tensors and a graph of operators, and nothing that runs code when it is read.

torch.export.load is not made for untrusted files. It unpickles custom objects, tensors of other classes and older
formats. Even without a pickle it looks up operators by attribute from `torch` on, evaluates symbolic sizes, imports the
enums of a tree's structure, and writes names from the file into the code of `forward`. So an archive is first read
here, by torch's own reader, and refused unless everything in it is on the lists below.

Source: torch/export/pt2_archive/_package.py and torch/_export/serde/serialize.py of PyTorch 2.13.
"""

import ast
import io
import json
import re
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch._ops import HigherOrderOperator, OpOverload
from torch.utils._sympy import functions

from whet.errors import ArtefactError, reason

_CONFIGS = ("data/weights/model_weights_config.json", "data/constants/model_constants_config.json")
_SAMPLES = "data/sample_inputs/model.pt"
_GRAPH = "models/model.json"
_RECORDS = re.compile(
    rf"data/weights/weight_\d+|data/constants/tensor_\d+|{'|'.join(map(re.escape, (*_CONFIGS, _SAMPLES, _GRAPH)))}"
    r"|archive_format|archive_version|byteorder|\.\w+(/\w+)?"
)
_PAYLOAD = re.compile(r"(weight|tensor)_\d+")

_FREE = {"metadata", "guards_code", "as_string", "as_strings"}  # text that is only shown or handed on as a value
_NAMES = {"name", "as_name", "forward_arg_names"}  # text that becomes Python source
_PLAIN = re.compile(r"[\w.:/@+ -]*")
_SYMBOLIC = re.compile(
    r"_operator\.(add|sub|mul|floordiv|truediv|mod|pow|neg|pos|eq|ne|lt|le|gt|ge|and_|or_)"
    r"|math\.(trunc|ceil|floor|sqrt)|torch\._?sym_\w+|torch\._functorch\.predispatch\.(lazy_load_decompositions|_\w+)"
)
_TREES = (None, "builtins.tuple", "builtins.list", "builtins.dict")
_FUNCTIONS = {
    *functions.__all__,
    *("Symbol", "Integer", "Rational", "Float", "Add", "Mul", "Pow", "Max", "Min", "Abs", "Mod", "floor", "ceiling"),
    *("Equality", "Unequality", "LessThan", "StrictLessThan", "GreaterThan", "StrictGreaterThan", "And", "Or", "Not"),
}
_NODES = (ast.Expression, ast.Call, ast.keyword, ast.Name, ast.Load, ast.Constant, ast.UnaryOp, ast.USub)


def check_archive(path: Path) -> None:
    """Raise ArtefactError where an archive is damaged, or holds what could run code when torch.export.load reads it."""
    try:
        reader = torch._C.PyTorchFileReader(str(path))
        _check_names(path, reader.get_all_records())
        for name in _CONFIGS:
            _check_payloads(json.loads(reader.get_record(name).decode()))
        if samples := reader.get_record(_SAMPLES):  # empty in what whet writes now; once it held inputs
            torch.load(io.BytesIO(samples), weights_only=True)
        _check_graph(json.loads(reader.get_record(_GRAPH).decode()))
    except ArtefactError as error:
        raise ArtefactError(f"{path} is refused: it holds {error}; load only what whet wrote") from error
    except Exception as error:  # whatever a parser makes of arbitrary bytes
        raise ArtefactError(
            f"{path} is damaged or not of whet's making: {reason(error)}; write it again with `whet apply`"
        ) from error


def _check_names(path: Path, records: list[str]) -> None:
    """Only records that are on the list, once each; and the same to zipfile, which torch reads older formats with."""
    for name in records:
        if not _RECORDS.fullmatch(name):
            raise ArtefactError(f"a record that whet does not write ({name})")
    with zipfile.ZipFile(path) as archive:
        entries = archive.namelist()
    root = entries[0].partition("/")[0]
    if len(set(entries)) != len(entries) or sorted(entries) != sorted(f"{root}/{name}" for name in records):
        raise ArtefactError("records that hide others")


def _check_payloads(config: Any) -> None:
    for payload in config["config"].values():
        if payload["use_pickle"] or not _PAYLOAD.fullmatch(payload["path_name"]):
            raise ArtefactError(f"a pickled object ({payload['path_name']})")


def _check_graph(graph: Any) -> None:
    for key, text in _texts(graph):
        if key in ("target", "as_operator"):
            fine = _is_operator(text)
        elif key == "expr_str":
            fine = _is_size(text)
        elif key in ("in_spec", "out_spec"):
            fine = _is_tree(json.loads(text)[1])
        elif key in _NAMES:
            fine = not text or text.isidentifier()
        else:
            fine = _PLAIN.fullmatch(text) is not None
        if not fine:
            raise ArtefactError(f"something else than a graph of known operators ({key}: {text[:80]!r})")


def _texts(node: Any, key: str = "") -> Iterator[tuple[str, str]]:
    """Every text below a node with the key it stands under, and every key as text of no key; free text is left out."""
    if isinstance(node, str):
        yield key, node
    elif isinstance(node, list):
        for item in node:
            yield from _texts(item, key)
    elif isinstance(node, dict):
        for name, item in node.items():
            yield "", name
            if name not in _FREE:
                yield from _texts(item, name)


def _is_operator(name: str) -> bool:
    """Return whether a name is an operator of PyTorch's dispatcher that opens no file, or arithmetic on sizes."""
    if _SYMBOLIC.fullmatch(name):
        return True
    if not name.startswith("torch.ops.") or "file" in name:
        return False
    target: Any = torch
    for part in name.split(".")[1:]:
        target = getattr(target, part, None)
    return isinstance(target, OpOverload | HigherOrderOperator)


def _is_size(expression: str) -> bool:
    """Return whether a text is an integer expression in sympy's notation: known functions of numbers and names."""
    for node in ast.walk(ast.parse(expression, mode="eval")):
        if not isinstance(node, _NODES):
            return False
        if isinstance(node, ast.Call) and not (isinstance(node.func, ast.Name) and node.func.id in _FUNCTIONS):
            return False
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and not re.fullmatch(r"[\w.+-]*", node.value):
            return False
    return True


def _is_tree(spec: Any) -> bool:
    """Return whether a tree's structure holds only tuples, lists, and dicts whose keys are text."""
    if spec["type"] not in _TREES:
        return False
    keys = json.loads(spec["context"] or "null") or []
    return all(isinstance(key, str) for key in keys) and all(map(_is_tree, spec["children_spec"]))
