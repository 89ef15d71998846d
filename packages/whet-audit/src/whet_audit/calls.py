"""What a call is to a loop: a backward pass, an optimiser's step, a forward pass; and what a function is for."""

from __future__ import annotations

import ast
import re
from enum import Enum

from whet_audit.abstract_types import Kind
from whet_audit.project import Project, name_of
from whet_audit.source import Function, Module
from whet_audit.type_inference import TypeInference

_LOSS = re.compile(r"(\w*_)?(criterion|loss\w*|crit)|\w*Loss")
_VERB = re.compile(
    r"_?(load|unwrap|add|setup|set|get|update|build|make|create|init|save|register|wrap|prepare|is|has)_"
)
_PICKS = frozenset("argmax multinomial topk sample categorical gumbel_softmax".split())
_NO_GRADIENTS = ("torch.no_grad", "torch.inference_mode", "torch.autograd.no_grad", "torch.autograd.inference_mode")
_STEP_HOOKS = frozenset("training_step compute_loss".split())
# Methods that a trainer of transformers, Lightning or MMEngine calls in every step of whoever gives it such an object.
_CALLBACKS = frozenset(
    (
        "on_step_begin on_substep_end on_pre_optimizer_step on_step_end on_train_batch_start on_train_batch_end "
        "on_before_backward on_after_backward on_before_optimizer_step before_train_iter after_train_iter"
    ).split()
)
_EVAL_HOOKS = frozenset("validation_step test_step predict_step prediction_step eval_step".split())
_SAMPLE_HOOKS = frozenset("__getitem__ __getitems__".split())
_ONE_BY_ONE = ("backward", "manual_backward")


class CallKind(Enum):
    """What a call does to the step."""

    BACKWARD = "backward"
    STEP = "optimiser's step"
    MODEL = "model"
    GENERATE = "generate"
    PICK = "pick of a token"
    OTHER = "other"


