"""A module's source, walked once: what stands where, inside what, and which names are bound to what."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple, TypeVar

from whet_audit.finding import Span

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.Module
LoopNode = ast.For | ast.AsyncFor | ast.While
Node = TypeVar("Node", bound=ast.AST)
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_TORCH_PACKAGES = frozenset(
    "torch transformers diffusers accelerate lightning pytorch_lightning peft trl timm torchvision torchaudio ignite "
    "deepspeed fairseq sentence_transformers einops torch_geometric bitsandbytes apex fastai".split()
)
_NUM_SHOWN = 60  # characters of source in a message


class Binding(NamedTuple):
    """A name or an attribute gets a value.

    how: "value": of `value`; "item": of an element of it (for, comprehension); "enter": of the context manager;
    "update": `value` is added, multiplied, ... to what was there. path: indices into a tuple, outermost first.
    """

    line: int
    value: ast.expr | None
    how: str
    path: tuple[int, ...]
    node: ast.AST
    module: Module


@dataclass(eq=False)
class Class:
    """A class of the module. attributes: what `self.NAME` is bound to in its methods, and NAME in its body."""

    module: Module
    node: ast.ClassDef
    qualname: str
    methods: dict[str, Function] = field(default_factory=dict)
    attributes: dict[str, list[Binding]] = field(default_factory=dict)


@dataclass(eq=False)
class Function:
    """A function, or the module itself (`node` is an ast.Module then, and the name is empty)."""

    module: Module
    node: FunctionNode
    qualname: str
    cls: Class | None
    parent: Function | None
    bindings: dict[str, list[Binding]] = field(default_factory=dict)
    calls: list[ast.Call] = field(default_factory=list)  # in its own body, with lambdas and comprehensions
    loops: list[LoopNode] = field(default_factory=list)
    returns: list[ast.Return] = field(default_factory=list)
    inner: dict[str, Function] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return getattr(self.node, "name", "")

    @property
    def body(self) -> list[ast.stmt]:
        return [] if isinstance(self.node, ast.Lambda) else self.node.body

    @property
    def arguments(self) -> list[ast.arg]:
        """All parameters in order, `self` among them, without * and **."""
        if isinstance(self.node, ast.Module):
            return []
        given = self.node.args
        return [*given.posonlyargs, *given.args, *given.kwonlyargs]

    def default_of(self, name: str) -> ast.expr | None:
        """The default of a parameter; None without one."""
        if isinstance(self.node, ast.Module):
            return None
        given = self.node.args
        positional = [*given.posonlyargs, *given.args]
        for argument, default in zip(reversed(positional), reversed(given.defaults), strict=False):
            if argument.arg == name:
                return default
        for argument, keyword_default in zip(given.kwonlyargs, given.kw_defaults, strict=True):
            if argument.arg == name:
                return keyword_default
        return None

    @property
    def is_test(self) -> bool:
        """Whether it is a test: what runs once on tiny inputs."""
        is_named = self.name.lstrip("_").startswith(("test", "setUp")) or "Test" in self.qualname
        return self.module.is_test and is_named

    @property
    def decorators(self) -> list[ast.expr]:
        return self.node.decorator_list if isinstance(self.node, ast.FunctionDef | ast.AsyncFunctionDef) else []


class Module:
    """One file: its tree with the way up from each node, its functions, classes, imports and bindings.

    path: as shown to people. name: dotted, as the package's other modules import it. place: the path inside what is
    audited, with slashes, from which rules may tell tests and examples; where the whole lies must not matter. Raises
    SyntaxError, ValueError (a null byte), RecursionError and MemoryError as `ast.parse` does.
    """

    def __init__(self, path: str, text: str, name: str = "", *, is_package: bool = False, place: str = "") -> None:
        self.path = path
        self.place = place or path.replace("\\", "/").rpartition("/")[2]
        self.text = text
        self.name = name or path.replace("\\", "/").rpartition("/")[2].removesuffix(".py").replace(".", "_")
        self.tree = ast.parse(text)
        self.parents: dict[ast.AST, ast.AST] = {}
        self.functions: list[Function] = []
        self.classes: dict[str, Class] = {}
        self.imports: dict[str, str] = {}
        self.imported: set[str] = set()  # all that import statements name, dotted
        self.stars: list[str] = []  # modules of which all names are imported
        self.function_of_node: dict[ast.AST, Function] = {}
        self.class_of_node: dict[ast.AST, Class] = {}  # of those in `classes`
        self._nodes: dict[type[ast.AST], list[ast.AST]] = {}
        self._owners: dict[ast.AST, Function] = {}
        self._package = self.name if is_package else self.name.rpartition(".")[0]
        self._ascii = text.isascii()
        self.top = Function(self, self.tree, "", None, None)
        self.functions.append(self.top)
        self.function_of_node[self.tree] = self.top
        self._walk()
        imported = (*self.imports.values(), *self.stars)
        self.uses_torch = bool({name.partition(".")[0] for name in imported} & _TORCH_PACKAGES)

    @property
    def is_test(self) -> bool:
        """Whether the file holds tests, by its place."""
        *folders, name = self.place.split("/")
        return name.startswith("test_") or name.endswith("_test.py") or "tests" in folders

    def nodes(self, *kinds: type[Node]) -> Iterator[Node]:
        """All nodes of the kinds (exact types), in the order of the source within each."""
        for kind in kinds:
            yield from self._nodes.get(kind, ())  # type: ignore[misc]  # the list of a kind holds that kind

    def ancestors(self, node: ast.AST) -> Iterator[ast.AST]:
        """From the node's parent up to the module."""
        while (up := self.parents.get(node)) is not None:
            yield up
            node = up

    def function_of(self, node: ast.AST) -> Function:
        """The innermost function the node lies in (lambdas count to what they stand in). A def lies in its parent."""
        return self._owners.get(node, self.top)

    def class_of(self, node: ast.AST) -> Class | None:
        """The class whose method (or body) the node lies in, through nested functions."""
        function: Function | None = self.function_of(node)
        while function is not None:
            if function.cls is not None:
                return function.cls
            function = function.parent
        return None

    def statement_of(self, node: ast.AST) -> ast.stmt:
        """The innermost statement the node lies in, or is."""
        while not isinstance(node, ast.stmt):
            node = self.parents[node]
        return node

    def span(self, node: ast.AST) -> Span:
        """Where the node stands, columns in characters."""
        line, end_line = getattr(node, "lineno", 1), getattr(node, "end_lineno", None) or 1
        column, end_column = getattr(node, "col_offset", 0), getattr(node, "end_col_offset", None) or 0
        if not self._ascii:
            column, end_column = self._characters(line, column), self._characters(end_line, end_column)
        return Span(line, column, end_line, end_column)

    def source_of(self, node: ast.AST) -> str:
        """The node's source, whole; as Python would write it where the positions are missing."""
        span = self.span(node)
        lines = self.python_lines[span.line - 1 : span.end_line]
        if not lines:
            return ast.unparse(node)
        lines[-1] = lines[-1][: span.end_column]
        lines[0] = lines[0][span.column :]
        return "\n".join(lines)

    def shown(self, node: ast.AST) -> str:
        """The node's source on one line, shortened, for a message."""
        words = " ".join(self.source_of(node).split())
        return words if len(words) <= _NUM_SHOWN else words[: _NUM_SHOWN - 1] + "…"

    @cached_property
    def python_lines(self) -> list[str]:
        """Lines as Python counts them: str.splitlines also splits at form feeds and others."""
        return self.text.replace("\r\n", "\n").replace("\r", "\n").split("\n")

    def _characters(self, line: int, num_bytes: int) -> int:
        lines = self.python_lines
        if not 0 < line <= len(lines):
            return num_bytes
        return len(lines[line - 1].encode()[:num_bytes].decode(errors="ignore"))

    # --- the one walk -------------------------------------------------------------------------------------------------

    def _walk(self) -> None:
        parents, by_kind, owners = self.parents, self._nodes, self._owners
        stack: list[tuple[ast.AST, Function, Class | None]] = [(self.tree, self.top, None)]
        while stack:
            node, function, cls = stack.pop()
            children = []
            for name in node._fields:
                value = getattr(node, name, None)
                if isinstance(value, ast.AST):
                    children.append(value)
                elif isinstance(value, list):
                    children.extend(item for item in value if isinstance(item, ast.AST))
            for child in reversed(children):
                if isinstance(child, ast.expr_context | ast.operator | ast.cmpop | ast.boolop | ast.unaryop):
                    continue  # shared by all nodes
                parents[child] = node
                owners[child] = function
                stack.append((child, *self._scope(child, node, function, cls)))
            by_kind.setdefault(type(node), []).append(node)
            note = _NOTES.get(type(node))
            if note is not None:
                note(self, node, function)

    def _scope(
        self, child: ast.AST, parent: ast.AST, function: Function, cls: Class | None
    ) -> tuple[Function, Class | None]:
        """The function and the class that what lies in the child belongs to."""
        if isinstance(child, ast.ClassDef):
            outer = cls.qualname + "." if cls is not None else ""
            made = Class(self, child, outer + child.name)
            if self.classes.setdefault(made.qualname, made) is made:
                self.class_of_node[child] = made
            return function, made
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            is_method = cls is not None and isinstance(parent, ast.ClassDef | ast.If | ast.Try) and function.cls is None
            prefix = f"{cls.qualname}." if is_method and cls else f"{function.qualname}." if function.qualname else ""
            inner = Function(self, child, prefix + child.name, cls if is_method else None, function)
            if is_method and cls is not None:
                cls.methods[child.name] = inner
            else:
                function.inner[child.name] = inner
            self.functions.append(inner)
            self.function_of_node[child] = inner
            return inner, None
        return function, cls

    def bind(self, function: Function, target: ast.AST, binding: Binding) -> None:
        """Note what a target is bound to: names in the function, attributes of self in its class."""
        if isinstance(target, ast.Name):
            function.bindings.setdefault(target.id, []).append(binding)
        elif isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name) and target.value.id == "self":
            cls = self.class_of(binding.node)  # the target's own way up may not be there yet
            if cls is not None:
                cls.attributes.setdefault(target.attr, []).append(binding)
        elif isinstance(target, ast.Tuple | ast.List):
            for index, element in enumerate(target.elts):
                self.bind(function, element, binding._replace(path=(*binding.path, index)))
        elif isinstance(target, ast.Starred):
            self.bind(function, target.value, binding._replace(how="rest"))

    def note_import(self, node: ast.Import | ast.ImportFrom) -> None:
        if isinstance(node, ast.Import):
            for alias in node.names:
                self.imported.add(alias.name)
                if alias.asname:
                    self.imports[alias.asname] = alias.name
                else:
                    self.imports[alias.name.partition(".")[0]] = alias.name.partition(".")[0]
            return
        origin = node.module or ""
        if node.level:
            package = self._package.split(".") if self._package else []
            kept = package[: len(package) - node.level + 1]
            origin = ".".join([*kept, *([origin] if origin else [])])
        for alias in node.names:
            dotted = f"{origin}.{alias.name}" if origin else alias.name
            self.imported.add(dotted)
            if alias.name == "*":
                self.stars.append(origin)
            else:
                self.imports[alias.asname or alias.name] = dotted


