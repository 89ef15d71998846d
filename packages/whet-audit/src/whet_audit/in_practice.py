"""What is true wherever the project runs: options whose default nobody changes, and parameters given one value.

A value counts where all that could set it is in sight and agrees: the default, the project's callers, attributes that
are assigned elsewhere, and files of settings. A constructor's default counts though nobody calls it, a function's not.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property

from whet_audit.constants import UNKNOWN_VALUE, Constants
from whet_audit.project import Project, name_of
from whet_audit.source import Binding, Class, Function, Module
from whet_audit.written_settings import WrittenSettings

_DEEPEST = 8
_MOST_ASKED = 400  # expressions for one condition
_COMPARED: dict[type[ast.cmpop], Callable[[object, object], bool]] = {
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Is: operator.is_, ast.IsNot: operator.is_not,
}  # fmt: skip
_ORDERED: dict[type[ast.cmpop], Callable[[float, float], bool]] = {
    ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt, ast.GtE: operator.ge,
}  # fmt: skip
_MACHINE = re.compile(r"(^|_)(cuda|gpus?)($|_)|device", re.IGNORECASE)
_Given = tuple[Module, ast.AST]  # a statement has no value


class InPractice:
    """Evaluates conditions; None stands for those that nothing decides."""

    def __init__(self, project: Project, constants: Constants, settings: WrittenSettings) -> None:
        self._project = project
        self._constants = constants
        self._settings = settings
        self._known: dict[ast.expr, bool | None] = {}
        self._open: set[object] = set()  # what is being found out
        self._num_asked = 0

    def truth(self, module: Module, test: ast.expr, _depth: int = 0) -> bool | None:
        """Whether a condition always or never holds."""
        if _depth == 0 and not self._open:
            if test not in self._known:
                self._num_asked = 0
                self._known[test] = self._truth(module, test, 0)
            return self._known[test]
        return self._truth(module, test, _depth)

    def _truth(self, module: Module, test: ast.expr, _depth: int) -> bool | None:
        if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            found = self.truth(module, test.operand, _depth)
            return None if found is None else not found
        if isinstance(test, ast.BoolOp):
            parts = [self.truth(module, one, _depth) for one in test.values]
            decisive = isinstance(test.op, ast.Or)
            return decisive if decisive in parts else None if None in parts else not decisive
        if isinstance(test, ast.Compare) and len(test.ops) == 1:
            return self._compared(module, test, _depth)
        value = self.value(module, test, _depth)
        return None if value in (UNKNOWN_VALUE, ...) else bool(value)

    def value(self, module: Module, e: ast.AST, _depth: int = 0) -> object:
        """The one constant that an expression has; `UNKNOWN_VALUE` without one."""
        if isinstance(e, ast.Constant):
            return e.value
        self._num_asked += 1
        is_value = isinstance(e, ast.expr) and not _is_machine(e)
        if _depth > _DEEPEST or self._num_asked > _MOST_ASKED or not is_value:
            return UNKNOWN_VALUE
        if isinstance(e, ast.Name):
            return self._named(module, e, _depth)
        if isinstance(e, ast.Attribute) and isinstance(e.value, ast.Name) and e.value.id == "self":
            cls = module.class_of(e)
            return UNKNOWN_VALUE if cls is None else self._attribute(cls, e.attr, _depth)
        if not isinstance(e, ast.expr) or self._constants.default(module, e) is None:
            return UNKNOWN_VALUE
        name = e.attr if isinstance(e, ast.Attribute) else e.slice.value  # type: ignore[attr-defined]
        defaults = [(one.module, one.node) for one in self._constants.options[name]]
        given = [*defaults, *self._assigned.get(name, ()), *self._keywords.get(name, ())]
        return self._agreed(name, given, name, _depth)

    def _compared(self, module: Module, test: ast.Compare, depth: int) -> bool | None:
        left, right = (self.value(module, side, depth) for side in (test.left, test.comparators[0]))
        kind = type(test.ops[0])
        if left in (UNKNOWN_VALUE, ...) or right in (UNKNOWN_VALUE, ...):
            return None
        if kind in _COMPARED:
            return _COMPARED[kind](left, right)
        is_number = isinstance(left, int | float) and isinstance(right, int | float)
        return _ORDERED[kind](left, right) if kind in _ORDERED and is_number else None  # type: ignore[arg-type]

    def _agreed(self, asked: object, given: Sequence[_Given], option: str, depth: int) -> object:
        """The value on which all agrees that sets something: what is given in the code, and files of settings.

        option: the key that these may have; "" without one. ... where all that is given leads back here.
        """
        if asked in self._open:
            return ...
        self._open.add(asked)
        values: list[object] = []
        for module, e in given:
            value = self.value(module, e, depth + 1)
            if value is not ...:
                values.append(value)
            if value is UNKNOWN_VALUE:
                break
        self._open.discard(asked)
        values += [UNKNOWN_VALUE if one is ... else one for one in self._settings.values(option)]
        is_one = all(type(one) is type(values[0]) and one == values[0] for one in values)
        return ... if not values else values[0] if is_one else UNKNOWN_VALUE

    # --- names --------------------------------------------------------------------------------------------------------

    def _named(self, module: Module, name: ast.Name, depth: int) -> object:
        function: Function | None = module.function_of(name)
        while function is not None:
            bindings = function.bindings.get(name.id, [])
            if bindings and is_rebound(module, name.id):
                return UNKNOWN_VALUE
            is_parameter = any(argument.arg == name.id for argument in function.arguments)
            if bindings:
                only = _value_of(bindings[0]) if len(bindings) == 1 and not is_parameter else None
                return UNKNOWN_VALUE if only is None else self.value(module, only, depth + 1)
            if is_parameter:
                return self._parameter(function, name.id, depth)
            function = function.parent
        return UNKNOWN_VALUE

    def _attribute(self, cls: Class, name: str, depth: int) -> object:
        """What an attribute is bound to in the class, its bases and the classes made of it."""
        family = [one for one in self._project.ancestry(cls) if isinstance(one, Class)]
        family += [one for one in self._heirs(cls) if one not in family]
        bindings = [binding for one in family for binding in one.attributes.get(name, ())]
        given: list[_Given] = [(b.module, value) for b in bindings if (value := _value_of(b)) is not None]
        if not bindings or len(given) < len(bindings) or any(map(_sets_any, family)):
            return UNKNOWN_VALUE
        given += self._assigned.get(name, ())
        is_field = any(isinstance(b.module.parents.get(b.node), ast.ClassDef) for b in bindings)
        given += self._keywords.get(name, ()) if is_field else ()
        return self._agreed((cls, name), given, name if is_field else "", depth)

    def _parameter(self, function: Function, name: str, depth: int) -> object:
        is_maker = function.cls is not None and function.name == "__init__"
        default = function.default_of(name)
        calls = self._makers(function) if is_maker else self._project.callers(function)
        if not is_maker and (not calls or function.name in self._handed_on):
            return UNKNOWN_VALUE
        given: list[_Given] = [] if calls or default is None else [(function.module, default)]
        for at, call in calls:
            passed = _passed(function, call, name)
            if passed is None and any(k.arg is None for k in call.keywords) and not is_maker:
                return UNKNOWN_VALUE
            if passed is None and default is None:
                return UNKNOWN_VALUE
            given.append((function.module, default) if passed is None else (at.module, passed))  # type: ignore[arg-type]
        if is_maker and default is not None:
            given += self._keywords_of_unknown.get(name, ())
        return self._agreed((function, name), given, name if is_maker else "", depth) if given else UNKNOWN_VALUE

    # --- who calls ----------------------------------------------------------------------------------------------------

    def _makers(self, function: Function) -> list[tuple[Function, ast.Call]]:
        """The calls that make an object of the function's class, or of a class made of it."""
        cls = function.cls
        assert cls is not None
        names = {cls.node.name, *(heir.node.name for heir in self._heirs(cls) if "__init__" not in heir.methods)}
        found = [one for name in names for one in self._project.named(name)]
        supers = (one for heir in self._heirs(cls) for one in self._super_calls(heir))
        return [*found, *supers]

    @staticmethod
    def _super_calls(cls: Class) -> Iterator[tuple[Function, ast.Call]]:
        own = cls.methods.get("__init__")
        for call in own.calls if own is not None else ():
            if name_of(call) == "__init__":
                yield own, call  # type: ignore[misc]

    def _heirs(self, cls: Class) -> list[Class]:
        return self._made_of.get(cls, [])

    @cached_property
    def _made_of(self) -> dict[Class, list[Class]]:
        found: dict[Class, list[Class]] = {}
        for module in self._project.modules:
            for one in module.classes.values():
                for base in self._project.ancestry(one):
                    if isinstance(base, Class) and base is not one:
                        found.setdefault(base, []).append(one)
        return found

    @cached_property
    def _assigned(self) -> dict[str, list[_Given]]:
        """What attributes of anything but self are set to, by name; what is around where that is not plain."""
        found: dict[str, list[_Given]] = {}
        for module in self._project.modules:
            for target in module.nodes(ast.Attribute):
                if isinstance(target.ctx, ast.Store) and getattr(target.value, "id", "") != "self":
                    up = module.parents[target]
                    value = up.value if isinstance(up, ast.Assign) else up
                    found.setdefault(target.attr, []).append((module, value))
            for call in module.nodes(ast.Call):
                if name_of(call) == "setattr" and len(call.args) == 3 and isinstance(call.args[1], ast.Constant):
                    found.setdefault(str(call.args[1].value), []).append((module, call.args[2]))
        return found

    @cached_property
    def _keywords(self) -> dict[str, list[_Given]]:
        """What keywords are given in any call, and keys in any dict, by name."""
        found: dict[str, list[_Given]] = {}
        for module in self._project.modules:
            for call in module.nodes(ast.Call):
                for keyword in call.keywords:
                    if keyword.arg is not None and name_of(call) not in ("add_argument", "field", "Field", "option"):
                        found.setdefault(keyword.arg, []).append((module, keyword.value))
            for written in module.nodes(ast.Dict):
                for key, value in zip(written.keys, written.values, strict=True):
                    if isinstance(key, ast.Constant) and isinstance(key.value, str):
                        found.setdefault(key.value, []).append((module, value))
        return found

    @cached_property
    def _keywords_of_unknown(self) -> dict[str, list[_Given]]:
        """As `_keywords`, of calls that no function or class of the project has the name of."""
        known = {function.name for module in self._project.modules for function in module.functions}
        known |= {cls.node.name for module in self._project.modules for cls in module.classes.values()}
        of_known = {
            id(keyword.value)
            for module in self._project.modules
            for call in module.nodes(ast.Call)
            if name_of(call) in known
            for keyword in call.keywords
        }
        return {name: [one for one in given if id(one[1]) not in of_known] for name, given in self._keywords.items()}

    @cached_property
    def _handed_on(self) -> set[str]:
        """Names of functions that are used as values, so that others may call them."""
        found: set[str] = set()
        for module in self._project.modules:
            called = {id(call.func) for call in module.nodes(ast.Call)}
            found |= {one.id for one in module.nodes(ast.Name) if _is_read(one) and id(one) not in called}
            found |= {one.attr for one in module.nodes(ast.Attribute) if _is_read(one) and id(one) not in called}
        return found


