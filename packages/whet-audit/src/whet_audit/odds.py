"""How often a condition holds: each n-th step, once, never, or not known; by what it asks and where that was bound."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence

from whet_audit.constants import Constants
from whet_audit.in_practice import InPractice, is_rebound
from whet_audit.project import Project, name_of
from whet_audit.source import Binding, Function, Module
from whet_audit.written_settings import WrittenSettings

SELDOM = 1 / 8  # a condition that holds less often keeps code out of the steps that count
ONCE = 0.01  # of the steps: the first, the last, each hundredth
_MOST_CALLERS = 4
_DEEPEST = 5
_TRAINING = 3 / 4  # of the forward passes
_FIRST_STEPS = 20  # `step < 20` is a beginning
_SIZES = frozenset("shape size len numel ndim dim".split())
# Counters that a framework or a caller outside of the project hands in; all others are followed to where they count.
_COUNTS = re.compile(
    r"(^|_)(i|idx|it|iter|iteration|n_iter|step|steps|batch_idx|batch_id|batch_i|batch_count|epoch)($|_)"
)
# Options of a program whose value the code does not show: what they turn on is for people who look on.
_ASKED_FOR = re.compile(
    r"(^|_)(debug|verbose|dry_run|profil(e|ing)|sanity|plot|vis|visuali[sz]e|save|checkpoint|ckpt|eval|warned|"
    r"(log|logging|print|eval|save|should)_\w+|do_log|early_stop|patience|overflow|is_last|(last|first)_step|"
    r"is_?nan|is_?inf)($|_)",
    re.IGNORECASE,
)

# The process for which all others wait, and the micro-step with which the optimiser's step is made.
_MAIN = re.compile(r"^_?is_(local_|global_|world_)?(main|master|rank_?(zero|0))(_process|_rank)?$|^sync_gradients$")
_RANK = re.compile(r"(^|_)rank$")
_LEFT_OUT = re.compile(r"_?(ignore|skip|disable|no|without)_", re.IGNORECASE)


class Odds:
    """Tells the share of times that a condition holds, in each turn of a loop or call of a function, the `unit`."""

    def __init__(self, project: Project, constants: Constants, settings: WrittenSettings) -> None:
        self._project = project
        self._constants = constants
        self._practice = InPractice(project, constants, settings)

    def holds(self, module: Module, test: ast.expr, unit: ast.AST | None, _depth: int = 0) -> float | None:
        """The share, from 0 to 1; None where nothing is known."""
        if _depth > _DEEPEST:
            return None
        decided = self._practice.truth(module, test)
        if decided is not None:
            return float(decided)
        match test:
            case ast.UnaryOp(op=ast.Not()):
                return _other(self.holds(module, test.operand, unit, _depth))
            case ast.BoolOp():
                return self._joined(test, [self.holds(module, one, unit, _depth) for one in test.values])
            case ast.BinOp(op=ast.Mod()):
                return _other(self._each(module, test, unit))
            case ast.Compare() if len(test.ops) == 1:
                return self._compared(module, test, unit)
            case ast.Name():
                return self._named(module, test, unit, _depth)
            case ast.Attribute(attr="training"):
                return _TRAINING
            case ast.Attribute():
                return 1 - ONCE if _MAIN.search(test.attr) else _asked_for(test.attr)
            case ast.Call():
                return self._called(module, test, unit, _depth)
        return None

    @staticmethod
    def _joined(test: ast.BoolOp, shares: Sequence[float | None]) -> float | None:
        known = [share for share in shares if share is not None]
        if isinstance(test.op, ast.And):
            return min(known) if known and (len(known) == len(shares) or min(known) < SELDOM) else None
        return min(1.0, sum(known)) if known and (len(known) == len(shares) or max(known) > 1 - SELDOM) else None

    # --- counters -----------------------------------------------------------------------------------------------------

    def _compared(self, module: Module, test: ast.Compare, unit: ast.AST | None) -> float | None:
        left, operator, right = test.left, test.ops[0], test.comparators[0]
        modulo = next(
            (one for one in ast.walk(left) if isinstance(one, ast.BinOp) and isinstance(one.op, ast.Mod)), None
        )
        if modulo is not None:
            share = self._each(module, modulo, unit)
            return share if isinstance(operator, ast.Eq) else _other(share) if isinstance(operator, ast.NotEq) else None
        if isinstance(operator, ast.Eq | ast.NotEq | ast.Lt | ast.Gt | ast.LtE | ast.GtE):
            share = self._at_number(module, left, operator, right, unit)
            if share is not None:
                return share
        is_flag = any(_ASKED_FOR.search(_last_name(side)) for side in (left, right))
        return ONCE if is_flag and not isinstance(operator, ast.Is | ast.IsNot | ast.NotEq) else None

    def _at_number(
        self, module: Module, left: ast.expr, operator: ast.cmpop, right: ast.expr, unit: ast.AST | None
    ) -> float | None:
        """`step == n`, `step < 10`, `step > 0`: of a counter of steps, or of turns of a loop inside the step."""
        if isinstance(operator, ast.Eq) and _is_number(right, 0) and _RANK.search(_last_name(left)):
            return 1 - ONCE
        is_last = isinstance(right, ast.BinOp) and isinstance(right.op, ast.Sub) and _is_number(right.right, 1)
        is_inner = self._is_counter(module, left, unit)
        if is_inner is None and not is_last:
            return None
        one = SELDOM if is_inner else ONCE
        if isinstance(operator, ast.Eq | ast.NotEq):
            return one if isinstance(operator, ast.Eq) else 1 - one
        last = self._constants.value(module, right)
        if not isinstance(last, int) or last > _FIRST_STEPS:
            return None
        return one if isinstance(operator, ast.Lt | ast.LtE) else 1 - one

    def _each(self, module: Module, modulo: ast.BinOp, unit: ast.AST | None) -> float | None:
        """The share of steps with `step % n == 0`; None where what is divided is a size, not a number of steps."""
        if self._is_size(module, modulo.left):
            return None
        every = self._constants.value(module, modulo.right)
        is_inner = self._is_counter(module, modulo.left, unit) is True
        if not isinstance(every, int) or every <= 0:
            return 0.5 if is_inner else ONCE
        return max(1 / every, SELDOM) if is_inner else 1 / every

    def _is_counter(self, module: Module, e: ast.expr, unit: ast.AST | None, _depth: int = 0) -> bool | None:
        """False of a number of steps, True of a number of turns of a loop inside the step, None of anything else."""
        while isinstance(e, ast.BinOp) and isinstance(e.op, ast.Add | ast.Sub):
            e = e.left
        if isinstance(e, ast.Attribute):
            cls = module.class_of(e)
            bindings = self._project.attribute(cls, e.attr) if cls is not None else []
            return False if any(b.how == "update" for b in bindings) or _COUNTS.search(e.attr) else None
        if not isinstance(e, ast.Name) or _depth > _DEEPEST:
            return None
        function: Function | None = module.function_of(e)
        while function is not None:
            for binding in function.bindings.get(e.id, ()):
                loop = _counting_loop(module, binding)
                if loop is not None:
                    return unit is not None and loop is not unit and unit in module.ancestors(loop)
            if e.id in function.bindings:
                return None
            if any(argument.arg == e.id for argument in function.arguments):
                given = list(self._given(function, e.id))
                found = [self._is_counter(at.module, one, None, _depth + 1) for at, one in given]
                return False if False in found or (not given and _COUNTS.search(e.id)) else None
            function = function.parent
        return None

    def _is_size(self, module: Module, e: ast.expr) -> bool:
        """Whether a number is the length of something: `x.shape[-1]`, `len(x)`, or a name that is bound to one."""
        nodes = list(ast.walk(e))
        names = [node for node in nodes if isinstance(node, ast.Name)]
        values = (
            b.value for name in names for b in module.function_of(name).bindings.get(name.id, ()) if b.how == "value"
        )
        nodes += [node for value in values if value is not None for node in ast.walk(value)]
        attributes = {node.attr for node in nodes if isinstance(node, ast.Attribute)}
        return bool(_SIZES & (attributes | {name.id for name in nodes if isinstance(name, ast.Name)}))

    # --- names --------------------------------------------------------------------------------------------------------

    def _named(self, module: Module, name: ast.Name, unit: ast.AST | None, depth: int) -> float | None:
        """By what the name was last bound to, here or at the callers; at last by the name."""
        function: Function | None = module.function_of(name)
        line = name.lineno
        while function is not None:
            bindings = [b for b in function.bindings.get(name.id, ()) if b.line <= line and b.node is not None]
            if bindings and is_rebound(module, name.id):
                break
            if bindings:
                last = bindings[-1]
                is_plain = last.how == "value" and not last.path and last.value is not None
                is_flag = isinstance(last.value, ast.Constant) and len(bindings) > 1
                if is_plain and last.value is not None and not is_flag:
                    share = self.holds(module, last.value, unit, depth + 1)
                    return share if share is not None else _asked_for(name.id)
                break
            if any(argument.arg == name.id for argument in function.arguments):
                shares = [self.holds(at.module, one, None, depth + 1) for at, one in self._given(function, name.id)]
                known = [share for share in shares if share is not None]
                if known and len(known) == len(shares):
                    return max(known)
                break
            function, line = function.parent, 10**9
        return 1 - ONCE if _MAIN.search(name.id) else _asked_for(name.id)

    def _called(self, module: Module, call: ast.Call, unit: ast.AST | None, depth: int) -> float | None:
        """By what the function gives back, where it is the project's and has one `return`; else by its name."""
        target = self._project.target(module, call)
        if target is not None and len(target.returns) == 1 and target.returns[0].value is not None:
            share = self.holds(target.module, target.returns[0].value, None, depth + 1)
            if share is not None:
                return share
        is_there = name_of(call) in ("isfinite", "is_available")  # estimates are for a machine with a GPU
        if is_there or _MAIN.search(name_of(call)):
            return 1 - ONCE
        return _asked_for(name_of(call))

    def _given(self, function: Function, name: str) -> Iterator[tuple[Function, ast.expr]]:
        """What the project's callers give for a parameter."""
        positional = [argument.arg for argument in function.arguments]
        place = positional.index(name) - (function.cls is not None and positional[:1] in (["self"], ["cls"]))
        for at, call in self._project.callers(function)[:_MOST_CALLERS]:
            keyword = next((one.value for one in call.keywords if one.arg == name), None)
            if keyword is not None:
                yield at, keyword
            elif 0 <= place < len(call.args) and not isinstance(call.args[place], ast.Starred):
                yield at, call.args[place]