def _assign(module: Module, node: ast.AST, function: Function) -> None:
    assert isinstance(node, ast.Assign)
    for target in node.targets:
        module.bind(function, target, Binding(node.lineno, node.value, "value", (), node, module))
        _class_body(module, node, target, Binding(node.lineno, node.value, "value", (), node, module))


def _annotated(module: Module, node: ast.AST, function: Function) -> None:
    assert isinstance(node, ast.AnnAssign)
    binding = Binding(node.lineno, node.value, "value", (), node, module)
    module.bind(function, node.target, binding)
    _class_body(module, node, node.target, binding)


def _class_body(module: Module, node: ast.stmt, target: ast.expr, binding: Binding) -> None:
    parent = module.parents.get(node)
    cls = module.class_of_node.get(parent) if parent is not None else None
    if cls is not None and isinstance(target, ast.Name):
        cls.attributes.setdefault(target.id, []).append(binding)


def _updated(module: Module, node: ast.AST, function: Function) -> None:
    assert isinstance(node, ast.AugAssign)
    module.bind(function, node.target, Binding(node.lineno, node.value, "update", (), node, module))


def _walrus(module: Module, node: ast.AST, function: Function) -> None:
    assert isinstance(node, ast.NamedExpr)
    module.bind(function, node.target, Binding(node.lineno, node.value, "value", (), node, module))


