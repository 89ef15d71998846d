"""CMP103 loop-over-time-steps: a Python loop over the positions of a sequence, a few small kernels for each.

Finds       `for t in range(x.size(1))`, `for x_t in x.unbind(1)` and their like in a forward pass or a step, whose body
            runs a cell (LSTMCell, GRUCell) or tensor operations on position t. Not loops that generate.
Why slow    Each step launches kernels of microseconds after Python has prepared them; a GPU stands nearly idle.
Example     for t in range(x.size(1)): h = self.cell(x[:, t], h); out.append(h)
Instead     nn.LSTM / nn.GRU over the whole sequence; a scan by cumsum or in chunks; torch.compile of the loop.
Gain        most of the loop's time where a fused kernel exists; little for large batches.
Fix         none: it depends on the recurrence.
Source      PyTorch documentation of torch.nn.LSTM; Appleyard et al. 2016, "Optimizing Performance of RNNs on GPUs".
"""

import ast
import re
from collections.abc import Iterator

from whet_audit.calls import CallKind
from whet_audit.dataflow import last_name, names_bound_in, names_in
from whet_audit.finding import Confidence, Gain, Hit, HotPath, Priority
from whet_audit.hot_paths import HeatKind
from whet_audit.loop_subjects import Subject, is_made_above, runs_often, subject, tensor_work
from whet_audit.rule_context import RuleContext

CODE = "CMP103"
NAME = "loop-over-time-steps"
PRIORITY = Priority.MEDIUM
PREVIEW = True
_GAIN = Gain(0.0, 0.5, "a loop that makes up most of the step, and a fused kernel for what it does")
_CELLS = ("torch.nn.LSTMCell", "torch.nn.GRUCell", "torch.nn.RNNCell")
_GENERATES = re.compile(r"argmax|multinomial|top_?k|sampl|categorical|generate|greedy|scheduler|denoise", re.I)


def check(context: RuleContext) -> Iterator[Hit]:
    """For-loops over time whose body works on tensors."""
    for loop in context.nodes(ast.For):
        found = subject(context, loop)
        if found not in (Subject.TIME, Subject.POSITIONS) or _is_step_loop(context, loop):
            continue
        often, hot = runs_often(context, loop)
        if not often or (
            hot is not None and hot.kind in (HeatKind.GENERATION, HeatKind.DENOISING, HeatKind.INFERENCE_CALL)
        ):
            continue
        carried = _carried(loop)
        cell, is_carried = _cell(context, loop, carried), bool(carried)
        num_operations = tensor_work(context, loop, list(loop.body))
        if cell is None and (num_operations < 2 or ((found is Subject.POSITIONS or hot is None) and not is_carried)):
            continue
        if _picks(loop):
            continue
        yield Hit(
            at=loop,
            hot=hot,
            message=f"Python runs {_header(context, loop)} step by step"
            + (
                f", {context.shown(cell.func)} each time" if cell else f", {num_operations} tensor operations each time"
            ),
            confidence=_confidence(cell, is_carried, hot),
            gain=_GAIN,
            priority=Priority.HIGH if cell is not None and hot is not None else None,
        )


def _confidence(cell: ast.Call | None, is_carried: bool, hot: HotPath | None) -> Confidence:
    if hot is None:
        return Confidence.LOW
    return Confidence.HIGH if cell is not None else Confidence.MEDIUM if is_carried else Confidence.LOW


def _header(context: RuleContext, loop: ast.For) -> str:
    return f"for {context.shown(loop.target)} in {context.shown(loop.iter)}"


def _is_step_loop(context: RuleContext, loop: ast.For) -> bool:
    return any(step_loop is loop for step_loop in context.loops())


def _cell(context: RuleContext, loop: ast.For, carried: set[str]) -> ast.Call | None:
    """A recurrent cell that the body calls, or a model that gets the state it gave."""
    for node in ast.walk(loop):
        if not isinstance(node, ast.Call):
            continue
        if context.value(node.func).dotted in _CELLS:
            return node
        arguments = [a.id for a in node.args if isinstance(a, ast.Name)]
        if len(node.args) > 1 and carried.intersection(arguments) and context.call_kind(node) is CallKind.MODEL:
            return node
    return None


def _carried(loop: ast.For) -> set[str]:
    """Names that a statement of the body makes from what they were: the state."""
    found: set[str] = set()
    for node in ast.walk(loop):
        if isinstance(node, ast.Assign):
            both = names_bound_in(node) & names_in(node.value)
            found |= {name for name in both if not is_made_above(loop, node, name)}
    return found


def _picks(loop: ast.For) -> bool:
    """Whether the body chooses the next token from what it has computed: it cannot know them before."""
    calls = (node for node in ast.walk(loop) if isinstance(node, ast.Call))
    return any(_GENERATES.search(last_name(call.func)) for call in calls)
