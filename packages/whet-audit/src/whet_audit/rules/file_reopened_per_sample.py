"""DAT109 file-reopened-per-sample: a whole container opened again for one item of it.

Finds       h5py.File, np.load, zipfile.ZipFile, sqlite3.connect, open and the like in __getitem__, of a path that does
            not depend on the index; and `open` of one and the same file in each turn of a loop.
Why slow    Opening parses the container's directory, and np.load or pickle read all of it, for one sample.
Example     def __getitem__(self, i): return h5py.File(self.path)["x"][i]
Instead     Open on first use, once per worker: `if self.file is None: self.file = h5py.File(self.path)`.
Gain        time to open / time to load a sample.
Fix         none: the file must be opened in each worker, not before they are forked.
Source      h5py documentation, "Multiprocessing and HDF5"; PyTorch forum practice for HDF5 datasets.
"""

import ast
from collections.abc import Iterator

from whet_audit.finding import Confidence, Gain, Hit, HotPath, Priority
from whet_audit.hot_paths import HeatKind
from whet_audit.rule_context import RuleContext

CODE = "DAT109"
NAME = "file-reopened-per-sample"
PRIORITY = Priority.MEDIUM
PREVIEW = True
_GAIN = Gain(0.0, 0.5, "time to open the container / time to load a sample, where loading holds the step up")
_CONTAINERS = (
    "h5py.File",
    "numpy.load",
    "zipfile.ZipFile",
    "tarfile.open",
    "sqlite3.connect",
    "lmdb.open",
    "pandas.read_csv",
    "pandas.read_parquet",
    "pandas.read_pickle",
    "pandas.HDFStore",
    "netCDF4.Dataset",
    "xarray.open_dataset",
    "torch.load",
)


def check(context: RuleContext) -> Iterator[Hit]:
    """Containers opened per sample, then files opened per turn of a loop."""
    if not context.module.uses_torch:
        return
    builtin = (
        call for call in context.calls("open") if isinstance(call.func, ast.Name) and context.dotted(call.func) is None
    )
    for call in [*context.calls_to(*_CONTAINERS), *builtin]:
        hot = context.hot(call)
        if not call.args or context.keyword(call, "mmap_mode") is not None or (hot is not None and hot.guard):
            continue
        if hot is not None and hot.kind == HeatKind.DATA and _is_in_getitem(context, call):
            if not _is_kept(context, call) and _is_fixed(context, call):
                message = f"{context.shown(call)} opens the whole file again for every sample"
                yield Hit(at=call, hot=hot, message=message, confidence=Confidence.MEDIUM, gain=_GAIN)
        elif isinstance(call.func, ast.Name) and call.func.id == "open":
            yield from _in_loop(context, call, hot)


def _in_loop(context: RuleContext, call: ast.Call, hot: HotPath | None) -> Iterator[Hit]:
    loop = _loop_around(context, call)
    if loop is None or any(node in context.hot_paths.loops for node in ast.walk(loop)):
        return  # what a loop around training does, it does seldom
    if not _is_invariant(call, loop) or _is_guarded(context, call):
        return
    message = f"{context.shown(call)} opens the same file in every turn of the loop at line {loop.lineno}"
    yield Hit(at=call, hot=hot, message=message, confidence=Confidence.MEDIUM, gain=_GAIN, priority=Priority.LOW)


def _is_in_getitem(context: RuleContext, call: ast.Call) -> bool:
    return context.function_of(call).name in ("__getitem__", "__getitems__")


def _is_fixed(context: RuleContext, call: ast.Call) -> bool:
    """Whether the path depends on self and the module only: on no parameter and no local variable made from one."""
    function = context.function_of(call)
    parameters = {argument.arg for argument in function.arguments if argument.arg != "self"}
    names = {node.id for node in ast.walk(call.args[0]) if isinstance(node, ast.Name)}
    return bool(names or isinstance(call.args[0], ast.Constant)) and not names & (parameters | set(function.bindings))


def _is_kept(context: RuleContext, call: ast.Call) -> bool:
    """Whether what is opened is kept for the next sample, in an attribute."""
    statement = context.statement(call)
    if isinstance(statement, ast.Assign) and any(isinstance(t, ast.Attribute) for t in statement.targets):
        return True
    return _is_guarded(context, call)


def _is_guarded(context: RuleContext, call: ast.Call) -> bool:
    """Whether it is opened only where there is nothing yet."""
    for up in context.ancestors(call):
        if isinstance(up, ast.If) and any(isinstance(node, ast.Is | ast.NotIn) for node in ast.walk(up.test)):
            return True
        if isinstance(up, ast.If) and isinstance(up.test, ast.UnaryOp):
            return True
        if up in context.module.function_of_node:
            return False
    return False


def _loop_around(context: RuleContext, call: ast.Call) -> ast.For | None:
    """The innermost loop in the call's own function, unless something leaves it."""
    for up in context.ancestors(call):
        if isinstance(up, ast.For):
            return None if any(isinstance(node, ast.Break | ast.Return) for node in ast.walk(up)) else up
        if isinstance(up, ast.While) or up in context.module.function_of_node:
            return None
    return None


def _is_invariant(call: ast.Call, loop: ast.For) -> bool:
    """Whether the path is a name or attribute that nothing in the loop changes."""
    path = call.args[0]
    if not isinstance(path, ast.Name | ast.Attribute) or call in ast.walk(loop.iter):
        return False
    written = {node.id for node in ast.walk(loop) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    root = path
    while isinstance(root, ast.Attribute):
        root = root.value  # type: ignore[assignment]
    return isinstance(root, ast.Name) and root.id not in written