def _for(module: Module, node: ast.AST, function: Function) -> None:
    assert isinstance(node, ast.For | ast.AsyncFor)
    module.bind(function, node.target, Binding(node.lineno, node.iter, "item", (), node, module))
    function.loops.append(node)


def _while(module: Module, node: ast.AST, function: Function) -> None:
    assert isinstance(node, ast.While)
    function.loops.append(node)


def _comprehension(module: Module, node: ast.AST, function: Function) -> None:
    assert isinstance(node, ast.comprehension)
    module.bind(function, node.target, Binding(node.iter.lineno, node.iter, "item", (), node, module))


def _with(module: Module, node: ast.AST, function: Function) -> None:
    assert isinstance(node, ast.With | ast.AsyncWith)
    for item in node.items:
        if item.optional_vars is not None:
            module.bind(
                function, item.optional_vars, Binding(node.lineno, item.context_expr, "enter", (), node, module)
            )


def _import(module: Module, node: ast.AST, function: Function) -> None:
    assert isinstance(node, ast.Import | ast.ImportFrom)
    module.note_import(node)


def _call(module: Module, node: ast.AST, function: Function) -> None:
    assert isinstance(node, ast.Call)
    function.calls.append(node)
    called = node.func
    if isinstance(called, ast.Attribute) and called.attr in ("register_buffer", "register_parameter"):
        cls, name = module.class_of(node), node.args[0] if len(node.args) > 1 else None
        if cls is not None and isinstance(name, ast.Constant) and isinstance(name.value, str):
            cls.attributes.setdefault(name.value, []).append(
                Binding(node.lineno, node.args[1], "value", (), node, module)
            )
    elif isinstance(called, ast.Attribute) and called.attr == "register_modules":  # a pipeline's parts
        cls = module.class_of(node)
        for keyword in node.keywords if cls is not None else ():
            if keyword.arg is not None and cls is not None:
                binding = Binding(node.lineno, keyword.value, "value", (), node, module)
                cls.attributes.setdefault(keyword.arg, []).append(binding)


def _return(module: Module, node: ast.AST, function: Function) -> None:
    assert isinstance(node, ast.Return)
    function.returns.append(node)


_NOTES = {
    ast.Assign: _assign,
    ast.AnnAssign: _annotated,
    ast.AugAssign: _updated,
    ast.NamedExpr: _walrus,
    ast.For: _for,
    ast.AsyncFor: _for,
    ast.While: _while,
    ast.comprehension: _comprehension,
    ast.With: _with,
    ast.AsyncWith: _with,
    ast.Import: _import,
    ast.ImportFrom: _import,
    ast.Call: _call,
    ast.Return: _return,
}


def gives_back(function: Function, e: ast.expr) -> bool:
    """Whether a function gives back what it was given, as `default(value, other)` does: its kind is the call's."""
    parts = [e.body, e.orelse] if isinstance(e, ast.IfExp) else [e]
    given = {argument.arg for argument in function.arguments if argument.annotation is None} - set(function.bindings)
    return any(isinstance(part, ast.Name) and part.id in given for part in parts)