def fills(test: ast.expr, *, holds: bool, region: Sequence[ast.stmt]) -> str | None:
    """What a condition finds missing and the statements under it fill, so that it holds once; as source, else None.

    `x is None` with `x = ...` below it, `key not in cache`, `not hasattr(self, "x")`, `not self.ready`, `first`.
    """
    wanted = ast.And if holds else ast.Or
    for part in test.values if isinstance(test, ast.BoolOp) and isinstance(test.op, wanted) else [test]:
        is_true = holds
        while isinstance(part, ast.UnaryOp) and isinstance(part.op, ast.Not):
            part, is_true = part.operand, not is_true
        found = _missing(part, is_true=is_true)
        if found is not None and any(_stores(statement, *found) for statement in region):
            return found[0]
    return None


def _missing(part: ast.expr, *, is_true: bool) -> tuple[str, bool | None] | None:
    """What is missing where a part of a condition is true (or false), and what a flag would be set to."""
    if isinstance(part, ast.Compare) and len(part.ops) == 1:
        operator, right = part.ops[0], part.comparators[0]
        is_none = isinstance(right, ast.Constant) and right.value is None
        if is_none and isinstance(operator, ast.Is if is_true else ast.IsNot):
            return ast.unparse(part.left), None
        if isinstance(operator, ast.NotIn if is_true else ast.In):
            return ast.unparse(right), None
    if isinstance(part, ast.Call) and name_of(part) == "hasattr" and len(part.args) == 2 and not is_true:
        owner, name = part.args
        if isinstance(name, ast.Constant) and isinstance(name.value, str):
            return f"{ast.unparse(owner)}.{name.value}", None
        return None
    if isinstance(part, ast.Name | ast.Attribute):
        return ast.unparse(part), not is_true
    return None


