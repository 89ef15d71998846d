"""Whether a copy to the GPU may be queued (`non_blocking=True`): of what, from where, and to which device.

A queued copy from the CPU to CUDA is ordered before the kernels that read it. A queued copy to the CPU is not: the CPU
may read before the data is there. On MPS such copies may give wrong data. So the source and the device both have to be
known.
"""

from __future__ import annotations

import ast
import re
from enum import IntEnum

from whet_audit.abstract_types import Kind
from whet_audit.finding import Fix
from whet_audit.loaders import loader_of
from whet_audit.project import name_of
from whet_audit.project_words import mentions
from whet_audit.rule_context import RuleContext
from whet_audit.source import COMPREHENSIONS, Binding, Function, Module

_TITLE = "queue the copy and go on"
_LOADER = ("torch.utils.data.DataLoader", "torch.utils.data.dataloader.DataLoader")
_IN_MEMORY = ("torch.utils.data.TensorDataset", "torch.utils.data.dataset.TensorDataset")
_SPLITS = ("random_split", "Subset", "ConcatDataset")
_SAME_PLACE = frozenset(
    "float long int double half bool squeeze unsqueeze view reshape flatten permute transpose".split()
)
_WRAPPERS = frozenset("tqdm enumerate iter list notebook_tqdm".split())
_COLLATED = (Kind.TENSOR, Kind.ARRAY, Kind.NUMBER)  # default_collate makes tensors of these
_OTHER_DEVICES = r"\b(mps|set_default_device|set_default_tensor_type)\b"
_DEEPEST = 6


class Target(IntEnum):
    """The device a tensor is moved to, as far as the code says; of several possible ones the last."""

    CUDA = 0
    CUDA_OR_CPU = 1
    UNKNOWN = 2
    OTHER = 3


def queued(context: RuleContext, call: ast.Call, moved: ast.expr) -> Fix | None:
    """Give a copy `non_blocking=True`.

    Args:
        context: the module that the call is in.
        call: a call of `.to` or `.cuda`.
        moved: what is moved, the owner of the method.

    Returns:
        A safe fix for a tensor that surely comes from a DataLoader and goes to CUDA, or stays on the CPU where it is.
        An unsafe one for what is likely the same. None where the object may be no tensor, or where the copy may go to
        the CPU or to MPS.
    """
    if not isinstance(call.func, ast.Attribute) or call.func.attr not in ("to", "cuda") or context.has_star(call):
        return None
    root = _root(moved)
    if root is None or context.value(moved).cls is not None or context.kind(moved) in (Kind.MODEL, Kind.ENCODING):
        return None
    if _is_written(context, root):
        return None  # the copy from pinned memory may still be under way
    if is_certain(context, call, moved):
        return context.set_keyword(call, "non_blocking", "True", _TITLE, safe=True)
    target = target_of(context, call)
    if target is Target.CUDA and context.is_tensor(moved, surely=True) and context.kind(moved) is Kind.TENSOR:
        return context.set_keyword(call, "non_blocking", "True", _TITLE, safe=False)
    if target > Target.UNKNOWN or not _is_part_of_batch(context, root, moved):
        return None
    if target is Target.UNKNOWN and mentions(context.project, context.module, _OTHER_DEVICES):
        return None
    return context.set_keyword(call, "non_blocking", "True", _TITLE, safe=False)


def is_certain(context: RuleContext, call: ast.Call, moved: ast.expr) -> bool:
    """Whether a call surely moves a tensor of a loader's batch from the CPU to CUDA, or leaves it on the CPU."""
    root = _root(moved)
    if root is None or not isinstance(moved, ast.Name) or target_of(context, call) > Target.CUDA_OR_CPU:
        return False
    if mentions(context.project, context.module, _OTHER_DEVICES):
        return False
    loop = _loop_of(context, root)
    made = loader_of(context, loop.iter) if loop is not None else None
    if loop is None or made is None or context.dotted(made.func) not in _LOADER or context.has_star(made):
        return False
    size = context.keyword(made, "batch_size", 1)
    if context.keyword(made, "collate_fn", 6) is not None or (size is not None and context.constant(size) is None):
        return False
    index = _place_in_batch(loop, root.id)
    dataset = context.keyword(made, "dataset", 0)
    return index is not None and dataset is not None and _gives_tensors(context, dataset, index, 0)


