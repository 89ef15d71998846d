"""Run a torch.export program with PyTorch itself. Models that no backend compiled are saved in this form.

The file is torch's .pt2 archive. It is checked before torch reads it, since nothing in it may run code.
"""

import copy
import warnings
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import torch
import torch.ao.quantization.fx._decomposed  # makes the operators of quantised graphs known to torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import DataDependentOutputException
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

from whet.core.artefact.archive import check_archive
from whet.core.artefact.indices import conditions_on_indices
from whet.core.artefact.operators import custom_operators
from whet.core.artefact.probes import check_randomness, check_values, conditions_on_layout
from whet.core.artefact.ranges import finds_ranges
from whet.core.artefact.runtime import Manifest, Runtime
from whet.core.artefact.shape_guards import WITHOUT_GRADIENTS, conditions_of
from whet.core.artefact.size_one_guards import conditions_on_ones
from whet.core.scripted import trace_failure
from whet.core.signature import FlatModel, Signature
from whet.core.workload import ExaminedWorkload
from whet.errors import ArtefactError, TargetError, foreign, reason
from whet.measure.source_location import user_line

FILE = "program.pt2"

_PACKED_PRODUCT = torch.ops.aten._weight_int4pack_mm_for_cpu.default  # its weights lie differently on each chip
_PACKED_FOR = "cpu_capability"

_BRANCHING = frozenset({"cond", "switch", "while_loop"})


def export(module: nn.Module, examined: ExaminedWorkload, *, contiguous: bool = False) -> torch.export.ExportedProgram:
    """Export a module as a graph of aten operators, and keep its free dimensions free.

    Args:
        module: From flat tensors to flat tensors.
        contiguous: Whether to trace with contiguous inputs. Compilers take the example's strides for all inputs.

    Raises:
        TargetError: No graph can stand for the model: its code cannot be traced, or it does what a graph would leave
            out. The message names the reason.
    """
    if examined.effects:
        raise TargetError(f"forward {'; '.join(examined.effects)}: a graph of the model would leave that out")
    arguments = _example(examined)
    if contiguous:
        arguments = tuple(x.contiguous() for x in arguments)
    shapes = examined.signature.dynamic_shapes
    traced = foreign(TargetError, "torch.export cannot trace the model", words=lambda error: _why(module, error))
    with traced, torch.no_grad(), warnings.catch_warnings():
        # A tensor that forward keeps and never reads; one that it reads was found when the model was examined.
        warnings.filterwarnings("ignore", message="The tensor attribute", category=UserWarning)
        program = torch.export.export(
            module, arguments, dynamic_shapes=(shapes,) if shapes is not None else None, strict=False
        )
    known = [*conditions(examined), *conditions_of(program)]
    if not _is_known(examined):  # the first graph is the one that was made from the model's code
        known += _found_by_trying(module, program, arguments, examined)
    _CONDITIONS[examined.workload.model] = (examined.signature, list(dict.fromkeys(known)))
    return program


def _found_by_trying(
    module: nn.Module, program: torch.export.ExportedProgram, arguments: tuple[Tensor, ...], examined: ExaminedWorkload
) -> list[str]:
    """Find conditions that torch.export misses by running model and graph; raise TargetError where these disagree."""
    check_randomness(program)
    graph = _flat_module(program)
    check_values(module, graph, arguments)
    found = conditions_on_layout(module, graph, arguments)
    if _lies_on_cpu(arguments):  # a GPU would have to be waited for; it checks indices itself
        found += conditions_on_indices(program)
    if examined.signature.is_dynamic:
        found += _conditions_on_ones(module, program, arguments, examined)
    return [*found, WITHOUT_GRADIENTS] if examined.depends_on_grad_mode else found


def _why(module: nn.Module, error: Exception) -> str:
    """Return torch's reason; where Python asks for a tensor's value, the line that asks for it."""
    is_scripted = any(isinstance(part, torch.jit.ScriptModule) for part in module.modules())
    if is_scripted or not isinstance(error, GuardOnDataDependentSymNode | DataDependentOutputException):
        return trace_failure(module, error)
    last = error.__traceback__
    while last is not None and last.tb_next is not None:
        last = last.tb_next
    line = user_line(last.tb_frame if last is not None else None)
    return f"what forward does depends on the values of its tensors ({line}), and a graph knows one way only"


