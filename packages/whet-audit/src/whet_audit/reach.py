"""What the programs of a project reach: modules by import, classes by name, and how often a model holds a block."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from functools import cached_property
from typing import NamedTuple

from whet_audit.constants import Constants
from whet_audit.project import Project, name_of, root_name
from whet_audit.source import COMPREHENSIONS, Class, Function, Module
from whet_audit.written_settings import WrittenSettings

UNKNOWN_BLOCKS = 24  # of a transformer, where nothing says their number
_MOST_BLOCKS = 200
_DEEPEST = 6


class Blocks(NamedTuple):
    """How many objects of a class a model holds. assumes: what the number rests on."""

    number: int = 1
    assumes: str = ""


class Reach:
    """Answers for one project; settings: files beside the code, which may name classes."""

    def __init__(self, project: Project, constants: Constants, settings: WrittenSettings) -> None:
        self._project = project
        self._constants = constants
        self._settings = settings
        self._modules = {module.name: module for module in project.modules}
        self._blocks: dict[Class, Blocks] = {}

    def imported_by(self, roots: Iterable[Module]) -> set[Module]:
        """The modules that run where one of the roots does, themselves among them."""
        found, waiting = set[Module](), list(roots)
        while waiting:
            module = waiting.pop()
            if module not in found:
                found.add(module)
                waiting += [one for dotted in module.imported for one in self._run_by_import(dotted)]
        return found

    def is_named_in_settings(self, module: Module) -> bool:
        """Whether a file of settings names a class or a function of a module."""
        names = {cls.node.name for cls in module.classes.values()} | set(module.top.inner)
        return bool(names & self._settings.words)

    def is_unused(self, cls: Class) -> bool:
        """Whether nothing makes objects of a class: neither code nor settings name it, and nobody imports it.

        A class that is registered may be imported: that alone makes no object.
        """
        name = cls.node.name
        if name in self._settings.words or any(
            cls.node not in module.ancestors(node) for module, node in self._named.get(name, ())
        ):
            return False
        is_registered = any("regist" in ast.unparse(one).lower() for one in cls.node.decorator_list)
        return is_registered or not any(
            dotted.rpartition(".")[2] in (name, "*") and dotted.partition(".")[0] == cls.module.name.partition(".")[0]
            for module in self._project.modules
            for dotted in module.imported
            if module is not cls.module
        )

    def blocks(self, cls: Class, _depth: int = 0) -> Blocks:
        """How many objects of a class one model holds, by the loops that make them; of several models, the most."""
        if cls not in self._blocks:
            self._blocks[cls] = Blocks()  # while it is found out: recursion ends here
            sites = self._named.get(cls.node.name, ()) if _depth < _DEEPEST else ()
            found = [self._made_at(cls, module, node, _depth) for module, node in sites]
            self._blocks[cls] = max(found, key=lambda one: one.number, default=Blocks())
        return self._blocks[cls]

    def _made_at(self, cls: Class, module: Module, node: ast.AST, depth: int) -> Blocks:
        """By one place that names the class: in a method that builds the model, where a call makes or takes it."""
        owner, function = module.class_of(node), module.function_of(node)
        call = module.parents.get(node)
        call = module.parents.get(call) if isinstance(call, ast.keyword) else call
        is_made = isinstance(call, ast.Call) and name_of(call) not in ("isinstance", "issubclass", "super")
        if owner is None or owner is cls or function.name in ("forward", "__call__") or not is_made:
            return Blocks()
        around = self.blocks(owner, depth + 1)
        number, is_assumed = around.number, bool(around.assumes)
        for over in _loops(module, node, function):
            turns = self._turns(module, over)
            number, is_assumed = number * (turns or UNKNOWN_BLOCKS), is_assumed or turns is None
        number = min(number, _MOST_BLOCKS)
        return Blocks(number, f"{number} layers" if is_assumed and number > 1 else "")

    def _turns(self, module: Module, over: ast.expr) -> int | None:
        while isinstance(over, ast.Call) and name_of(over) in ("enumerate", "reversed", "list", "zip") and over.args:
            over = over.args[0]
        if isinstance(over, ast.Tuple | ast.List):
            return len(over.elts)
        is_range = isinstance(over, ast.Call) and name_of(over) == "range" and len(over.args) == 1
        value = self._constants.value(module, over.args[0]) if isinstance(over, ast.Call) and is_range else None
        return value if isinstance(value, int) and value > 0 else None

    def _run_by_import(self, dotted: str) -> Iterator[Module]:
        yield from self._project.imported(dotted)
        parts = dotted.split(".")
        for end in range(1, len(parts) + 1):
            package = self._modules.get(".".join(parts[:end]))
            if package is not None:
                yield package

    @cached_property
    def _named(self) -> dict[str, list[tuple[Module, ast.AST]]]:
        """Where the name of each class is read, or written in a text."""
        classes = {cls.node.name for module in self._project.modules for cls in module.classes.values()}
        found: dict[str, list[tuple[Module, ast.AST]]] = {}
        for module in self._project.modules:
            for node in (*module.nodes(ast.Name), *module.nodes(ast.Attribute), *module.nodes(ast.Constant)):
                name = getattr(node, "id", None) or getattr(node, "attr", None) or getattr(node, "value", None)
                last = name.rpartition(".")[2] if isinstance(name, str) else ""
                if last in classes and not (isinstance(node, ast.Constant) and _is_export(module, node)):
                    found.setdefault(last, []).append((module, node))
        return found


def _is_export(module: Module, node: ast.AST) -> bool:
    """Whether a text stands in `__all__`."""
    statement = next((up for up in module.ancestors(node) if isinstance(up, ast.stmt)), None)
    targets = statement.targets if isinstance(statement, ast.Assign) else []
    return any(root_name(target) == "__all__" for target in targets)


def _loops(module: Module, node: ast.AST, function: Function) -> Iterator[ast.expr]:
    """What the loops and comprehensions around a node, in its function, run over."""
    child = node
    for up in module.ancestors(node):
        if up is function.node:
            return
        if isinstance(up, ast.For) and child is not up.iter:
            yield up.iter
        if isinstance(up, COMPREHENSIONS):
            yield from (one.iter for one in up.generators)
        child = up