def is_rebound(module: Module, name: str) -> bool:
    """Whether a function binds a name that is not its own."""
    declared = [one.names for one in module.nodes(ast.Global)] + [one.names for one in module.nodes(ast.Nonlocal)]
    return any(name in names for names in declared)


def _is_read(node: ast.Name | ast.Attribute) -> bool:
    return isinstance(node.ctx, ast.Load)


def _value_of(binding: Binding) -> ast.AST | None:
    """What a name or an attribute is set to, also of `a, b = c, d`; None of loops, updates and unpacked results."""
    value = binding.value if binding.how == "value" else None
    for index in binding.path:
        is_there = isinstance(value, ast.Tuple | ast.List) and index < len(value.elts)
        value = value.elts[index] if is_there else None  # type: ignore[union-attr]
    return value


def _sets_any(cls: Class) -> bool:
    """Whether a class sets attributes whose names the code does not show."""
    for call in (call for method in cls.methods.values() for call in method.calls):
        if name_of(call) == "setattr" and len(call.args) > 1 and not isinstance(call.args[1], ast.Constant):
            return True
        if name_of(call) == "update" and ast.unparse(call.func) == "self.__dict__.update":
            return True
    return False


def _is_machine(e: ast.expr) -> bool:
    """Whether a name is about the machine, of which a default says nothing."""
    return (
        _MACHINE.search(e.id if isinstance(e, ast.Name) else e.attr if isinstance(e, ast.Attribute) else "") is not None
    )


def _passed(function: Function, call: ast.Call, name: str) -> ast.expr | None:
    """What a call gives for a parameter; None where it leaves it out."""
    keyword = next((one.value for one in call.keywords if one.arg == name), None)
    if keyword is not None:
        return keyword
    positional = [argument.arg for argument in function.arguments]
    place = positional.index(name) - (positional[:1] in (["self"], ["cls"]))
    starred = next((index for index, one in enumerate(call.args) if isinstance(one, ast.Starred)), len(call.args))
    if place < starred and place < len(call.args):
        return call.args[place]
    return call.args[starred] if starred < len(call.args) else None  # *rest: not known