def _conditions_on_ones(
    module: nn.Module, program: torch.export.ExportedProgram, arguments: tuple[Tensor, ...], examined: ExaminedWorkload
) -> list[str]:
    """Return conditions_on_ones; for a model on a GPU, those of a copy on the CPU.

    Where no such copy can be made or traced, nothing is known about sizes of 1. Then each free dimension excludes 1.
    """
    if _lies_on_cpu(arguments):
        return conditions_on_ones(module, _flat_module(program), examined)
    try:
        on_cpu = copy.deepcopy(module).cpu()
        shapes = (examined.signature.dynamic_shapes,)
        with torch.no_grad():
            traced = torch.export.export(on_cpu, tuple(x.cpu() for x in arguments), dynamic_shapes=shapes, strict=False)
        batches = [tuple(x.cpu() for x in batch) for batch in (*examined.flat_inputs, *examined.flat_calibration)]
        return conditions_on_ones(on_cpu, _flat_module(traced), examined, batches)
    except Exception:  # noqa: BLE001 - code that names a GPU, or whatever else a copy or the tracer stumbles over
        return [
            f"L['tensors'][{i}].size()[{dim}] >= 2"
            for i, argument in enumerate(examined.signature.inputs)
            for dim, size in enumerate(argument.shape)
            if size is None
        ]


def _lies_on_cpu(tensors: Sequence[Tensor]) -> bool:
    return all(tensor.device.type == "cpu" for tensor in tensors)


# Kept beside the model, as a graph that is traced, rewritten and traced again has forgotten what the first tracing met.
_CONDITIONS: weakref.WeakKeyDictionary[nn.Module, tuple[Signature, list[str]]] = weakref.WeakKeyDictionary()

# The original's own graph, or why there is none.
_ORIGINALS: weakref.WeakKeyDictionary[nn.Module, tuple[Signature, torch.export.ExportedProgram | str]]
_ORIGINALS = weakref.WeakKeyDictionary()


def conditions(examined: ExaminedWorkload) -> list[str]:
    """Return the conditions on input sizes of all graphs that were exported from the workload's model so far."""
    return _CONDITIONS[examined.workload.model][1] if _is_known(examined) else []


def original(examined: ExaminedWorkload) -> torch.export.ExportedProgram:
    """Return the original's graph, kept as long as the model lives and not to be changed, or raise TargetError."""
    signature, found = _ORIGINALS.get(examined.workload.model, (None, ""))
    if signature != examined.signature:
        try:
            found = export(FlatModel(examined.workload.model, examined.signature, examined.shared).eval(), examined)
        except TargetError as error:
            found = str(error)
        _ORIGINALS[examined.workload.model] = (examined.signature, found)
    if isinstance(found, str):
        raise TargetError(found)
    return found


def refusal(examined: ExaminedWorkload) -> str:
    """Return why no graph can stand for the workload's model, or "" where one can."""
    try:
        original(examined)
    except TargetError as error:
        return str(error)
    return ""


def has_branches(examined: ExaminedWorkload) -> bool:
    """Return whether the original's graph branches on values (torch.cond, ...); raise TargetError without a graph."""
    graphs = [m.graph for m in original(examined).graph_module.modules() if isinstance(m, torch.fx.GraphModule)]
    called = {getattr(node.target, "_name", "") for graph in graphs for node in graph.nodes if _takes_graphs(node)}
    return not called.isdisjoint(_BRANCHING)


def _takes_graphs(node: torch.fx.Node) -> bool:
    return isinstance(node.target, torch._ops.HigherOrderOperator)


def _is_known(examined: ExaminedWorkload) -> bool:
    found = _CONDITIONS.get(examined.workload.model)
    return found is not None and found[0] == examined.signature


def operators(program: torch.export.ExportedProgram) -> set[Any]:
    """Return what a program calls, including the graphs inside its graph (under autocast, for example)."""
    graphs = [m.graph for m in program.graph_module.modules() if isinstance(m, torch.fx.GraphModule)]
    return {node.target for graph in graphs for node in graph.nodes if node.op == "call_function"}


def _example(examined: ExaminedWorkload) -> tuple[Tensor, ...]:
    """Return inputs to trace with. They avoid free dimensions of size 1, which torch.export takes for fixed ones."""
    shapes = [argument.shape for argument in examined.signature.inputs]

    def too_small(tensors: tuple[Tensor, ...]) -> bool:
        return any(
            free is None and size < 2
            for x, shape in zip(tensors, shapes, strict=True)
            for free, size in zip(shape, x.shape, strict=True)
        )

    batches = [*examined.flat_inputs, *examined.flat_calibration]
    fitting = next((batch for batch in batches if not too_small(batch)), None)
    if fitting is not None:
        return fitting
    return tuple(
        x.repeat([2 if free is None and size == 1 else 1 for free, size in zip(shape, x.shape, strict=True)])
        for x, shape in zip(batches[0], shapes, strict=True)
    )