class Calls:
    """Classifies calls, and functions by what they are for."""

    def __init__(self, project: Project, kinds: TypeInference) -> None:
        self._project = project
        self._kinds = kinds
        self._known: dict[ast.Call, CallKind] = {}

    def kind(self, module: Module, call: ast.Call) -> CallKind:
        """What a call is. Only files that use PyTorch have any."""
        if not module.uses_torch:
            return CallKind.OTHER
        if call not in self._known:
            self._known[call] = self._kind(module, call)
        return self._known[call]

    def target(self, module: Module, call: ast.Call) -> Function | None:
        """The project's function that a call runs: also by what an object is, as in `self.model.predict(x)`."""
        found = self._project.target(module, call)
        if found is not None or not isinstance(call.func, ast.Attribute | ast.Name):
            return found
        if isinstance(call.func, ast.Attribute):
            owner = self._kinds.of(module, call.func.value)
            method = self._project.method(owner.cls, call.func.attr) if owner.cls is not None else None
            if method is not None:
                return method
        called = self._kinds.of(module, call.func)
        if called.cls is None:
            return None
        return self._project.method(called.cls, "forward" if called.kind is Kind.MODEL else "__call__")

    def is_without_gradients(self, module: Module, node: ast.AST) -> bool:
        """Whether a node runs under no_grad or inference_mode, by a with around it, in it, or a decorator."""
        for up in [node, *module.ancestors(node)]:
            expressions: list[ast.expr] = []
            if isinstance(up, ast.With | ast.AsyncWith):
                expressions = [item.context_expr for item in up.items]
            elif isinstance(up, ast.FunctionDef | ast.AsyncFunctionDef):
                expressions = up.decorator_list
            if any(self._turns_off(module, expression) for expression in expressions):
                return True
        if isinstance(node, ast.For | ast.While):
            return any(
                self._turns_off(module, item.context_expr)
                for inner in ast.walk(node)
                if isinstance(inner, ast.With)
                for item in inner.items
            )
        return False

    def hook(self, function: Function) -> str | None:
        """The HeatKind's name of a function that a framework calls in each step; None for others."""
        if function.cls is not None:
            if function.name in _STEP_HOOKS or function.name in _CALLBACKS:
                return "TRAINING_STEP"
            if function.name in _EVAL_HOOKS:
                return "INFERENCE_CALL"
            if function.name in _SAMPLE_HOOKS and "__len__" in function.cls.methods:
                return "DATA"
            if function.name == "__iter__" and self._kinds.instance(function.cls).kind is Kind.DATASET:
                return "DATA"
        if re.fullmatch(r"(\w*_)?collat(e|or)(_\w+)?", function.name.lower().lstrip("_")) and function.arguments:
            return "DATA"
        if function.name == "__call__" and function.cls is not None and "collat" in function.cls.qualname.lower():
            return "DATA"
        return None

    def _kind(self, module: Module, call: ast.Call) -> CallKind:
        name = name_of(call)
        if name in _ONE_BY_ONE and isinstance(call.func, ast.Attribute):
            is_super = isinstance(call.func.value, ast.Call) and name_of(call.func.value) == "super"
            is_in_function = module.function_of(call).name == "backward"
            return CallKind.OTHER if is_super or is_in_function else CallKind.BACKWARD
        if name == "update_params" and isinstance(call.func, ast.Attribute):  # MMEngine: backward pass and step
            owner = self._kinds.of(module, call.func.value).kind
            return CallKind.BACKWARD if owner is Kind.OPTIMIZER else CallKind.OTHER
        if name == "train_batch" and isinstance(call.func, ast.Attribute):  # DeepSpeed's pipelines: a whole step
            return CallKind.OTHER if self._project.target(module, call) else CallKind.STEP
        if name == "step" and isinstance(call.func, ast.Attribute):
            owner = self._kinds.of(module, call.func.value).kind
            return CallKind.STEP if owner in (Kind.OPTIMIZER, Kind.SCALER) else CallKind.OTHER
        if name in _PICKS:
            dotted = self._project.dotted(module, call.func) or "torch."
            return CallKind.PICK if dotted.startswith(("torch.", "self.")) else CallKind.OTHER
        if _LOSS.fullmatch(name):
            return CallKind.OTHER
        if isinstance(call.func, ast.Attribute) and name in ("generate", "forward", "greedy_search", "beam_search"):
            owner_value = self._kinds.of(module, call.func.value)
            if owner_value.kind is Kind.MODEL and owner_value.cls is None:
                return CallKind.MODEL if name == "forward" else CallKind.GENERATE
        return self._as_model(module, call)

    def _as_model(self, module: Module, call: ast.Call) -> CallKind:
        function = call.func
        if isinstance(function, ast.Name | ast.Attribute):
            dotted = self._project.dotted(module, function)
            is_global = dotted is not None and not dotted.startswith("self.")
            if is_global and dotted and (self._project.function_at(dotted) or self._project.class_at(dotted)):
                return CallKind.OTHER
            if isinstance(function, ast.Name) and function.id == "self":
                cls = module.class_of(call)
                is_model = cls is not None and self._kinds.instance(cls).kind is Kind.MODEL
                return CallKind.MODEL if is_model else CallKind.OTHER
            if _VERB.match(name_of(call)):
                return CallKind.OTHER  # load_model(), get_encoder(): named after a model, and none
            value = self._kinds.of(module, function)
            is_loss = value.dotted is not None and _LOSS.fullmatch(value.dotted.rpartition(".")[2]) is not None
            if value.kind is Kind.MODEL and not is_loss:
                return CallKind.MODEL
            if value.kind is Kind.UNKNOWN and self._is_part(module, call):
                return CallKind.MODEL
        return CallKind.OTHER

    def _is_part(self, module: Module, call: ast.Call) -> bool:
        """Whether it calls an attribute that the object was given, with a tensor and without gradients: a model's part.

        A pipeline is given its models; nothing else says what they are.
        """
        function = call.func
        if not isinstance(function, ast.Attribute) or getattr(function.value, "id", "") != "self":
            return False
        cls = module.class_of(call)
        bindings = self._project.attribute(cls, function.attr) if cls is not None else []
        arguments = [*call.args, *(keyword.value for keyword in call.keywords)]
        return (
            any(isinstance(binding.value, ast.Name) for binding in bindings)
            and any(self._kinds.is_tensor(module, argument) for argument in arguments)
            and self.is_without_gradients(module, call)
        )

    def _turns_off(self, module: Module, expression: ast.expr) -> bool:
        function = expression.func if isinstance(expression, ast.Call) else expression
        dotted = self._project.dotted(module, function)
        if dotted in _NO_GRADIENTS:
            return True
        is_switch = dotted == "torch.set_grad_enabled" and isinstance(expression, ast.Call)
        return is_switch and isinstance(expression, ast.Call) and _is_false(expression.args[:1])


def _is_false(arguments: list[ast.expr]) -> bool:
    return bool(arguments) and isinstance(arguments[0], ast.Constant) and arguments[0].value is False