def _stores(statement: ast.stmt, name: str, flag: bool | None) -> bool:
    """Whether a statement binds the name, puts something into it, or sets the flag."""
    if isinstance(statement, ast.Assign | ast.AnnAssign):
        targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
        value = statement.value
        given = value.value if isinstance(value, ast.Constant) else ...
        if given is None or (flag is not None and given is not flag):
            return False
        parts = [one for target in targets for one in (target.elts if isinstance(target, ast.Tuple) else [target])]
        return name in [ast.unparse(one.value if isinstance(one, ast.Subscript) else one) for one in parts]
    is_call = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call) and flag is None
    called = statement.value.func if is_call else None  # type: ignore[attr-defined]
    if not isinstance(called, ast.Attribute):
        return False
    return called.attr in ("add", "append", "update", "setdefault", "register_buffer") and (
        ast.unparse(called.value) == name or name.startswith(f"{ast.unparse(called.value)}.")
    )


def _counting_loop(module: Module, binding: Binding) -> ast.AST | None:
    """The loop whose turns a name counts: of `for i in range(n)`, of `for i, x in enumerate(xs)`, of `i += 1`."""
    if binding.how == "item" and isinstance(binding.node, ast.For | ast.AsyncFor):
        called = binding.value
        while isinstance(called, ast.Call) and name_of(called) in ("tqdm", "list", "reversed") and called.args:
            called = called.args[0]
        name = name_of(called) if isinstance(called, ast.Call) else ""
        counts = name in ("range", "trange", "count") or (name == "enumerate" and binding.path[:1] == (0,))
        return binding.node if counts else None
    if binding.how == "update" and isinstance(binding.node, ast.AugAssign) and isinstance(binding.node.op, ast.Add):
        ups = module.ancestors(binding.node)
        return next((up for up in ups if isinstance(up, ast.For | ast.AsyncFor | ast.While)), None)
    return None


def _asked_for(name: str) -> float | None:
    """The share of times that an option is on, by its name; None where that says nothing."""
    return None if not _ASKED_FOR.search(name) else 1 - ONCE if _LEFT_OUT.match(name) else ONCE


def _other(share: float | None) -> float | None:
    return None if share is None else 1 - share


def _is_number(e: ast.expr, number: int) -> bool:
    return isinstance(e, ast.Constant) and e.value == number


def _last_name(e: ast.expr) -> str:
    if isinstance(e, ast.Call):
        e = e.func
    return e.attr if isinstance(e, ast.Attribute) else e.id if isinstance(e, ast.Name) else ""
