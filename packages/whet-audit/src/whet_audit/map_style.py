"""Datasets that worker processes can read: samples by their index, and the same ones whoever asks, and when."""

from __future__ import annotations

import ast
import re

from whet_audit.project import name_of
from whet_audit.project_words import is_script
from whet_audit.rule_context import RuleContext
from whet_audit.source import Class

_SPLITS = ("random_split", "Subset", "ConcatDataset")
_OF_ONE_PROCESS = re.compile(
    r"cuda|\bdevice\b|queue|deque|\bLock\b|thread|socket|lmdb|h5py|sqlite|connect\(|buffer|\bshared|lambda|\benv\b"
    r"|IterableDataset|__iter__|self\.\w+ *= *open\(", re.I,
)  # fmt: skip
_DEEPEST = 4


def is_fixed(context: RuleContext, dataset: ast.expr | None, _depth: int = 0) -> bool:
    """Whether a dataset is known to give the same samples by index in every process.

    That holds for torchvision's datasets, for those of the project whose class keeps nothing that belongs to one
    process and changes nothing after `__init__`, and for parts of them.
    """
    if dataset is None or _depth > _DEEPEST:
        return False
    if isinstance(dataset, ast.Name):
        bindings = context.function_of(dataset).bindings.get(dataset.id) or context.module.top.bindings.get(
            dataset.id, []
        )
        if not bindings or any(b.value is None or b.how != "value" or b.value is dataset for b in bindings):
            return False
        return all(is_fixed(context, b.value, _depth + 1) for b in bindings)
    if not isinstance(dataset, ast.Call) or any(isinstance(node, ast.Lambda) for node in ast.walk(dataset)):
        return False
    dotted = context.dotted(dataset.func) or ""
    if dotted.startswith("torchvision.datasets."):
        return True
    if dotted.startswith("torch.utils.data.") and name_of(dataset) in _SPLITS and dataset.args:
        parts = dataset.args[0].elts if isinstance(dataset.args[0], ast.List) else dataset.args[:1]
        return all(is_fixed(context, part, _depth + 1) for part in parts)
    cls = context.value(dataset).cls
    return cls is not None and _is_plain(context, cls)


def is_unguarded(context: RuleContext, node: ast.AST) -> bool:
    """Whether importing the script again, as spawned workers do, would run it again."""
    if not any(isinstance(up, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) for up in context.ancestors(node)):
        return not any(isinstance(up, ast.If) and "__name__" in ast.unparse(up.test) for up in context.ancestors(node))
    if not is_script(context.module) or "__name__" in context.module.text:
        return any(isinstance(one, ast.Expr) and _runs_own(context, one) for one in context.module.tree.body)
    return True


def _runs_own(context: RuleContext, statement: ast.Expr) -> bool:
    return isinstance(statement.value, ast.Call) and context.target(statement.value) is not None


def _is_plain(context: RuleContext, cls: Class) -> bool:
    """Whether a class hands out samples by index, and is all there is to know of it."""
    if not {"__getitem__", "__len__"} <= set(cls.methods) or "." in cls.qualname or not _is_at_top(cls):
        return False
    known = ("torch.utils.data.Dataset", "torch.utils.data.dataset.Dataset", "object")
    if any(isinstance(base, str) and base not in known for base in context.project.ancestry(cls)):
        return False
    if _OF_ONE_PROCESS.search(cls.module.source_of(cls.node)):
        return False
    return not any(
        isinstance(node, ast.Attribute | ast.Subscript) and isinstance(node.ctx, ast.Store)
        for name, method in cls.methods.items()
        if name != "__init__"
        for node in ast.walk(method.node)
    )


def _is_at_top(cls: Class) -> bool:
    """Whether the class can be found again by its name, as unpickling has to."""
    return cls.node in cls.module.tree.body