class ProgramRuntime(Runtime):
    """Run an exported program operator by operator."""

    NAME = "program"

    def __init__(self, program: torch.export.ExportedProgram) -> None:
        self._program = program
        self._module = _flat_module(program)

    @classmethod
    def export(cls, module: nn.Module, examined: ExaminedWorkload) -> Self:
        return cls(export(module, examined))

    def run(self, tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
        with torch.no_grad():
            return self._module(*tensors)  # type: ignore[no-any-return]

    def write(self, directory: Path) -> None:
        path = directory / FILE
        _forget_sources(self._program)
        with warnings.catch_warnings():
            # A weight that is a view of a larger storage is saved as such, and read back right.
            warnings.filterwarnings("ignore", message="No complete tensor found in the group", category=UserWarning)
            try:
                torch.export.save(_without_example(self._program), path)
            except (OSError, MemoryError):
                raise
            except Exception as error:  # torch's writer raises whatever it cannot write, as autocast inside torch.cond
                raise TargetError(f"torch.export cannot save the graph: {reason(error)}") from error
        check_archive(path)

    @property
    def settings(self) -> dict[str, Any]:
        tensors = [*self._program.state_dict.values(), *self._program.constants.values()]
        needs_gpu = any(isinstance(tensor, Tensor) and tensor.device.type == "cuda" for tensor in tensors)
        return {**packed_for(self._program), **({"device": "cuda"} if needs_gpu else {})}

    @property
    def custom_operators(self) -> list[str]:
        return custom_operators(operators(self._program))

    @property
    def ranges_per_call(self) -> bool:
        return finds_ranges(operators(self._program))

    @classmethod
    def read(cls, directory: Path, manifest: Manifest) -> Self:
        """Load the program, or raise ArtefactError where it is damaged or this machine cannot run it."""
        path = directory / FILE
        read_packing(path, manifest)
        if manifest.settings.get("device") == "cuda" and not torch.cuda.is_available():
            raise ArtefactError(f"{path} holds a model for a GPU, and torch finds none here; load it on such a machine")
        check_archive(path)
        with foreign(ArtefactError, f"{path} is damaged, so write it again with `whet apply`"):
            return cls(torch.export.load(path))


def packed_for(program: torch.export.ExportedProgram) -> dict[str, Any]:
    """Return the manifest's entry for 4-bit weights: the kind of chip that torch packed them for; {} without any."""
    is_packed = _PACKED_PRODUCT in operators(program)
    return {_PACKED_FOR: torch.backends.cpu.get_cpu_capability()} if is_packed else {}


def read_packing(path: Path, manifest: Manifest) -> dict[str, Any]:
    """Return what packed_for wrote; raise ArtefactError for another kind of chip's weights, which this one misreads."""
    here = torch.backends.cpu.get_cpu_capability()
    if (there := manifest.settings.get(_PACKED_FOR, here)) != here:
        raise ArtefactError(
            f"{path} holds 4-bit weights packed for {there}, and this machine has {here}; apply the recipe again "
            "with `whet apply` on this machine"
        )
    return {_PACKED_FOR: there} if _PACKED_FOR in manifest.settings else {}


def _flat_module(program: torch.export.ExportedProgram) -> torch.fx.GraphModule:
    """Return the program as plain code from tensors to a tuple of tensors.

    It lacks torch's hooks, which check sizes (Artefact does that) and flatten inputs and outputs (they are flat here).
    For one input and five operators a call takes 90 us with them, 27 us without and 16 us in eager (one Xeon thread).
    """
    module: torch.fx.GraphModule = program.module(check_guards=False)
    module._forward_pre_hooks.clear()
    module._forward_hooks.clear()
    module.graph.set_codegen(torch.fx.graph.CodeGen())
    module.recompile()
    return module


def _without_example(program: torch.export.ExportedProgram) -> torch.export.ExportedProgram:
    """Return the same program without the inputs that it was traced with.

    They are the user's own data, and nothing reads them. torch would write the whole storage of each tensor: all
    samples, where the inputs are a part of a data set.
    """
    bare = copy.copy(program)
    bare.example_inputs = None
    return bare


def _forget_sources(program: torch.export.ExportedProgram) -> None:
    """Drop stack traces and class names from the graph: they give away paths, and take more room than small weights."""
    for module in program.graph_module.modules():
        for node in module.graph.nodes if isinstance(module, torch.fx.GraphModule) else ():
            for key in ("stack_trace", "nn_module_stack", "source_fn_stack", "torch_fn", "from_node"):
                node.meta.pop(key, None)
