"""SYN105 print-of-tensor: a tensor is printed or logged in every step, and the CPU waits for its value.

Finds       a tensor in print, in a logger's message, in tqdm's set_postfix or set_description, in add_scalar,
            wandb.log or log_metric, in every step of a loop. What goes through `.item()` is SYN101's.
Why slow    To write the value the CPU has to wait until all kernels queued so far have run.
Example     for step, (x, y) in enumerate(loader): ...; writer.add_scalar("loss", loss, step)
Instead     if step % 100 == 0: writer.add_scalar("loss", loss, step)
Gain        up to the share of the step that the CPU needs to queue its kernels, and the time of writing.
Fix         none: how often to log is yours to say.
Source      PyTorch performance tuning guide, "Avoid unnecessary CPU-GPU synchronization".
"""

import ast
from collections.abc import Iterator

from whet_audit.finding import Hit, Priority
from whet_audit.hot_paths import INFERS, TRAINS, HeatKind
from whet_audit.project import name_of
from whet_audit.rule_context import RuleContext
from whet_audit.waits import WAIT_GAIN, is_tensor_value, wait_for

CODE = "SYN105"
NAME = "print-of-tensor"
PRIORITY = Priority.MEDIUM
PREVIEW = True
_LEVELS = ("info", "debug")  # warnings are rare
_WRITERS = ("add_scalar", "add_scalars", "set_postfix", "set_postfix_str", "set_description", "log_metric")
_LOGGERS = ("wandb", "mlflow", "run", "experiment", "neptune", "trackio")
_KINDS = (*TRAINS, *INFERS, HeatKind.FORWARD)


def check(context: RuleContext) -> Iterator[Hit]:
    """Calls that write something, of which a part is a tensor."""
    for call in context.calls("print", *_LEVELS, *_WRITERS, "log", "log_metrics"):
        if not _writes(call):
            continue
        is_lazy = name_of(call) == "debug"  # a message that is seldom made, unless it is an f-string
        for shown in (part for one in _arguments(call) for part in _parts(one)):
            if not is_tensor_value(context, shown) or (
                is_lazy and not isinstance(context.parent(shown), ast.FormattedValue)
            ):
                continue
            wait = wait_for(context, call, shown)
            if wait is None or wait.hot.kind not in _KINDS:
                continue
            if not context.value(shown).is_sure and wait.hot.kind not in TRAINS:
                continue  # a loss by its name alone
            yield wait.hit(
                call,
                f"{context.shown(call.func)} writes {context.shown(shown)}, a tensor, in every step and waits for it",
                WAIT_GAIN,
            )
            break


def _writes(call: ast.Call) -> bool:
    """Whether a call is of print, a logger, a progress bar or a tracker. Lightning's `self.log` does not wait."""
    name = name_of(call)
    if isinstance(call.func, ast.Name):
        return name == "print"
    if not isinstance(call.func, ast.Attribute):
        return False
    if name in _WRITERS:
        return True
    owner = call.func.value
    words = owner.attr if isinstance(owner, ast.Attribute) else getattr(owner, "id", "")
    if name in _LEVELS:
        return "log" in words.lower()
    return name in ("log", "log_metrics") and (words in _LOGGERS or words.endswith(("accelerator", "fabric")))


def _arguments(call: ast.Call) -> Iterator[ast.expr]:
    yield from call.args
    for keyword in call.keywords:
        yield keyword.value


def _parts(expression: ast.expr) -> Iterator[ast.expr]:
    """What a message shows: the values of f-strings, of `%` and format, of dicts and tuples."""
    match expression:
        case ast.JoinedStr():
            for value in expression.values:
                if isinstance(value, ast.FormattedValue):
                    yield value.value
        case ast.Dict():
            for item in expression.values:
                yield from _parts(item)
        case ast.Tuple() | ast.List():
            for item in expression.elts:
                yield from _parts(item)
        case ast.BinOp(op=ast.Mod(), left=ast.Constant()):
            yield from _parts(expression.right)
        case ast.BinOp(op=ast.Add()) if isinstance(expression.left, ast.Constant | ast.JoinedStr | ast.BinOp):
            yield from _parts(expression.left)
            yield from _parts(expression.right)
        case (
            ast.Call(func=ast.Attribute(attr="format", value=ast.Constant()))
            | ast.Call(func=ast.Name(id="str" | "repr" | "dict"))
        ):
            for item in _arguments(expression):
                yield from _parts(item)
        case ast.Constant():
            return
        case _:
            yield expression