def target_of(context: RuleContext, call: ast.Call) -> Target:
    """The device that a call of `.to` or `.cuda` moves to."""
    if isinstance(call.func, ast.Attribute) and call.func.attr == "cuda":
        return Target.CUDA
    given = context.keyword(call, "device", 0)
    return Target.UNKNOWN if given is None else _device(context, context.module, given, 0)


def _device(context: RuleContext, module: Module, e: ast.expr, depth: int) -> Target:
    if depth > _DEEPEST or module is not context.module:
        return Target.UNKNOWN
    match e:
        case ast.Constant(value=str(name)):
            return Target.CUDA if name.startswith("cuda") else Target.CUDA_OR_CPU if name == "cpu" else Target.OTHER
        case ast.JoinedStr(values=[ast.Constant(value=str(name)), *_]):
            return Target.CUDA if name.startswith("cuda") else Target.UNKNOWN
        case ast.Call() if name_of(e) == "device" and e.args and (context.dotted(e.func) or "") == "torch.device":
            return _device(context, module, e.args[0], depth + 1)
        case ast.IfExp():
            return max(_device(context, module, one, depth + 1) for one in (e.body, e.orelse))
        case ast.Name():
            return _named(context, module, e, depth)
        case ast.Attribute(value=ast.Name(id="self")):
            cls = module.class_of(e)
            bindings = context.project.attribute(cls, e.attr) if cls is not None else []
            return _bound(context, bindings, depth)
    return Target.UNKNOWN


def _named(context: RuleContext, module: Module, name: ast.Name, depth: int) -> Target:
    scope: Function | None = module.function_of(name)
    while scope is not None:
        is_given = any(argument.arg == name.id for argument in scope.arguments)
        bindings = scope.bindings.get(name.id, [])
        if is_given:
            found = _given(context, scope, name.id, depth)
            return max(found, _bound(context, bindings, depth)) if bindings else found
        if bindings:
            return _bound(context, bindings, depth)
        scope = scope.parent
    return Target.UNKNOWN


def _bound(context: RuleContext, bindings: list[Binding], depth: int) -> Target:
    found = [Target.UNKNOWN]
    if bindings and all(b.how == "value" and not b.path and b.value is not None for b in bindings):
        found = [_device(context, b.module, b.value, depth + 1) for b in bindings if b.value is not None]
    return max(found)


def _given(context: RuleContext, function: Function, name: str, depth: int) -> Target:
    """What all callers of a function give for a parameter; unknown for one that nothing here calls."""
    names = [argument.arg for argument in function.arguments]
    place = names.index(name) - (1 if names[:1] == ["self"] else 0)
    found = []
    for at, call in context.project.callers(function):
        given = context.keyword(call, name, place)
        given = function.default_of(name) if given is None and not context.has_star(call) else given
        found.append(Target.UNKNOWN if given is None else _device(context, at.module, given, depth + 1))
    return max(found, default=Target.UNKNOWN)


def _root(moved: ast.expr) -> ast.Name | None:
    """The name of which a part is moved: x of `x`, `x[0]`, `x["y"]` and `x.float()`; None for anything else."""
    while True:
        if isinstance(moved, ast.Name):
            return moved
        if isinstance(moved, ast.Subscript):
            moved = moved.value
        elif isinstance(moved, ast.Call) and isinstance(moved.func, ast.Attribute) and moved.func.attr in _SAME_PLACE:
            moved = moved.func.value
        else:
            return None


def _is_written(context: RuleContext, root: ast.Name) -> bool:
    """Whether the function changes what a name holds in place."""
    function = context.function_of(root)
    for call in function.calls:
        owner = call.func.value if isinstance(call.func, ast.Attribute) else None
        is_in_place = re.fullmatch(r"[a-z]\w*[a-z]_", name_of(call)) is not None
        if is_in_place and isinstance(owner, ast.Name) and owner.id == root.id and owner.lineno != root.lineno:
            return True
    return any(
        isinstance(node.ctx, ast.Store) and isinstance(node.value, ast.Name) and node.value.id == root.id
        for node in ast.walk(function.node)
        if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Slice | ast.Tuple)
    )


def _is_part_of_batch(context: RuleContext, root: ast.Name, moved: ast.expr) -> bool:
    """Whether it is one part of what a loop over a loader gives; a whole batch may be an object of any class."""
    loop = _loop_of(context, root)
    if loop is None:
        return False
    is_whole = isinstance(_target(loop), ast.Name) and root.id == getattr(_target(loop), "id", "")
    return not is_whole or isinstance(moved, ast.Subscript)


