"""What a rule sees of one module: its nodes, what names and expressions are, what is hot, and how to mend it."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from whet_audit.abstract_types import Kind, Value
from whet_audit.calls import CallKind
from whet_audit.constants import UNKNOWN_VALUE, Constants, Default
from whet_audit.finding import AddImport, Edit, Fix, HotPath, RemoveKeyword, ReplaceExpression, SetKeyword, Span
from whet_audit.hot_paths import HeatKind, HotPaths
from whet_audit.project import Project, name_of
from whet_audit.reasons import has_comment
from whet_audit.source import Class, Function, LoopNode, Module, Node
from whet_audit.type_inference import TypeInference

_GPU_WORDS = ("cuda", "device", "accelerator", "fabric", ".to(", "gpu", "xpu", "mps")


class RuleContext:
    """One module and the project it is of. Rules ask it; they never look at other modules by themselves."""

    def __init__(
        self, module: Module, project: Project, kinds: TypeInference, hot_paths: HotPaths, constants: Constants
    ) -> None:
        self.module = module
        self.project = project
        self.kinds = kinds
        self.hot_paths = hot_paths
        self.constants = constants
        self._calls: dict[str, list[ast.Call]] = {}
        for call in module.nodes(ast.Call):
            self._calls.setdefault(name_of(call), []).append(call)
        lowered = module.text.lower()
        self.mentions_gpu = any(word in lowered for word in _GPU_WORDS)  # else it is for CPUs alone, or a library's

    # --- nodes --------------------------------------------------------------------------------------------------------

    def nodes(self, *kinds: type[Node]) -> Iterator[Node]:
        """All nodes of exact types."""
        return self.module.nodes(*kinds)

    def calls(self, *names: str) -> Iterator[ast.Call]:
        """Calls by the last name of what is called: "item" finds `x.item()`, "DataLoader" `data.DataLoader(...)`.

        Not those through another name (`from torch.utils.data import DataLoader as DL`): `calls_to` finds them.
        """
        for name in names:
            yield from self._calls.get(name, ())

    def calls_to(self, *dotted: str) -> Iterator[ast.Call]:
        """Calls of a library's functions or classes by their full names, under whatever name they were imported."""
        last = {name.rpartition(".")[2] for name in dotted}
        aliases = {local for local, full in self.module.imports.items() if full.rpartition(".")[2] in last}
        for name in sorted(last | aliases):
            for call in self._calls.get(name, ()):
                if self.dotted(call.func) in dotted:
                    yield call

    def loops(self, *kinds: HeatKind) -> Iterator[LoopNode]:
        """Step loops of the kinds (all, without any)."""
        return self.hot_paths.step_loops(self.module, *kinds)

    def functions(self) -> Iterator[Function]:
        """All functions, the module's top among them (its `node` is an ast.Module)."""
        return iter(self.module.functions)

    def classes(self) -> Iterator[Class]:
        return iter(self.module.classes.values())

    def function_of(self, node: ast.AST) -> Function:
        return self.module.function_of(node)

    def class_of(self, node: ast.AST) -> Class | None:
        return self.module.class_of(node)

    def parent(self, node: ast.AST) -> ast.AST | None:
        return self.module.parents.get(node)

    def ancestors(self, node: ast.AST) -> Iterator[ast.AST]:
        return self.module.ancestors(node)

    def statement(self, node: ast.AST) -> ast.stmt:
        return self.module.statement_of(node)

    # --- meaning ------------------------------------------------------------------------------------------------------

    def dotted(self, expression: ast.expr) -> str | None:
        """The full name: `F.relu` -> "torch.nn.functional.relu", `self.x` -> "self.x"; None for local variables."""
        return self.project.dotted(self.module, expression)

    def value(self, expression: ast.expr) -> Value:
        """What kind of thing an expression is, and how surely."""
        return self.kinds.of(self.module, expression)

    def kind(self, expression: ast.expr) -> Kind:
        return self.value(expression).kind

    def is_tensor(self, expression: ast.expr, *, surely: bool = False) -> bool:
        return self.kinds.is_tensor(self.module, expression, surely=surely)

    def is_model_class(self, cls: Class | None) -> bool:
        """Whether a class of the project is an nn.Module."""
        return cls is not None and self.kinds.instance(cls).kind is Kind.MODEL

    def hot(self, node: ast.AST) -> HotPath | None:
        """Why a node runs in every step; None where it does not. `hot.guard` names a rare condition, if any."""
        return self.hot_paths.of(self.module, node)

    def call_kind(self, call: ast.Call) -> CallKind:
        """BACKWARD, STEP (of an optimiser), MODEL (a forward pass), GENERATE, PICK, OTHER."""
        return self.hot_paths.kind_of_call(self.module, call)

    def target(self, call: ast.Call) -> Function | None:
        """The project's own function that a call runs, if it is one."""
        return self.project.target(self.module, call)

    def constant(self, expression: ast.expr | None) -> object:
        """The constant an expression stands for, through names and option defaults; `UNKNOWN_VALUE` if not known."""
        return self.constants.value(self.module, expression)

    def default(self, expression: ast.expr) -> Default | None:
        """Where an option read by the expression (`args.batch_size`) is declared with a default."""
        return self.constants.default(self.module, expression)

    def keyword(self, call: ast.Call, name: str, position: int | None = None) -> ast.expr | None:
        """The argument of a name, or at a position (from 0); None where it is not given (or hidden in `**`)."""
        for keyword in call.keywords:
            if keyword.arg == name:
                return keyword.value
        if position is not None and position < len(call.args) and not _has_star(call.args[: position + 1]):
            return call.args[position]
        return None

    def has_star(self, call: ast.Call) -> bool:
        """Whether arguments come through `*` or `**`, so that what is not seen may be given after all."""
        return _has_star(call.args) or any(keyword.arg is None for keyword in call.keywords)

    # --- words and fixes ----------------------------------------------------------------------------------------------

    def shown(self, node: ast.AST) -> str:
        """The node's source on one line, shortened."""
        return self.module.shown(node)

    def source(self, node: ast.AST) -> str:
        """The node's source as written."""
        return self.module.source_of(node)

    def operand(self, node: ast.expr) -> str:
        """The node's source as it may stand as an operand or before a dot: in parentheses where it needs them."""
        source = self.source(node)
        is_atom = isinstance(node, ast.Name | ast.Attribute | ast.Call | ast.Subscript)
        is_number = isinstance(node, ast.Constant) and isinstance(node.value, int | float)
        return source if is_atom or is_number else f"({source})"

    def span(self, node: ast.AST) -> Span:
        return self.module.span(node)

    def set_keyword(self, call: ast.Call, name: str, value: str, title: str, *, safe: bool) -> Fix | None:
        """A fix that gives a call a keyword; None where it has a value by an option, or with a comment."""
        if not self._is_written(call, name):
            return None
        return Fix(title, safe, (SetKeyword(self.span(call), name, value),))

    def remove_keyword(self, call: ast.Call, name: str, title: str, *, safe: bool) -> Fix | None:
        """A fix that takes a keyword from a call; None where its value is an option's, or has a comment."""
        if not self._is_written(call, name):
            return None
        return Fix(title, safe, (RemoveKeyword(self.span(call), name),))

    def is_written(self, value: ast.expr) -> bool:
        """Whether the code itself says a value: a literal or a name of torch, and no option, argument or variable."""
        if isinstance(value, ast.UnaryOp):
            return self.is_written(value.operand)
        return isinstance(value, ast.Constant) or (self.dotted(value) or "").startswith("torch.")

    def _is_written(self, call: ast.Call, name: str) -> bool:
        given = next((keyword.value for keyword in call.keywords if keyword.arg == name), None)
        return given is None or (self.is_written(given) and not has_comment(self.module, given))

    def replace(self, node: ast.expr, source: str, title: str, *, safe: bool, imports: str = "") -> Fix:
        """A fix that puts another expression in place of one. imports: a module the new source needs, dotted."""
        edits: list[Edit] = [ReplaceExpression(self.span(node), source)]
        if imports and imports.partition(".")[0] not in self.module.imports:
            edits.append(AddImport(imports))
        return Fix(title, safe, tuple(edits))


def _has_star(arguments: list[ast.expr]) -> bool:
    return any(isinstance(argument, ast.Starred) for argument in arguments)


def is_known(value: object) -> bool:
    """Whether `RuleContext.constant` has found a value."""
    return value is not UNKNOWN_VALUE
