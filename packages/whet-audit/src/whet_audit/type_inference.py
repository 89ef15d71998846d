"""What kind of thing an expression is, inferred from the code around it, from callers, and at last from names."""

from __future__ import annotations

import ast
from dataclasses import replace

from whet_audit import torch_names as names
from whet_audit.abstract_types import (
    NUMBER,
    TENSOR,
    UNKNOWN,
    Kind,
    Value,
    all_on_cpu,
    common,
    constant_value,
    element_of,
    guess,
    of_tensor_method,
    part_of,
)
from whet_audit.annotations import Annotations
from whet_audit.project import Project
from whet_audit.source import Binding, Class, Function, Module, gives_back

_DEEPEST = 14  # steps from one expression to the next
_MOST_STEPS = 400  # for one question; names that are bound over and over lead everywhere
_MOST_BINDINGS = 4


class TypeInference:
    """Infers, and remembers. Flow is followed by line order within a function; branches are not told apart."""

    def __init__(self, project: Project) -> None:
        self._project = project
        self._annotations = Annotations(project)
        self._values: dict[tuple[ast.AST, Module], Value] = {}
        self._running: set[ast.AST] = set()
        self._num_cut = 0  # inferences that were cut short: what rests on them may be incomplete
        self._num_left = _MOST_STEPS

    def of(self, module: Module, expression: ast.expr) -> Value:
        """The value of an expression where it stands."""
        key = (expression, module)
        if key in self._values:
            return self._values[key]
        if not self._running:
            self._num_left = _MOST_STEPS
        if expression in self._running or len(self._running) > _DEEPEST or self._num_left <= 0:
            self._num_cut += 1
            return UNKNOWN
        self._num_left -= 1
        num_cut = self._num_cut
        self._running.add(expression)
        try:
            value = self._infer(module, expression)
        finally:
            self._running.discard(expression)
        if value or self._num_cut == num_cut or not self._running:
            self._values[key] = value
        return value

    def is_tensor(self, module: Module, expression: ast.expr, *, surely: bool = False) -> bool:
        """Whether it is a tensor, or what a model gave. surely: not only by its name."""
        value = self.of(module, expression)
        return value.kind in (Kind.TENSOR, Kind.OUTPUT) and (value.is_sure or not surely)

    def instance(self, cls: Class) -> Value:
        """An instance of a class of the project."""
        return self._annotations.instance(cls)

    # --- by the form of the expression --------------------------------------------------------------------------------

    def _infer(self, module: Module, e: ast.expr) -> Value:
        match e:
            case ast.Constant():
                return constant_value(e.value)
            case ast.JoinedStr():
                return Value(Kind.TEXT)
            case ast.List() | ast.Tuple() | ast.Set():
                elements = tuple(self.of(module, element) for element in e.elts)
                return Value(Kind.LIST, element=common(elements), elements=elements)
            case ast.ListComp() | ast.SetComp() | ast.GeneratorExp():
                return Value(Kind.LIST, element=self.of(module, e.elt))
            case ast.Dict():
                return Value(Kind.DICT, element=common(tuple(self.of(module, value) for value in e.values)))
            case ast.DictComp():
                return Value(Kind.DICT, element=self.of(module, e.value))
            case ast.Name():
                return self._name(module, e)
            case ast.Attribute():
                return self._attribute(module, e)
            case ast.Call():
                return self._call(module, e)
            case ast.BinOp():
                return self._operation(module, e)
            case ast.Compare():
                return self._comparison(module, e)
            case ast.UnaryOp():
                return Value(Kind.OTHER) if isinstance(e.op, ast.Not) else self.of(module, e.operand)
            case ast.IfExp():
                return self.of(module, e.body) or self.of(module, e.orelse)
            case ast.BoolOp():
                return next((value for one in e.values if (value := self.of(module, one))), UNKNOWN)
            case ast.Subscript():
                return self._item(self.of(module, e.value), e)
            case ast.NamedExpr() | ast.Await() | ast.Starred():
                return self.of(module, e.value)
        return UNKNOWN

    def _operation(self, module: Module, e: ast.BinOp) -> Value:
        sides = (self.of(module, e.left), self.of(module, e.right))
        for kind in (Kind.TENSOR, Kind.OUTPUT, Kind.ARRAY, Kind.FRAME, Kind.TEXT, Kind.LIST):
            found = [side for side in sides if side.kind is kind]
            if found:
                kept = Kind.TENSOR if kind is Kind.OUTPUT else kind
                sure = any(side.is_sure for side in found)
                devices = {side.device for side in found}
                return Value(kept, sure, element=found[0].element, device=devices.pop() if len(devices) == 1 else None)
        return NUMBER if all(side.kind is Kind.NUMBER for side in sides) else UNKNOWN

    def _comparison(self, module: Module, e: ast.Compare) -> Value:
        if any(isinstance(operator, ast.Is | ast.IsNot | ast.In | ast.NotIn) for operator in e.ops):
            return Value(Kind.OTHER)
        for side in (e.left, *e.comparators):
            value = self.of(module, side)
            if value.kind in (Kind.TENSOR, Kind.ARRAY):
                return Value(value.kind, value.is_sure, device=value.device)
        return Value(Kind.OTHER)

    # --- names --------------------------------------------------------------------------------------------------------

    def _name(self, module: Module, name: ast.Name) -> Value:
        function: Function | None = module.function_of(name)
        line = name.lineno
        while function is not None:
            bindings = function.bindings.get(name.id, [])
            is_parameter = any(argument.arg == name.id for argument in function.arguments)
            if bindings or is_parameter:
                value = self._bound(module, bindings, line, name, is_parameter=is_parameter)
                if not value and is_parameter:
                    value = self._parameter(module, function, name.id)
                return value or guess(module, name.id)
            function, line = function.parent, 10**9
        dotted = self._project.dotted(module, name)
        if dotted is not None:
            return Value(Kind.DTYPE) if names.DTYPE.fullmatch(dotted) else Value(Kind.OTHER, dotted=dotted)
        return guess(module, name.id)

    def _bound(self, module: Module, bindings: list[Binding], line: int, name: ast.AST, *, is_parameter: bool) -> Value:
        """The latest value before the line; where that is unknown, any other that may have come before, by a loop."""
        earlier = [b for b in bindings if b.line < line or (b.line == line and _is_over(module, b, name))]
        later = [b for b in bindings if b not in earlier]
        if later and (earlier or is_parameter):
            loops = {up for up in module.ancestors(name) if isinstance(up, ast.For | ast.AsyncFor | ast.While)}
            later = [b for b in later if not loops.isdisjoint(module.ancestors(b.node))]
        for binding in [*reversed(earlier), *reversed(later)][:_MOST_BINDINGS]:
            if binding.how == "update":
                value = self.of(module, binding.value) if binding.value is not None else UNKNOWN
                if value.kind in (Kind.TENSOR, Kind.OUTPUT):
                    return Value(Kind.TENSOR, value.is_sure)
                continue
            value = self._binding(module, binding)
            if value and value.kind is not Kind.NONE:
                return replace(value, is_sure=False) if earlier and binding in later else value
        return UNKNOWN

    def _binding(self, module: Module, binding: Binding) -> Value:
        if isinstance(binding.node, ast.AnnAssign):
            annotated = self._annotations.value(module, binding.node.annotation)
            if annotated:
                return annotated
        if binding.value is None:
            return UNKNOWN
        path = binding.path
        if binding.how == "item":
            value, path = self._iterated(module, binding.value, path)
        else:
            value = self.of(module, binding.value)
        for index in path:
            value = part_of(value, index)
        return Value(Kind.LIST, element=value) if binding.how == "rest" else value

    def _iterated(self, module: Module, e: ast.expr, path: tuple[int, ...]) -> tuple[Value, tuple[int, ...]]:
        """What iterating gives, and what is left of the path into it."""
        if isinstance(e, ast.Call):
            called = e.func.attr if isinstance(e.func, ast.Attribute) else getattr(e.func, "id", "")
            if called == "enumerate" and e.args:
                return (NUMBER, ()) if path[:1] == (0,) else self._iterated(module, e.args[0], path[1:])
            if called == "zip" and path and path[0] < len(e.args):
                return self._iterated(module, e.args[path[0]], path[1:])
            if called in ("tqdm", "trange", "iter", "reversed", "sorted", "list", "cycle", "track", "notebook_tqdm"):
                return self._iterated(module, e.args[0], path) if e.args else (UNKNOWN, path)
            if called == "range":
                return NUMBER, path
            if called in ("items", "values") and isinstance(e.func, ast.Attribute):
                owner = self.of(module, e.func.value)
                element = owner.element or (TENSOR if owner.kind in (Kind.BATCH, Kind.ENCODING) else UNKNOWN)
                if called == "values":
                    return element, path
                return (element, path[1:]) if path[:1] == (1,) else (Value(Kind.TEXT), path[1:])
            if called in ("parameters", "buffers"):
                return Value(Kind.TENSOR), path
            if called in ("named_parameters", "named_buffers"):
                return (Value(Kind.TENSOR), path[1:]) if path[:1] == (1,) else (Value(Kind.TEXT), path[1:])
        return element_of(self.of(module, e)), path

    def _parameter(self, module: Module, function: Function, name: str) -> Value:
        """By annotation, then by what callers give, then by the default."""
        argument = next(a for a in function.arguments if a.arg == name)
        if name == "self" and function.cls is not None:
            return self.instance(function.cls)
        annotated = self._annotations.value(module, argument.annotation)
        if annotated:
            return annotated
        default = function.default_of(name)
        if default is not None:
            value = self.of(module, default)
            if value.kind not in (Kind.NONE, Kind.UNKNOWN):
                return value
        given = self._given(function, name)
        if given:
            return given
        cls = function.cls if function.name == "forward" and default is None else None
        if cls is not None and self.instance(cls).kind is Kind.MODEL and not names.NOT_TENSORS.fullmatch(name):
            return TENSOR
        return UNKNOWN

    def _given(self, function: Function, name: str) -> Value:
        for at, call in self._project.callers(function)[:4]:
            keyword = next((k.value for k in call.keywords if k.arg == name), None)
            if keyword is None:
                positional = [a.arg for a in function.arguments]
                place = positional.index(name) - (1 if function.cls is not None and positional[:1] == ["self"] else 0)
                if not 0 <= place < len(call.args) or isinstance(call.args[place], ast.Starred):
                    continue
                keyword = call.args[place]
            value = self.of(at.module, keyword)
            if value:
                return value
        return UNKNOWN

    # --- attributes, items, calls -------------------------------------------------------------------------------------

    def _attribute(self, module: Module, e: ast.Attribute) -> Value:
        dotted = self._project.dotted(module, e)
        if dotted is not None and not dotted.startswith(("self.", "cls.")):
            if names.DTYPE.fullmatch(dotted):
                return Value(Kind.DTYPE)
            return Value(Kind.OTHER, dotted=dotted)
        owner = self.of(module, e.value)
        if owner.cls is not None:
            bindings = self._project.attribute(owner.cls, e.attr)
            value = self._attribute_bound(bindings)
            if value:
                return value
        if owner.kind in (Kind.TENSOR, Kind.OUTPUT):
            if e.attr in names.NUMBER_ATTRIBUTES:
                return Value(Kind.OTHER)
            if e.attr == "device":
                return Value(Kind.DEVICE)
            if e.attr in (names.TENSOR_VIEWS if owner.kind is Kind.TENSOR else names.OUTPUT_TENSORS):
                return Value(Kind.TENSOR, owner.is_sure, device=owner.device)
            if owner.kind is Kind.TENSOR and owner.is_sure:
                return Value(Kind.OTHER)
        if owner.kind in (Kind.BATCH, Kind.ENCODING):
            return Value(Kind.TENSOR, is_sure=False)
        if owner.kind is Kind.ARRAY:
            return Value(Kind.OTHER) if e.attr in names.NUMBER_ATTRIBUTES else Value(Kind.ARRAY)
        if owner.kind is Kind.MODEL and e.attr in ("weight", "bias"):
            return TENSOR
        return guess(module, e.attr)

    def _attribute_bound(self, bindings: list[Binding]) -> Value:
        for binding in reversed(bindings):
            if binding.how == "update":
                continue
            value = self._binding(binding.module, binding)
            if value and value.kind is not Kind.NONE:
                return replace(value, device=None)  # buffers and parameters move with their module
        return UNKNOWN

    def _item(self, owner: Value, e: ast.Subscript) -> Value:
        if owner.kind in (Kind.TENSOR, Kind.ARRAY, Kind.FRAME):
            return Value(owner.kind, owner.is_sure, device=owner.device)
        if owner.kind is Kind.OUTPUT:
            return Value(Kind.TENSOR, owner.is_sure)
        if owner.kind in (Kind.BATCH, Kind.ENCODING):
            return Value(Kind.TENSOR, is_sure=False)
        if isinstance(e.slice, ast.Slice):
            return owner
        if isinstance(e.slice, ast.Constant) and isinstance(e.slice.value, int) and owner.elements:
            return part_of(owner, e.slice.value)
        return owner.element or UNKNOWN

    def _call(self, module: Module, e: ast.Call) -> Value:
        dotted = self._project.dotted(module, e.func)
        if dotted is not None and not dotted.startswith(("self.", "cls.")):
            cls = self._project.class_at(dotted)
            if cls is not None:
                return self.instance(cls)
            value = self._library(module, e, dotted)
            if value:
                return value
        if isinstance(e.func, ast.Name) and e.func.id in names.BUILTINS:
            made = names.BUILTINS[e.func.id]
            if made == "SAME":
                return self.of(module, e.args[0]) if e.args else UNKNOWN
            return Value(Kind[made])
        function = self._project.target(module, e)
        if function is not None and function.name != "__init__":
            return self._returned(function)
        if isinstance(e.func, ast.Attribute):
            return self._method(module, e, e.func)
        return self._called(self.of(module, e.func))

    def _library(self, module: Module, e: ast.Call, dotted: str) -> Value:
        made = names.made_by(dotted)
        if made is None:
            return UNKNOWN
        if made == "SAME":
            return self.of(module, e.args[0]) if e.args else UNKNOWN
        if made == "TENSOR":
            target = next((k.value for k in e.keywords if k.arg == "device"), None)
            is_factory = dotted.rpartition(".")[2] in names.FACTORIES
            device = ("gpu" if target is not None else "cpu") if is_factory else None
            if isinstance(target, ast.Constant) and str(target.value).startswith("cpu"):
                device = "cpu"
            if device is None and dotted.startswith("torch.") and target is None:
                device = "cpu" if all_on_cpu([self.of(module, one) for one in e.args]) else None
            return Value(Kind.TENSOR, device=device)
        return Value(Kind[made], dotted=dotted)

    def _method(self, module: Module, e: ast.Call, f: ast.Attribute) -> Value:
        owner = self.of(module, f.value)
        if owner.kind in (Kind.TENSOR, Kind.OUTPUT):
            return of_tensor_method(owner, f.attr, e)
        if owner.kind is Kind.ARRAY:
            return NUMBER if f.attr == "item" else Value(Kind.LIST if f.attr == "tolist" else Kind.ARRAY)
        if owner.kind is Kind.TOKENIZER:
            made = {"decode": Kind.TEXT, "batch_decode": Kind.LIST, "encode": Kind.LIST, "tokenize": Kind.LIST}
            return Value(made.get(f.attr, Kind.ENCODING))
        if owner.kind is Kind.MODEL:
            if f.attr in names.MODEL_SELF:
                return owner
            if f.attr == "generate":
                return Value(Kind.TENSOR, is_sure=False)
        if f.attr in ("to", "cuda", "cpu", "pin_memory") and owner.kind in (Kind.BATCH, Kind.ENCODING):
            return owner
        if owner.cls is not None:
            method = self._project.method(owner.cls, f.attr)
            if method is not None:
                return self._returned(method)
            called = self.of(module, f)
            if called.kind is Kind.MODEL:
                return self._called(called)
        if f.attr in ("tolist", "integers"):  # the second is a method of numpy's generators alone
            return Value(Kind.LIST, element=NUMBER) if f.attr == "tolist" else Value(Kind.ARRAY)
        if f.attr == "prepare":  # Accelerate gives back what it was given
            given = tuple(self.of(module, a) for a in e.args)
            return given[0] if len(given) == 1 else Value(Kind.LIST, elements=given)
        if f.attr in names.TENSOR_ONLY:
            return of_tensor_method(replace(TENSOR, is_sure=False), f.attr, e)
        called = self.of(module, f)
        return self._called(called) if called.kind in (Kind.MODEL, Kind.TOKENIZER) else UNKNOWN

    def _called(self, value: Value) -> Value:
        """What calling a value gives."""
        if value.kind is Kind.MODEL:
            if value.cls is not None:
                forward = self._project.method(value.cls, "forward")
                returned = self._returned(forward) if forward is not None else UNKNOWN
                if returned:
                    return returned
            is_layer = (value.dotted or "").startswith("torch.nn.")
            return Value(Kind.TENSOR if is_layer and value.cls is None else Kind.OUTPUT, value.is_sure)
        if value.kind is Kind.TOKENIZER:
            return Value(Kind.ENCODING, value.is_sure)
        return UNKNOWN

    def _returned(self, function: Function) -> Value:
        if isinstance(function.node, ast.FunctionDef | ast.AsyncFunctionDef):
            annotated = self._annotations.value(function.module, function.node.returns)
            if annotated:
                return annotated
        for statement in function.returns[:4]:
            if statement.value is not None and not gives_back(function, statement.value):
                value = self.of(function.module, statement.value)
                if value and value.kind is not Kind.NONE:
                    return value
        return UNKNOWN


def _is_over(module: Module, binding: Binding, name: ast.AST) -> bool:
    """Whether a binding on the name's own line was made before it is read: loops and comprehensions are."""
    return binding.how in ("item", "enter") or binding.node not in module.ancestors(name)
