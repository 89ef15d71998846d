"""Functions that only infer: by their name, by eval(), and by taking no gradients anywhere."""

from __future__ import annotations

import ast
import re

from whet_audit.calls import CallKind
from whet_audit.hot_paths import TRAINS
from whet_audit.project import name_of
from whet_audit.rule_context import RuleContext
from whet_audit.source import Function

_HOOKS = frozenset(
    "validation_step test_step predict_step prediction_step eval_step on_validation_batch_end training_step "
    "evaluate_step val_step compute_loss _inference_step validation_epoch_end".split()
)
_NO_FORWARD = re.compile(
    r"^_*(load|build|get|create|make|init|save|set|add|unwrap|wrap|prepare|eval|is|has|fetch|register|setup|export|update|"
    r"generate|find|move|copy|convert|compile|freeze|fuse|quantize|parse|print|check|test|train|run|log|push|switch|override|"
    r"_?unwrap)_|retriever|tokenizer|processor|^(YOLO|pipe|pipeline)$"
)
_TAKES = ("backward", "grad", "jacobian", "hessian", "requires_grad_", "vjp", "jvp", "zero_grad")


def runs_forward(context: RuleContext, call: ast.Call) -> bool:
    """Whether a call is a model's forward pass, and not one that only has "model" in its name: `load_model()`."""
    if context.call_kind(call) is not CallKind.MODEL or _NO_FORWARD.search(name_of(call)) is not None:
        return False
    cls = context.class_of(call)
    is_self = isinstance(call.func, ast.Name) and call.func.id == "self"
    return not is_self or cls is None or context.is_model_class(cls) or "forward" in cls.methods


def is_hook(context: RuleContext, function: Function) -> bool:
    """Whether a framework calls it, and turns gradients off around it."""
    return function.cls is not None and function.name in _HOOKS


def takes_gradients(context: RuleContext, function: Function) -> bool:
    """Whether a function, what is nested in it, or what it is nested in, differentiates or trains."""
    scope: Function | None = function
    while scope is not None and not isinstance(scope.node, ast.Module):
        if any(name_of(call) in _TAKES or context.call_kind(call) is CallKind.STEP for call in scope.calls):
            return True
        if any(argument.arg in ("optimizer", "optim", "is_train", "training", "train") for argument in scope.arguments):
            return True
        scope = scope.parent
    if any(isinstance(n, ast.Attribute) and n.attr == "requires_grad" for n in ast.walk(function.node)):
        return True
    hot = context.hot_paths.functions.get(function)
    return hot is not None and hot.kind in TRAINS and not hot.guard