def _loop_of(context: RuleContext, name: ast.Name) -> ast.For | None:
    """The loop over a loader whose batch a name is, or is a part of, where it stands."""
    wanted = name.id
    for up in context.ancestors(name):
        if isinstance(up, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            return None
        if isinstance(up, COMPREHENSIONS):
            for generator in reversed(up.generators):
                if wanted in _names(generator.target):
                    wanted = next(iter(_names(generator.iter)), "")
        elif isinstance(up, ast.For) and wanted in _names(up.target):
            is_loader = loader_of(context, up.iter) is not None or context.kind(_bare(up.iter)) is Kind.LOADER
            return up if is_loader and not _is_bound_again(context, name, wanted, up) else None
    return None


def _is_bound_again(context: RuleContext, name: ast.Name, wanted: str, loop: ast.For) -> bool:
    """Whether the loop gives the name another value above the place where it is read."""
    own = context.statement(name)
    return any(
        binding.node not in (own, loop) and loop.lineno <= binding.line <= name.lineno
        for binding in context.function_of(name).bindings.get(wanted, ())
        if not isinstance(binding.node, ast.comprehension)
    )


def _bare(iterable: ast.expr) -> ast.expr:
    while isinstance(iterable, ast.Call) and name_of(iterable) in _WRAPPERS and iterable.args:
        iterable = iterable.args[0]
    return iterable


def _target(loop: ast.For) -> ast.expr:
    """What takes the batch: `x, y` of `for i, (x, y) in enumerate(loader)`."""
    iterable, target = loop.iter, loop.target
    while isinstance(iterable, ast.Call) and name_of(iterable) in _WRAPPERS and iterable.args:
        if name_of(iterable) == "enumerate" and isinstance(target, ast.Tuple) and len(target.elts) == 2:
            target = target.elts[1]
        iterable = iterable.args[0]
    return target


def _place_in_batch(loop: ast.For, name: str) -> int | None:
    target = _target(loop)
    parts = target.elts if isinstance(target, ast.Tuple | ast.List) else []
    return next((i for i, part in enumerate(parts) if isinstance(part, ast.Name) and part.id == name), None)


def _gives_tensors(context: RuleContext, dataset: ast.expr, index: int, depth: int) -> bool:
    """Whether the part of each sample at an index becomes a tensor on the CPU when samples are collated."""
    if depth > _DEEPEST:
        return False
    if isinstance(dataset, ast.Name):
        bindings = context.function_of(dataset).bindings.get(dataset.id) or context.module.top.bindings.get(
            dataset.id, []
        )
        values = [binding.value for binding in bindings if binding.value is not None]
        is_clear = len(values) == len(bindings) == 1 and bindings[0].how == "value"
        is_split = is_clear and isinstance(values[0], ast.Call) and name_of(values[0]) == "random_split"
        return is_clear and (not bindings[0].path or is_split) and _gives_tensors(context, values[0], index, depth + 1)
    if not isinstance(dataset, ast.Call):
        return False
    dotted = context.dotted(dataset.func) or ""
    if dotted in _IN_MEMORY:
        return bool(dataset.args) and all(context.value(one).device == "cpu" for one in dataset.args)
    if dotted.startswith("torchvision.datasets."):
        return True
    if dotted.startswith("torch.utils.data.") and name_of(dataset) in _SPLITS and dataset.args:
        parts = dataset.args[0].elts if isinstance(dataset.args[0], ast.List) else dataset.args[:1]
        return all(_gives_tensors(context, part, index, depth + 1) for part in parts)
    return _class_gives_tensors(context, dataset, index)


def _class_gives_tensors(context: RuleContext, dataset: ast.Call, index: int) -> bool:
    """As above, of the project's own class: by what `__getitem__` returns."""
    cls = context.value(dataset).cls
    method = cls.methods.get("__getitem__") if cls is not None else None
    if cls is None or method is None or not method.returns or re.search(r"cuda|device", cls.module.text):
        return False
    for returned in method.returns:
        parts = returned.value.elts if isinstance(returned.value, ast.Tuple) else []
        value = context.kinds.of(cls.module, parts[index]) if index < len(parts) else None
        if value is None or not value.is_sure or value.kind not in _COLLATED or value.cls is not None:
            return False
    return True


def _names(target: ast.AST) -> set[str]:
    return {node.id for node in ast.walk(target) if isinstance(node, ast.Name)}
