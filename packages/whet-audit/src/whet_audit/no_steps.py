"""What looks like a step and is none: batches of an evaluation by hand, and what no training or generation reaches."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property

from whet_audit.calls import Calls
from whet_audit.frequency import loops_around
from whet_audit.project import Project, name_of
from whet_audit.reach import Reach
from whet_audit.source import Function, LoopNode, Module

_DEEPEST = 4
_RUNNERS = re.compile(r"Trainer\b|LightningCLI|[rR]unner\b")  # that call an object's training step
Gradients = Callable[[ast.Call, Module], bool]


class NoSteps:
    """Says why code belongs to no step; "" where it may belong to one.

    trains: the loops that train. steps: these and all others of which each turn is a step. makes_step: whether a call
    asks for a gradient.
    """

    def __init__(
        self, project: Project, calls: Calls, reach: Reach, steps: Mapping[ast.AST, bool], makes_step: Gradients
    ) -> None:
        self._project = project
        self._calls = calls
        self._reach = reach
        self._steps = steps
        self._makes_step = makes_step

    def of_inference(self, module: Module, loop: LoopNode) -> str:
        """Of a loop over batches, prompts or files: a step only where a training comes by it again and again."""
        function = module.function_of(loop)
        is_inside = any(around in self._steps for around in loops_around(module, loop))
        is_beside = is_inside or self._is_beside_training(module, loop) or self._is_called_in_training(function)
        return "" if is_beside else "once a batch, prompt or file, outside of training"

    def of_forward(self, function: Function) -> str:
        """Of a forward pass."""
        cls = function.cls
        assert cls is not None
        if self._reach.is_unused(cls):
            return f"nothing here makes a {cls.node.name}"
        is_reached = function.module in self._reached or self._reach.is_named_in_settings(function.module)
        return "" if is_reached else "no training, generation or denoising here reaches it"

    def of_hook(self, function: Function) -> str:
        """Of a method with the name of a training step, which a framework or another object is to call."""
        is_called = any(
            isinstance(call.func, ast.Attribute) and not _is_super(call.func.value)
            for _, call in self._project.named(function.name)
        )
        if is_called or not self._training or self._has_runner:
            return ""
        return f"nothing here calls {function.name}, and what trains does not need it"

    @cached_property
    def _has_runner(self) -> bool:
        """Whether the project makes or imports what calls the training steps of objects."""
        named = (name for module in self._project.modules for name in module.imported)
        return any(_RUNNERS.search(name) for name in named)

    @cached_property
    def _training(self) -> list[ast.AST]:
        return [loop for loop, trains in self._steps.items() if trains]

    @cached_property
    def _reached(self) -> set[Module]:
        """The modules that run with a step; all, where no step is in sight."""
        roots = [
            module
            for module in self._project.modules
            if any(loop in self._steps for function in module.functions for loop in function.loops)
            or any(
                self._calls.hook(function) == "TRAINING_STEP" and not self.of_hook(function)
                for function in module.functions
            )
        ]
        return self._reach.imported_by(roots) if roots else set(self._project.modules)

    def _is_beside_training(self, module: Module, node: ast.AST) -> bool:
        """Whether a loop around a node trains too, itself or through what it calls."""
        return any(
            loop in self._training or self._trains(module, ast.walk(loop)) for loop in loops_around(module, node)
        )

    def _trains(self, module: Module, nodes: Iterable[ast.AST]) -> bool:
        for node in nodes:
            if node in self._training:
                return True
            if isinstance(node, ast.Call):
                target = self._calls.target(module, node)
                loops = [] if target is None else target.loops
                if self._makes_step(node, module) or any(loop in self._training for loop in loops):
                    return True
        return False

    def _is_called_in_training(self, function: Function, depth: int = 0) -> bool:
        if depth > _DEEPEST or isinstance(function.node, ast.Module):
            return False
        callers = [
            (at, call)
            for at, call in self._project.named(function.name)
            if self._calls.target(at.module, call) is function
        ]
        return any(
            self._is_beside_training(at.module, call) or self._is_called_in_training(at, depth + 1)
            for at, call in callers
            if at is not function
        )


def _is_super(e: ast.expr) -> bool:
    return isinstance(e, ast.Call) and name_of(e) == "super"
