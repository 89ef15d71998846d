"""Modules that are audited together: what a name in one means in another, and who calls whom."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from whet_audit.source import Binding, Class, Function, Module

_MOST_CANDIDATES = 200  # functions of one name beyond which a method's name says nothing


class Project:
    """Looks up names across modules. Names that are not of the project come back as dotted text, as imported."""

    def __init__(self, modules: Iterable[Module]) -> None:
        self.modules = list(modules)
        self._by_suffix: dict[str, list[Module]] = {}
        for module in self.modules:
            parts = module.name.split(".")
            for start in range(len(parts)):
                self._by_suffix.setdefault(".".join(parts[start:]), []).append(module)
        self._group: dict[Module, Module] = {}
        self._calls_by_name: dict[str, list[tuple[Function, ast.Call]]] | None = None
        self._targets: dict[ast.Call, Function | None] = {}
        self._from_stars: dict[tuple[Module, str], str | None] = {}
        self._called: dict[Function, list[tuple[Function, ast.Call]]] = {}

    def dotted(self, module: Module, expression: ast.expr, _depth: int = 0) -> str | None:
        """What a chain of names means, dotted: `F.relu` -> "torch.nn.functional.relu", `self.x` -> "self.x".

        Names of the module itself get the module's name in front. None for what is not a chain of names, and for
        local variables of unknown meaning.
        """
        if isinstance(expression, ast.Attribute):
            owner = self.dotted(module, expression.value, _depth)
            return None if owner is None else f"{owner}.{expression.attr}"
        if not isinstance(expression, ast.Name):
            return None
        name = expression.id
        if name in ("self", "cls"):
            return name
        bound = self._alias(module, expression)
        if bound is not None and _depth < 4:
            return self.dotted(module, bound, _depth + 1)
        if name in module.imports:
            return module.imports[name]
        if name in module.top.inner or name in module.classes:
            return f"{module.name}.{name}"
        return self._starred(module, name) if module.stars else None

    def is_linked(self, one: Module, other: Module) -> bool:
        """Whether two modules belong to one program: imports lead from one to the other, or from a third to both."""
        if not self._group:
            self._group = {module: module for module in self.modules}
            for module in self.modules:
                for dotted in {*module.imports.values(), *module.stars}:
                    for imported in self.imported(dotted):
                        self._group[self._leader(imported)] = self._leader(module)
        return self._leader(one) is self._leader(other)

    def function_at(self, dotted: str) -> Function | None:
        """The project's function of a dotted name, through re-exports."""
        found = self._find(dotted)
        return found if isinstance(found, Function) else None

    def class_at(self, dotted: str) -> Class | None:
        """The project's class of a dotted name."""
        found = self._find(dotted)
        return found if isinstance(found, Class) else None

    def bases(self, cls: Class) -> Iterator[Class | str]:
        """Direct bases: classes of the project, or dotted names of others."""
        for base in cls.node.bases:
            dotted = self.dotted(cls.module, base)
            if dotted is None:
                continue
            yield self.class_at(dotted) or cls.module.classes.get(dotted) or dotted

    def ancestry(self, cls: Class, _seen: frozenset[Class] = frozenset()) -> Iterator[Class | str]:
        """The class and all its bases, nearest first."""
        yield cls
        for base in self.bases(cls):
            if isinstance(base, str):
                yield base
            elif base not in _seen and base is not cls:
                yield from self.ancestry(base, _seen | {cls})

    def method(self, cls: Class, name: str) -> Function | None:
        """A method, looked up through the bases."""
        for one in self.ancestry(cls):
            if isinstance(one, Class) and name in one.methods:
                return one.methods[name]
        return None

    def attribute(self, cls: Class, name: str) -> list[Binding]:
        """What an attribute of self is bound to, in the class or the nearest base that binds it."""
        for one in self.ancestry(cls):
            if isinstance(one, Class) and name in one.attributes:
                return one.attributes[name]
        return []

    def target(self, module: Module, call: ast.Call) -> Function | None:
        """The project's function that a call runs: by name, by import, or a method of self. Not through variables."""
        if call not in self._targets:
            self._targets[call] = self._target(module, call)
        return self._targets[call]

    def callers(self, function: Function) -> list[tuple[Function, ast.Call]]:
        """Where the project calls a function."""
        if function not in self._called:
            found = self.named(function.name)
            self._called[function] = (
                [(at, call) for at, call in found if self.target(at.module, call) is function]
                if len(found) <= _MOST_CANDIDATES
                else []
            )
        return self._called[function]

    def named(self, name: str) -> list[tuple[Function, ast.Call]]:
        """The calls of anything with a last name, and the functions they stand in."""
        if self._calls_by_name is None:
            self._calls_by_name = {}
            for module in self.modules:
                for function in module.functions:
                    for call in function.calls:
                        called = name_of(call)
                        self._calls_by_name.setdefault(called, []).append((function, call))
        return self._calls_by_name.get(name, [])

    def imported(self, dotted: str) -> list[Module]:
        """The modules that an imported name may be, or be of."""
        parts = dotted.split(".")
        for end in range(len(parts), 0, -1):
            found = self._by_suffix.get(".".join(parts[:end]))
            if found:
                return found
        return []

    def _target(self, module: Module, call: ast.Call) -> Function | None:
        function = call.func
        if isinstance(function, ast.Name):
            scope: Function | None = module.function_of(call)
            while scope is not None:
                if function.id in scope.inner:
                    return scope.inner[function.id]
                scope = scope.parent
        if isinstance(function, ast.Attribute) and (_is_self(function.value) or _is_super(function.value)):
            cls = module.class_of(call)
            if cls is None:
                return None
            if _is_self(function.value):
                return self.method(cls, function.attr)
            bases = [base for base in self.bases(cls) if isinstance(base, Class)]
            return next((method for base in bases if (method := self.method(base, function.attr))), None)
        dotted = self.dotted(module, function)
        if dotted is None or dotted.startswith("self."):
            return None
        found = self._find(dotted)
        if isinstance(found, Class):
            return self.method(found, "__init__")
        return found

    def _leader(self, module: Module) -> Module:
        while self._group[module] is not module:
            module = self._group[module]
        return module

    def _alias(self, module: Module, name: ast.Name) -> ast.expr | None:
        """What a name was made another name for, as in `nnf = torch.nn.functional`; None where it is more than that."""
        scope: Function | None = module.function_of(name)
        while scope is not None:
            bindings = scope.bindings.get(name.id)
            if bindings:
                only = bindings[0]
                is_chain = isinstance(only.value, ast.Attribute | ast.Name) and only.how == "value" and not only.path
                if len(bindings) == 1 and is_chain and only.value is not name:
                    return only.value if _is_chain(only.value) else None
                return None
            scope = scope.parent
        return None

    def _find(self, dotted: str, _depth: int = 0) -> Function | Class | None:
        parts = dotted.split(".")
        for cut in range(len(parts) - 1, 0, -1):
            for module in self._by_suffix.get(".".join(parts[:cut]), ()):
                found = self._inside(module, parts[cut:], _depth)
                if found is not None:
                    return found
        return None

    def _inside(self, module: Module, path: list[str], depth: int) -> Function | Class | None:
        name = path[0]
        if len(path) == 1 and name in module.top.inner:
            return module.top.inner[name]
        cls = module.classes.get(name)
        if cls is not None:
            return cls if len(path) == 1 else self.method(cls, path[1]) if len(path) == 2 else None
        if depth >= 4:
            return None
        if name in module.imports:
            is_itself = module.imports[name] == ".".join([module.name, name])
            return None if is_itself else self._find(".".join([module.imports[name], *path[1:]]), depth + 1)
        return next((found for star in module.stars if (found := self._find(".".join([star, *path]), depth + 1))), None)

    def _starred(self, module: Module, name: str) -> str | None:
        """The dotted name of what `from other import *` brings, where the other module is of the project."""
        key = (module, name)
        if key not in self._from_stars:
            found = (f"{star}.{name}" for star in module.stars if self._find(f"{star}.{name}") is not None)
            self._from_stars[key] = next(found, None)
        return self._from_stars[key]


def name_of(call: ast.Call) -> str:
    """The last name of what is called: "item" of `x.item()`; "" of a call of anything but names."""
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


def root_name(expression: ast.expr) -> str:
    """`x` of `x.data[0].y`; "" where the chain does not start in a name."""
    while isinstance(expression, ast.Attribute | ast.Subscript):
        expression = expression.value
    return expression.id if isinstance(expression, ast.Name) else ""


def _is_self(expression: ast.expr) -> bool:
    return isinstance(expression, ast.Name) and expression.id in ("self", "cls")


def _is_super(expression: ast.expr) -> bool:
    return isinstance(expression, ast.Call) and isinstance(expression.func, ast.Name) and expression.func.id == "super"


def _is_chain(expression: ast.expr | None) -> bool:
    """Whether it is a name with attributes and nothing else, and not of self."""
    while isinstance(expression, ast.Attribute):
        expression = expression.value
    return isinstance(expression, ast.Name) and expression.id not in ("self", "cls")
