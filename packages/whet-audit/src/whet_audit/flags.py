"""What an option, an attribute or a parameter is unless somebody says otherwise: by defaults, and by who gives it."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from whet_audit.constants import UNKNOWN_VALUE, Constants
from whet_audit.project import Project
from whet_audit.source import Class, Function, Module

_DEEPEST = 4


class Flags:
    """Looks up the usual value of what conditions ask for. UNKNOWN_VALUE stands for what is not known."""

    def __init__(self, project: Project, constants: Constants) -> None:
        self._project = project
        self._constants = constants
        self._attributes: dict[tuple[Class, str], object] = {}
        self._set_by_others: set[str] | None = None

    def value(self, module: Module, e: ast.expr, _depth: int = 0) -> object:
        """The usual value of an expression: a literal, an option, a parameter, or an attribute of self."""
        if _depth > _DEEPEST:
            return UNKNOWN_VALUE
        if isinstance(e, ast.Attribute) and isinstance(e.value, ast.Name) and e.value.id == "self":
            cls = module.class_of(e)
            return UNKNOWN_VALUE if cls is None else self._attribute(cls, e.attr, _depth)
        if isinstance(e, ast.Name):
            return self._name(module, e, _depth)
        if isinstance(e, ast.BinOp):
            return UNKNOWN_VALUE  # of sizes and counters
        return self._constants.value(module, e)

    def _name(self, module: Module, name: ast.Name, depth: int) -> object:
        function: Function | None = module.function_of(name)
        while function is not None:
            bindings = function.bindings.get(name.id, ())
            is_parameter = any(argument.arg == name.id for argument in function.arguments)
            if bindings:
                only = bindings[0]
                is_plain = len(bindings) == 1 and not is_parameter and only.how == "value" and not only.path
                return self.value(module, only.value, depth + 1) if is_plain and only.value else UNKNOWN_VALUE
            if is_parameter:
                callers = list(self._made(function))
                is_known = bool(callers) or function.name == "__init__"
                return self._parameter(function, name.id, callers, depth) if is_known else UNKNOWN_VALUE
            function = function.parent
        return UNKNOWN_VALUE

    def _attribute(self, cls: Class, name: str, depth: int) -> object:
        """What a class sets an attribute to, once; unknown where it is set again, there or by others."""
        key = (cls, name)
        if key not in self._attributes:
            self._attributes[key] = UNKNOWN_VALUE  # while it is found out: a circle ends here
            bindings = self._project.attribute(cls, name)
            values = [one.value for one in bindings if one.how == "value" and not one.path and one.value is not None]
            is_once = len(values) == len(bindings) == 1 and name not in self._stored and not self._is_field(cls, name)
            if is_once:
                self._attributes[key] = self._set_to(cls, bindings[0].module, values[0], depth)
        return self._attributes[key]

    def _set_to(self, cls: Class, module: Module, e: ast.expr, depth: int) -> object:
        """The value of `self.x = e`: of a parameter of the constructor by its default, and by who makes objects."""
        function = module.function_of(e)
        is_parameter = isinstance(e, ast.Name) and any(one.arg == e.id for one in function.arguments)
        if not isinstance(e, ast.Name) or not is_parameter or e.id in function.bindings:
            return self.value(module, e, depth + 1)
        return self._parameter(function, e.id, list(self._made(function)), depth)

    def _made(self, function: Function) -> Iterator[tuple[Function, ast.Call]]:
        """Where a function is called; of a constructor also where objects are made by the class's name."""
        yield from self._project.callers(function)
        if function.cls is not None and function.name == "__init__":
            name = function.cls.qualname.rpartition(".")[2]
            for at, call in self._project.named(name):
                if self._project.target(at.module, call) is function:
                    yield at, call

    def _parameter(self, function: Function, name: str, callers: list[tuple[Function, ast.Call]], depth: int) -> object:
        """A parameter's default, or what callers give, where all that can be seen of it is the same."""
        default = function.default_of(name)
        positional = [argument.arg for argument in function.arguments]
        place = positional.index(name) - (function.cls is not None and positional[:1] in (["self"], ["cls"]))
        found = []
        for at, call in callers:
            given = next((one.value for one in call.keywords if one.arg == name), None)
            if given is None and 0 <= place < len(call.args):
                given = call.args[place]
            if given is None and default is None:
                return UNKNOWN_VALUE
            found.append(
                self._constants.value(function.module, default)
                if given is None
                else self.value(at.module, given, depth + 1)
            )
        if not callers and default is not None:
            found.append(self._constants.value(function.module, default))
        is_same = bool(found) and all(type(one) is type(found[0]) and one == found[0] for one in found)
        return found[0] if is_same else UNKNOWN_VALUE

    def _is_field(self, cls: Class, name: str) -> bool:
        """Whether somebody gives the attribute to a class that has no constructor of its own, such as a dataclass."""
        if "__init__" in cls.methods:
            return False
        made = self._project.named(cls.qualname.rpartition(".")[2])
        return any(keyword.arg == name for _, call in made for keyword in call.keywords)

    @property
    def _stored(self) -> set[str]:
        """The names of attributes that somebody else than the object sets, anywhere in the project."""
        if self._set_by_others is None:
            stores = (node for module in self._project.modules for node in module.nodes(ast.Attribute))
            self._set_by_others = {
                node.attr
                for node in stores
                if isinstance(node.ctx, ast.Store) and getattr(node.value, "id", "") != "self"
            }
            for _, call in self._project.named("setattr"):
                if len(call.args) > 1 and isinstance(call.args[1], ast.Constant):
                    self._set_by_others.add(str(call.args[1].value))
        return self._set_by_others


def compared(left: object, operator: ast.cmpop, right: object) -> bool | None:
    """What a comparison of two values gives; None where one is not known, or they cannot be compared."""
    if left is UNKNOWN_VALUE or right is UNKNOWN_VALUE:
        return None
    match operator:
        case ast.Is() | ast.Eq():
            return left == right
        case ast.IsNot() | ast.NotEq():
            return left != right
    if not isinstance(left, int | float) or not isinstance(right, int | float):
        return None
    match operator:
        case ast.Lt():
            return left < right
        case ast.LtE():
            return left <= right
        case ast.Gt():
            return left > right
        case ast.GtE():
            return left >= right
    return None
