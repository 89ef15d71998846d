"""The data loaders a module makes: what they are given, also through a dict of keywords, and who iterates over them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass

from whet_audit.abstract_types import Kind
from whet_audit.hot_paths import TRAINS, HeatKind
from whet_audit.project import name_of
from whet_audit.rule_context import RuleContext
from whet_audit.source import Class, Function

_POSITIONS = ("dataset", "batch_size", "shuffle", "sampler", "batch_sampler", "num_workers", "collate_fn", "pin_memory")
_CLASSES = ("DataLoader", "PyGDataLoader", "MultiEpochsDataLoader", "StatefulDataLoader")
_MAKERS = frozenset(("torch", "torchdata", "torch_geometric", "monai"))
_LIKE_A_LOADER = re.compile(r"([A-Z]\w*)?(Loader|Sampler)|(data_?)?loader_(class|cls|type)|(class|cls)_loader")
_TRAINING = re.compile(r"(^|[_.])(trn|tr|finetune)([_.\d]|$)|train")
_EVALUATION = re.compile(
    r"(^|[_.])(val|valid|validation|eval|evaluation|test|tst|dev|infer|inference|pred|predict|prediction|score|embed)"
    r"([_.\d]|$)|(val|valid|test|eval)(_?data)?(_?loader|set|_?dl)|predict|evaluate"
)
_IN_MEMORY = frozenset(("torch.utils.data.TensorDataset", "torch.utils.data.dataset.TensorDataset"))
_SPLITS = ("random_split", "Subset", "ConcatDataset", "train_test_split")
_ONLY_WRAP = frozenset("len tqdm enumerate iter track zip print cycle".split())


@dataclass(frozen=True, eq=False)
class Loader:
    """A call that makes a loader.

    arguments: by name, those of a dict given by `**` among them. options: that dict where it is a literal, else None.
    is_complete: nothing else can be hidden in the call. name: what it is bound to, "" where to nothing.
    use: "training", "evaluation" or "" where not known. hot_loop: a step loop over it, in the same file.
    is_repeated: iterated over in more than one epoch; None: not known.
    """

    call: ast.Call
    arguments: dict[str, ast.expr]
    options: ast.Dict | None
    is_complete: bool
    name: str
    use: str
    hot_loop: ast.AST | None
    is_repeated: bool | None


def loaders(context: RuleContext, *, also_like_loaders: bool = False) -> Iterator[Loader]:
    """The module's calls of DataLoader, in code that is no test.

    also_like_loaders: of other classes, too, which are named like one and are given `num_workers`.
    """
    if not context.module.uses_torch or context.module.is_test:
        return
    for call in context.nodes(ast.Call):
        if _is_loader(context, call) or (also_like_loaders and _is_like_one(context, call)):
            yield _loader(context, call)


def is_in_memory(context: RuleContext, dataset: ast.expr | None, _depth: int = 0) -> bool:
    """Whether a dataset only hands out what lies in memory, which workers would not make faster."""
    if dataset is None or _depth > 3:
        return False
    value = context.value(dataset)
    if value.dotted in _IN_MEMORY or value.kind in (Kind.TENSOR, Kind.ARRAY, Kind.LIST):
        return True
    if value.cls is not None:
        return _only_indexes(value.cls)
    if isinstance(dataset, ast.Call):
        if context.dotted(dataset.func) in _IN_MEMORY or name_of(dataset) == "TensorDataset":
            return True
        return name_of(dataset) in _SPLITS and is_in_memory(context, next(iter(dataset.args), None), _depth + 1)
    if isinstance(dataset, ast.Name):
        bindings = context.function_of(dataset).bindings.get(dataset.id, [])
        values = [binding.value for binding in bindings if binding.value is not None]
        return len(values) == 1 and values[0] is not dataset and is_in_memory(context, values[0], _depth + 1)
    return False


def _only_indexes(cls: Class) -> bool:
    """Whether __getitem__ calls nothing of weight."""
    method = cls.methods.get("__getitem__")
    return method is not None and all(name_of(call) in ("len", "int", "range", "min", "max") for call in method.calls)


def _is_loader(context: RuleContext, call: ast.Call) -> bool:
    name = name_of(call)
    if name not in _CLASSES and context.module.imports.get(name, "").rpartition(".")[2] not in _CLASSES:
        return False
    dotted = context.dotted(call.func)
    if dotted is None:
        return True
    is_of_torch = any(part in _MAKERS for part in dotted.split("."))  # also copies inside other packages
    return is_of_torch and context.project.class_at(dotted) is None


def _is_like_one(context: RuleContext, call: ast.Call) -> bool:
    if not any(keyword.arg == "num_workers" for keyword in call.keywords) or context.target(call) is not None:
        return False
    return _LIKE_A_LOADER.fullmatch(name_of(call)) is not None


def _loader(context: RuleContext, call: ast.Call) -> Loader:
    arguments = {keyword.arg: keyword.value for keyword in call.keywords if keyword.arg is not None}
    is_complete = not any(isinstance(argument, ast.Starred) for argument in call.args)
    if is_complete and _is_loader(context, call):
        arguments.update(zip(_POSITIONS, call.args, strict=False))
    options = None
    for keyword in call.keywords:
        if keyword.arg is None:
            options = _dict_of(context, keyword.value)
            hidden = _keys(context, keyword.value, options) if options is not None else None
            is_complete = is_complete and hidden is not None
            arguments.update(hidden or {})
    name = _bound_to(context, call)
    loop, is_repeated = _iteration(context, call, name)
    use = _use(context, call, name, arguments, loop)
    return Loader(call, arguments, options, is_complete, name, use, loop, is_repeated)


def _dict_of(context: RuleContext, e: ast.expr) -> ast.Dict | None:
    """The literal that a name given by `**` is bound to, and only that one."""
    if isinstance(e, ast.Dict):
        return e
    if not isinstance(e, ast.Name):
        return None
    function: Function | None = context.function_of(e)
    while function is not None:
        bindings = function.bindings.get(e.id)
        if bindings:
            value = bindings[0].value
            return value if len(bindings) == 1 and isinstance(value, ast.Dict) and not bindings[0].path else None
        function = function.parent
    return None


def _keys(context: RuleContext, e: ast.expr, options: ast.Dict) -> dict[str, ast.expr] | None:
    """The dict's keys and those set later by `name["key"] = value`; None where there may be others."""
    found: dict[str, ast.expr] = {}
    for key, value in zip(options.keys, options.values, strict=True):
        if not isinstance(key, ast.Constant) or not isinstance(key.value, str):
            return None
        found[key.value] = value
    if not isinstance(e, ast.Name):
        return found
    for call in context.calls("update", "setdefault"):
        if isinstance(call.func, ast.Attribute) and getattr(call.func.value, "id", None) == e.id:
            return None
    for statement in context.nodes(ast.Assign):
        target = statement.targets[0]
        if isinstance(target, ast.Subscript) and getattr(target.value, "id", None) == e.id:
            if not isinstance(target.slice, ast.Constant):
                return None
            found[str(target.slice.value)] = statement.value
    return found


