"""What runs in every step: training loops, inference loops, forward passes, and all they call, across files.

A loop is a *step loop* where its body itself, not a loop inside, makes the step: calls backward or an optimiser's step,
or a function that does. The loop over epochs around it is none. Inference loops call a model where no gradients are
wanted. From these, heat spreads along calls to functions of the project.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import replace
from enum import StrEnum

from whet_audit.abstract_types import Kind
from whet_audit.calls import CallKind, Calls
from whet_audit.constants import Constants
from whet_audit.denoising import grows, refines, turns_a_call
from whet_audit.finding import HotPath
from whet_audit.frequency import Frequencies, is_outside, is_signature, loops_around
from whet_audit.no_steps import NoSteps
from whet_audit.project import Project, name_of, root_name
from whet_audit.reach import Reach
from whet_audit.result_flow import flow_of, leaves_something
from whet_audit.source import Function, LoopNode, Module
from whet_audit.type_inference import TypeInference
from whet_audit.written_settings import WrittenSettings

_MOST_FUNCTIONS_ON_THE_WAY = 6
_MOST_TIMES = 10_000.0  # in each unit of work: what runs more often is as bad
_LOOPS = (ast.For, ast.AsyncFor, ast.While)


class HeatKind(StrEnum):
    """Why code is hot. The values are read by people."""

    TRAINING = "training loop"
    INFERENCE = "inference loop"
    GENERATION = "generation loop"
    DENOISING = "denoising loop"
    TRAINING_STEP = "training step"  # a function that makes a step, called by code that is not here
    INFERENCE_CALL = "inference function"  # the same of inference
    FORWARD = "forward pass"
    DATA = "data loading"


TRAINS = frozenset({HeatKind.TRAINING, HeatKind.TRAINING_STEP})
INFERS = frozenset({HeatKind.INFERENCE, HeatKind.INFERENCE_CALL, HeatKind.GENERATION, HeatKind.DENOISING})
_ORDER = list(HeatKind)  # where a function is reached from several, the first counts


class HotPaths:
    """Finds the hot places of a project once; `of` says why a node is hot."""

    def __init__(
        self,
        project: Project,
        kinds: TypeInference,
        constants: Constants,
        settings: WrittenSettings | None = None,
    ) -> None:
        self._project = project
        self._kinds = kinds
        settings = settings or WrittenSettings()
        self._frequencies = Frequencies(project, constants, settings, self.makes_step)
        self._calls = Calls(project, kinds)
        self.loops: dict[ast.AST, HeatKind] = {}
        self.functions: dict[Function, HotPath] = {}
        self._trains: dict[Function, bool] = {}
        self._infers: dict[Function, bool] = {}
        for module in project.modules:
            if module.uses_torch:
                self._find_loops(module)
        steps = {loop: kind in TRAINS for loop, kind in self.loops.items() if kind is not HeatKind.INFERENCE}
        self._reach = Reach(project, constants, settings)
        self._no_steps = NoSteps(project, self._calls, self._reach, steps, self.makes_step)
        self._spread(self._seeds())

    def of(self, module: Module, node: ast.AST) -> HotPath | None:
        """Why a node is hot, and how often it runs; None where it is not. The innermost reason counts."""
        child = node
        for up in module.ancestors(node):
            if isinstance(up, _LOOPS) and not is_outside(up, child):
                if up in self.loops:
                    return self._in_loop(module, node, up)
            elif up in module.function_of_node and not is_signature(up, child):
                hot = self.functions.get(module.function_of_node[up])
                if hot is not None:
                    often = self._frequencies.of(module, node, up)
                    return replace(
                        hot,
                        guard=often.guard or hot.guard,
                        times_per_step=", ".join(filter(None, (hot.times_per_step, often.loops))),
                        times=min(often.times * hot.times, _MOST_TIMES),
                        assumes="; ".join(filter(None, (hot.assumes, often.assumes))),
                    )
                if isinstance(up, ast.Module):
                    return None
            child = up
        return None

    def step_loops(self, module: Module, *kinds: HeatKind) -> Iterator[LoopNode]:
        """The module's own step loops, of the kinds (all without any), in the order of the source."""
        for function in module.functions:
            for loop in function.loops:
                if loop in self.loops and (not kinds or self.loops[loop] in kinds):
                    yield loop

    def makes_step(self, call: ast.Call, module: Module) -> bool:
        """Whether a call is a backward pass, an optimiser's step, or of a function that makes one."""
        if self._calls.kind(module, call) in (CallKind.BACKWARD, CallKind.STEP):
            return True
        target = self._project.target(module, call)
        return target is not None and self._has(target, self._trains, (CallKind.BACKWARD, CallKind.STEP))

    def runs_model(self, call: ast.Call, module: Module) -> bool:
        """Whether a call runs a model's forward pass, or is of a function that does."""
        if self._calls.kind(module, call) in (CallKind.MODEL, CallKind.GENERATE):
            return True
        target = self._project.target(module, call)
        return target is not None and self._has(target, self._infers, (CallKind.MODEL, CallKind.GENERATE))

    def only_infers(self, function: Function) -> bool:
        """Whether a function puts its model in eval mode, or nobody who calls it asks for a gradient."""
        is_eval = any(
            name_of(call) == "eval" and isinstance(call.func, ast.Attribute) and not call.args
            for call in function.calls
        )
        return is_eval or not self._is_differentiated(function)

    def kind_of_call(self, module: Module, call: ast.Call) -> CallKind:
        """What a call is to a training or inference loop."""
        return self._calls.kind(module, call)

    # --- loops --------------------------------------------------------------------------------------------------------

    def _find_loops(self, module: Module) -> None:
        for function in module.functions:
            if self._is_forward(function) or function.is_test:
                continue
            for loop in reversed(function.loops):  # those inside before those around them
                calls = list(own_calls(module, function, loop))
                if any(self._asks_somebody(module, call) for call in calls):
                    continue  # who types takes longer than what is computed
                if any(self.makes_step(call, module) for call in calls):
                    self.loops[loop] = HeatKind.TRAINING
                    continue
                runs_model = any(self.runs_model(call, module) for call in calls)
                if runs_model and self._is_inference(module, function, loop):
                    self.loops[loop] = self._kind_of_inference(module, function, loop)
                elif not runs_model and self._refines_in_parts(module, function, loop):
                    self.loops[loop] = HeatKind.DENOISING

    def _refines_in_parts(self, module: Module, function: Function, loop: LoopNode) -> bool:
        """Whether a denoising loop runs its model in a loop over chunks."""
        inside = [one for one in function.loops if one is not loop and loop in module.ancestors(one)]
        if not any(self.loops.get(one) is HeatKind.INFERENCE for one in inside):
            return False
        models = [call for one in inside for call in own_calls(module, function, one) if self.runs_model(call, module)]
        return refines(module, loop, models)

    def _asks_somebody(self, module: Module, call: ast.Call) -> bool:
        """Whether a call, or the function that it runs, waits for what somebody types."""
        target = self._project.target(module, call)
        return any(getattr(one.func, "id", "") == "input" for one in (call, *(target.calls if target else ())))

    def _kind_of_inference(self, module: Module, function: Function, loop: LoopNode) -> HeatKind:
        if isinstance(loop, ast.For) and self._is_loader(module, loop.iter):
            return HeatKind.INFERENCE
        if any(self._calls.kind(module, call) is CallKind.PICK for call in function.calls) and grows(loop):
            return HeatKind.GENERATION
        models = [call for call in own_calls(module, function, loop) if self.runs_model(call, module)]
        return HeatKind.DENOISING if refines(module, loop, models) else HeatKind.INFERENCE

    def _is_loader(self, module: Module, e: ast.expr) -> bool:
        """Whether it is a loader, or one is zipped with something."""
        parts = e.args if isinstance(e, ast.Call) and getattr(e.func, "id", "") in ("zip", "enumerate", "tqdm") else []
        return self._kinds.of(module, e).kind is Kind.LOADER or any(self._is_loader(module, part) for part in parts)

    def _is_inference(self, module: Module, function: Function, loop: LoopNode) -> bool:
        if any(self.makes_step(call, module) for call in function.calls if loop in module.ancestors(call)):
            return False  # a loop over epochs, with a step loop inside
        if self._runs_layers(module, function, loop):
            return False
        if self._calls.is_without_gradients(module, loop) or self.only_infers(function):
            return True
        if isinstance(loop, ast.For) and self._kinds.of(module, loop.iter).kind is Kind.LOADER:
            return not any(self.makes_step(call, module) for call in function.calls)
        return any(self._calls.kind(module, call) is CallKind.GENERATE for call in own_calls(module, function, loop))

    def _runs_layers(self, module: Module, function: Function, loop: LoopNode) -> bool:
        """Whether the loop runs over a model's layers: what it calls is what it loops over."""
        target = loop.target if not isinstance(loop, ast.While) else ast.Tuple([])
        names = {node.id for node in ast.walk(target) if isinstance(node, ast.Name)}
        called = [call.func for call in own_calls(module, function, loop) if self.runs_model(call, module)]
        return bool(names) and all(root_name(f) in names for f in called)

    def _has(self, function: Function, known: dict[Function, bool], kinds: tuple[CallKind, ...]) -> bool:
        """Whether a function itself, outside of loops, makes a call of the kinds, or calls one that does."""
        if function not in known:
            known[function] = False  # while it is found out: recursion ends here
            module = function.module
            if known is self._trains and self._goes_through_data(function):
                return False  # an epoch, whatever it does after it
            own = [call for call in function.calls if not any(isinstance(up, _LOOPS) for up in inside(module, call))]
            known[function] = any(self._calls.kind(module, call) in kinds for call in own) or any(
                (target := self._project.target(module, call)) is not None and self._has(target, known, kinds)
                for call in own
            )
        return known[function]

    def _goes_through_data(self, function: Function) -> bool:
        """Whether a function, or a closure in it, loops over a loader."""
        scopes = [function, *function.inner.values()]
        loops = [loop for scope in scopes for loop in scope.loops if isinstance(loop, ast.For)]
        return any(self._kinds.of(function.module, loop.iter).kind is Kind.LOADER for loop in loops)

    def _is_differentiated(self, function: Function, _depth: int = 0) -> bool:
        """Whether a gradient may be asked for of what a function computes: in it, by its callers, or out of sight."""
        if _depth == 0 and any(self.makes_step(call, function.module) for call in function.calls):
            return True
        if isinstance(function.node, ast.Module):
            return False
        callers = self._project.callers(function)
        if not callers or _depth == _MOST_FUNCTIONS_ON_THE_WAY or self._is_forward(function):
            return True
        if leaves_something(function):  # which a caller may differentiate without the result
            steps = (self.makes_step(call, at.module) for at, _ in callers for call in at.calls)
            return any(steps) or any(self._is_differentiated(at, _depth + 1) for at, _ in callers)
        return any(self._asks_for_gradient(at, call, _depth + 1) for at, call in callers)

    def _asks_for_gradient(self, function: Function, call: ast.Call, depth: int) -> bool:
        """Whether a function, or one that it returns to, may differentiate the result of a call that it makes."""
        flow = flow_of(function, call)
        steps = (one for one in function.calls if self.makes_step(one, function.module))
        if flow.is_kept or any(flow.reaches(one) for one in steps):
            return True
        is_returned = any(flow.reaches(one.value) for one in function.returns) or flow.is_yielded(function)
        return is_returned and self._is_differentiated(function, depth)

    # --- functions ----------------------------------------------------------------------------------------------------

    def _is_forward(self, function: Function) -> bool:
        if function.cls is None or function.name not in ("forward", "__call__", "construct"):
            return False
        if self._trains_whole(function):
            return False
        kind = self._kinds.instance(function.cls)
        is_autograd = kind.dotted is not None and kind.dotted.endswith("autograd.Function")
        return kind.kind is Kind.MODEL or is_autograd or function.name == "forward"

    def _trains_whole(self, function: Function) -> bool:
        """Whether a loop of it takes the whole step, backward pass and optimiser: a trainer, whatever its name."""
        module, both = function.module, {CallKind.BACKWARD, CallKind.STEP}
        return any(
            both <= {self._calls.kind(module, call) for call in own_calls(module, function, loop)}
            for loop in function.loops
        )

    def _seeds(self) -> Iterator[tuple[Function, HotPath]]:
        for module in self._project.modules:
            for function in module.functions:
                yield from self._called_in_loops(module, function)
                kind = self._own_kind(function) if module.uses_torch else None
                if kind is not None:
                    yield function, self._by_itself(function, kind)

    def _by_itself(self, function: Function, kind: HeatKind) -> HotPath:
        if kind is HeatKind.FORWARD and function.cls is not None:
            blocks = self._reach.blocks(function.cls)
            no_step = self._no_steps.of_forward(function)
            return HotPath(
                kind,
                function.qualname,
                times=blocks.number,
                layers=blocks.number,
                assumes=blocks.assumes,
                no_step=no_step,
            )
        is_hook = kind is HeatKind.TRAINING_STEP and self._calls.hook(function) is not None
        once = "once a call" if kind is HeatKind.INFERENCE_CALL else ""
        return HotPath(kind, function.qualname, no_step=self._no_steps.of_hook(function) if is_hook else once)

    def _own_kind(self, function: Function) -> HeatKind | None:
        """Why a function is hot by itself, whoever calls it."""
        if isinstance(function.node, ast.Module):
            return None
        if self._is_forward(function):
            return HeatKind.FORWARD
        named = self._calls.hook(function)
        if named is not None:
            return HeatKind[named]
        if any(loop in self.loops for loop in function.loops) or function.is_test or self._runs_once(function):
            return None  # it drives loops, of which each is hot by itself, or is a demonstration
        if self._has(function, self._trains, (CallKind.BACKWARD, CallKind.STEP)):
            return HeatKind.TRAINING_STEP
        if self._has(function, self._infers, (CallKind.MODEL, CallKind.GENERATE)):
            module = function.module
            calls = [call for call in function.calls if self.runs_model(call, module)]
            if self.only_infers(function) or any(self._calls.is_without_gradients(module, call) for call in calls):
                return HeatKind.INFERENCE_CALL
        return None

    def _runs_once(self, function: Function, _depth: int = 0) -> bool:
        """Whether all that calls a function is the top of a module, or functions that run once; not in loops."""
        callers = self._project.callers(function)
        return (
            bool(callers)
            and _depth < _MOST_FUNCTIONS_ON_THE_WAY
            and not any(True for at, call in callers for _ in loops_around(at.module, call))
            and all(isinstance(at.node, ast.Module) or self._runs_once(at, _depth + 1) for at, _ in callers)
        )

    def _called_in_loops(self, module: Module, function: Function) -> Iterator[tuple[Function, HotPath]]:
        if not any(loop in self.loops for loop in function.loops):
            return
        for call in function.calls:
            target = self._callee(module, call)
            if target is None:
                continue
            hot = self._of_loops(module, call)
            if hot is not None:
                yield target, replace(hot, function=target.qualname, via=(target.name,))

    def _of_loops(self, module: Module, node: ast.AST) -> HotPath | None:
        """As `of`, before functions are known: by the loops around the node alone."""
        loop = next((loop for loop in loops_around(module, node) if loop in self.loops), None)
        return None if loop is None else self._in_loop(module, node, loop)

    def _spread(self, seeds: Iterable[tuple[Function, HotPath]]) -> None:
        waiting = sorted(seeds, key=lambda seed: _rank(seed[1]))
        while waiting:
            found = []
            for function, hot in waiting:
                known = self.functions.get(function)
                if known is not None and _rank(known) <= _rank(hot):
                    continue
                self.functions[function] = hot
                if len(hot.via) >= _MOST_FUNCTIONS_ON_THE_WAY:
                    continue
                found += list(self._called_by(function))
            waiting = found

    def _called_by(self, function: Function) -> Iterator[tuple[Function, HotPath]]:
        module = function.module
        for call in function.calls:
            target = self._callee(module, call)
            if target is None or target is function or target.name == "__init__":
                continue
            hot = self.of(module, call)
            if hot is not None:
                yield target, replace(hot, function=target.qualname, via=(*hot.via, target.name))

    def _callee(self, module: Module, call: ast.Call) -> Function | None:
        """What a call makes hot: not a model's forward pass by way of the model, which is hot for its own reason."""
        target = self._calls.target(module, call)
        is_own_reason = target is not None and self._is_forward(target) and self._project.target(module, call) is None
        return None if is_own_reason else target

    def _in_loop(self, module: Module, node: ast.AST, loop: LoopNode) -> HotPath:
        often = self._frequencies.of(module, node, loop)
        is_refining = self.loops[loop] is HeatKind.DENOISING
        turns, assumed = turns_a_call(self._frequencies, module, loop) if is_refining else (0, "")
        is_inference = self.loops[loop] is HeatKind.INFERENCE
        return HotPath(
            kind=self.loops[loop],
            function=module.function_of(node).qualname,
            loop_path=module.path,
            loop_line=loop.lineno,
            guard=often.guard,
            times_per_step=often.loops,
            times=min(often.times, _MOST_TIMES),
            turns=turns,
            assumes="; ".join(filter(None, (often.assumes, assumed))),
            no_step=self._no_steps.of_inference(module, loop) if is_inference else "",
        )


def inside(module: Module, node: ast.AST) -> Iterator[ast.AST]:
    """What a node lies in, up to its function."""
    for up in module.ancestors(node):
        if up in module.function_of_node:
            return
        yield up


def own_calls(module: Module, function: Function, loop: LoopNode) -> Iterator[ast.Call]:
    """The calls that a loop's body makes itself: not those of loops inside it, nor those of its header's iterable."""
    for call in function.calls:
        if next(loops_around(module, call), None) is loop:
            yield call


def _rank(hot: HotPath) -> tuple[bool, int, int]:
    return bool(hot.guard or hot.no_step), _ORDER.index(HeatKind(hot.kind)), len(hot.via)
