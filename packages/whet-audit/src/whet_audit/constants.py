"""What an expression's value is where the code says so: literals, module constants, defaults of options.

`args.batch_size` is looked up among `add_argument("--batch_size", default=1)`, click and typer options, fields of
dataclasses, and keys of plain configuration classes and dicts, in all files of the project.
"""

from __future__ import annotations

import ast
from typing import NamedTuple

from whet_audit.project import Project, name_of
from whet_audit.source import Class, Function, Module

_CONFIGS = frozenset("args arg opt opts options cfg config conf hparams hps hp flags params self FLAGS C c".split())
_DEEPEST = 4


class Default(NamedTuple):
    """An option's default and where it is written. node: the expression of the default."""

    module: Module
    node: ast.expr
    option: str  # as the user gives it: "--batch_size", or a field's name
    call: ast.AST  # the call that declares the option, or the statement


class Constants:
    """Looks values up. Nothing is executed; None stands for what is not known, so a known None is told apart."""

    def __init__(self, project: Project) -> None:
        self._project = project
        self._options: dict[str, list[Default]] | None = None

    def value(self, module: Module, e: ast.expr | None, _depth: int = 0) -> object:
        """The constant an expression stands for; `ast.Constant`'s value, or the sentinel `UNKNOWN_VALUE`."""
        if e is None or _depth > _DEEPEST:
            return UNKNOWN_VALUE
        if isinstance(e, ast.Constant):
            return e.value
        if isinstance(e, ast.UnaryOp) and isinstance(e.op, ast.USub):
            inner = self.value(module, e.operand, _depth + 1)
            return -inner if isinstance(inner, int | float) else UNKNOWN_VALUE
        if isinstance(e, ast.BinOp):
            return self._arithmetic(module, e, _depth)
        default = self.default(module, e)
        if default is not None:
            return self.value(default.module, default.node, _depth + 1)
        if isinstance(e, ast.Name):
            return self._name(module, e, _depth)
        return UNKNOWN_VALUE

    def default(self, module: Module, e: ast.expr) -> Default | None:
        """Where an option such as `args.batch_size` or `config["batch_size"]` gets its default; None for others."""
        name = _option_name(e)
        if name is None:
            return None
        found = self.options.get(name, [])
        here = [default for default in found if default.module is module]
        near = here or [default for default in found if self._project.is_linked(default.module, module)]
        return next(iter(near), None)

    @property
    def options(self) -> dict[str, list[Default]]:
        """All options of the project, by the attribute they are read as."""
        if self._options is None:
            self._options = {}
            for module in self._project.modules:
                for name, default in _declared(module):
                    self._options.setdefault(name, []).append(default)
        return self._options

    def _name(self, module: Module, name: ast.Name, depth: int) -> object:
        function: Function | None = module.function_of(name)
        while function is not None:
            bindings = function.bindings.get(name.id, [])
            if len(bindings) == 1 and bindings[0].how == "value" and not bindings[0].path:
                return self.value(module, bindings[0].value, depth + 1)
            if bindings:
                return UNKNOWN_VALUE
            if any(argument.arg == name.id for argument in function.arguments):
                default = function.default_of(name.id)
                return self.value(module, default, depth + 1)
            function = function.parent
        return UNKNOWN_VALUE

    def _arithmetic(self, module: Module, e: ast.BinOp, depth: int) -> object:
        left, right = self.value(module, e.left, depth + 1), self.value(module, e.right, depth + 1)
        if not isinstance(left, int | float) or not isinstance(right, int | float):
            return UNKNOWN_VALUE
        match e.op:
            case ast.Add():
                return left + right
            case ast.Sub():
                return left - right
            case ast.Mult():
                return left * right
            case ast.FloorDiv() if right:
                return left // right
            case ast.Div() if right:
                return left / right
            case ast.Pow() if abs(left) <= 2**20 and abs(right) <= 32:
                result: object = left**right
                return result
        return UNKNOWN_VALUE


class _Unknown:
    def __repr__(self) -> str:
        return "unknown"


UNKNOWN_VALUE = _Unknown()


def _option_name(e: ast.expr) -> str | None:
    """The option an expression reads: `args.lr`, `self.args.lr`, `cfg["lr"]`, `cfg.train.lr`; None for others."""
    if isinstance(e, ast.Attribute):
        name, owner = e.attr, e.value
    elif isinstance(e, ast.Subscript) and isinstance(e.slice, ast.Constant) and isinstance(e.slice.value, str):
        name, owner = e.slice.value, e.value
    else:
        return None
    while isinstance(owner, ast.Attribute):
        if owner.attr in _CONFIGS:
            return name
        owner = owner.value
    return name if isinstance(owner, ast.Name) and _is_config(owner.id) else None


def _is_config(name: str) -> bool:
    return name in _CONFIGS or name.lower().endswith(("args", "config", "cfg", "params"))


def _declared(module: Module) -> list[tuple[str, Default]]:
    found = []
    for call in module.nodes(ast.Call):
        name = name_of(call)
        if name in ("add_argument", "option", "Option", "add_arg"):
            found += _declared_by_call(module, call)
    for cls in module.classes.values():
        found += _declared_by_fields(module, cls)
    for assignment in module.nodes(ast.Assign):
        target, value = assignment.targets[0], assignment.value
        if isinstance(value, ast.Dict) and isinstance(target, ast.Name) and _is_config(target.id):
            for key, item in zip(value.keys, value.values, strict=True):
                if isinstance(key, ast.Constant) and isinstance(key.value, str):
                    found.append((key.value, Default(module, item, key.value, assignment)))
    return found


def _declared_by_call(module: Module, call: ast.Call) -> list[tuple[str, Default]]:
    texts = [a.value for a in call.args if isinstance(a, ast.Constant) and isinstance(a.value, str)]
    long = next((text for text in texts if text.startswith("--")), next((t for t in texts if t.startswith("-")), ""))
    keywords = {keyword.arg: keyword.value for keyword in call.keywords if keyword.arg}
    name = keywords.get("dest")
    read_as = name.value if isinstance(name, ast.Constant) else long.lstrip("-").partition("/")[0].replace("-", "_")
    default = keywords.get("default")
    action = keywords.get("action")
    if default is None and isinstance(action, ast.Constant) and action.value in ("store_true", "store_false"):
        default = ast.copy_location(ast.Constant(action.value == "store_false"), call)
    if not isinstance(read_as, str) or not read_as or default is None:
        return []
    return [(read_as, Default(module, default, long or read_as, call))]


def _declared_by_fields(module: Module, cls: Class) -> list[tuple[str, Default]]:
    is_dataclass = any("dataclass" in ast.dump(decorator) for decorator in cls.node.decorator_list)
    is_config = cls.qualname.lower().endswith(
        ("config", "args", "arguments", "params", "options", "hparams", "settings")
    )
    if not is_dataclass and not is_config:
        return []
    found = []
    for statement in cls.node.body:
        target: ast.expr | None = statement.target if isinstance(statement, ast.AnnAssign) else None
        if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
            target = statement.targets[0]
        value = statement.value if isinstance(statement, ast.AnnAssign | ast.Assign) else None
        if isinstance(value, ast.Call) and name_of(value) in ("field", "Field"):
            value = next((k.value for k in value.keywords if k.arg == "default"), value.args[0] if value.args else None)
        if isinstance(target, ast.Name) and value is not None:
            found.append((target.id, Default(module, value, target.id, statement)))
    return found