def _bound_to(context: RuleContext, call: ast.Call) -> str:
    statement = context.statement(call)
    if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
        target = statement.targets[0]
        if isinstance(target, ast.Name):
            return target.id
        if isinstance(target, ast.Attribute):
            return f"{getattr(target.value, 'id', '')}.{target.attr}"
    return ""


def _iteration(context: RuleContext, call: ast.Call, name: str) -> tuple[ast.AST | None, bool | None]:
    """The step loop over the loader, and whether it runs more than once for one loader."""
    statement = context.statement(call)
    if isinstance(statement, ast.For) and call in ast.walk(statement.iter):
        return (statement if statement in context.hot_paths.loops else None), False
    if not name:
        return None, None
    last = name.rpartition(".")[2]
    functions = list(context.functions()) if "." in name else [context.function_of(call)]
    loops = [loop for f in functions for loop in f.loops if isinstance(loop, ast.For) and _names(loop.iter, last)]
    hot = next((loop for loop in loops if loop in context.hot_paths.loops), None)
    if not loops or "." in name:
        return hot, None
    around = [up for up in context.ancestors(call) if isinstance(up, ast.For | ast.While)]
    for loop in loops:
        outer = [up for up in context.ancestors(loop) if isinstance(up, ast.For | ast.While) and up not in around]
        if any(context.function_of(up) is functions[0] for up in outer):
            return hot, True
    return hot, None if _is_handed_on(functions[0], last) else False


def _names(e: ast.expr, name: str) -> bool:
    return any(getattr(node, "id", getattr(node, "attr", None)) == name for node in ast.walk(e))


def _is_handed_on(function: Function, name: str) -> bool:
    """Whether the loader is given to something that may iterate over it: anything but a loop's wrapper or len()."""
    for call in function.calls:
        is_given = any(getattr(argument, "id", None) == name for argument in call.args)
        if is_given and name_of(call) not in _ONLY_WRAP:
            return True
    return any(statement.value is not None and _names(statement.value, name) for statement in function.returns)


def _use(context: RuleContext, call: ast.Call, name: str, arguments: dict[str, ast.expr], loop: ast.AST | None) -> str:
    if loop is not None:
        return "training" if HeatKind(context.hot_paths.loops[loop]) in TRAINS else "evaluation"
    dataset = arguments.get("dataset")
    function = context.function_of(call).name
    for words in (name, context.shown(dataset) if dataset is not None else "", function):
        lowered = words.lower()
        if _EVALUATION.search(lowered):
            return "evaluation"
        if _TRAINING.search(lowered):
            return "training"
    return ""
