"""Register a user's own operator with PyTorch, and check it against its reference first: whet.register_kernel."""

import inspect
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from whet.errors import OperatorError, OptionError, reason
from whet.kernels.check_operator import Tolerance, check_operator

Implementation = Callable[..., Any] | str | os.PathLike[str]
"""A function of the operator's arguments, or the path of a shared library that registers one with PyTorch."""

_NAME = re.compile(r"[^\W\d]\w*::[^\W\d]\w*")

OWN = "whet"
"""The namespace of whet's own operators."""

BUILT_IN = frozenset(
    "_c10d_functional _c10d_functional_autograd _dtensor _native _quantized _test aten c10d debug_mode_ops debugprims "
    "export higher_order inductor inductor_prims mkl mkldnn mkldnn_prepacked onednn prim prims profiler quantization "
    "quantized quantized_decomposed rngprims sparse static_runtime symm_mem".split()
)
"""The namespaces of operators that every process has which imports torch."""

_FILE = re.compile(r".+\.(so(\.\d+)*|dylib|dll|pyd|py)")


@dataclass(frozen=True)
class _Registered:
    """Record a registered operator.

    Attributes:
        library: The registration. The operator exists as long as this object lives.
        libraries: The shared libraries that a process has to load for it.
    """

    library: torch.library.Library
    module: str
    libraries: tuple[str, ...]


_REGISTERED: dict[str, _Registered] = {}


def origin(name: str) -> tuple[str, tuple[str, ...]] | None:
    """Return the module that called `register_kernel` for "namespace::operator", and its libraries; None for others."""
    found = _REGISTERED.get(name)
    return None if found is None else (found.module, found.libraries)


def register_kernel(
    name: str,
    reference: Callable[..., Any],
    implementations: Mapping[str, Implementation],
    *,
    samples: Sequence[tuple[Any, ...]],
    fake: Callable[..., Any] | None = None,
    backward: Callable[..., Any] | None = None,
    setup_context: Callable[..., None] | None = None,
    libraries: Sequence[str | os.PathLike[str]] = (),
    rtol: float | None = None,
    atol: float | None = None,
) -> torch._ops.OpOverload:
    """Register an operator of one's own, and check its implementations against a reference.

    Args:
        name: "namespace::operator", in a namespace of one's own.
        reference: What the operator computes, as a function in PyTorch with annotated arguments: they are the
            operator's schema. It serves devices without an implementation. The operator changes none of its arguments
            and returns new tensors.
        implementations: For each device type ("cpu", "cuda", ...) a function, or the path of a shared library that
            registers an implementation for it (TORCH_LIBRARY_IMPL).
        samples: Arguments on which everything is checked, once as they are and once with tensors that do not lie in
            one piece.
        fake: Gives the outputs' shapes and types for tensors without values; the reference where it is None.
        backward: Gradients of the arguments from ctx and those of the outputs, as torch.library.register_autograd
            takes it. Without it, an input that requires gradients is an error in the backward pass.
        setup_context: Keeps what backward needs in ctx; where it is None, ctx.saved_tensors are the tensors among the
            arguments.
        libraries: What another process loads for the operator: import names of modules, and paths of Python files and
            of shared libraries. Where none are named, it is the module that calls this function.
        rtol: How far an implementation may be off, relative to the reference; by dtype where it is None, as in
            torch.testing.assert_close.
        atol: The same as a number; given with rtol or not at all.

    Returns:
        The operator, as torch.ops has it too.

    Raises:
        OptionError: An argument is not what is described here.
        OperatorError: An implementation, the fake or the backward does not do what the reference does. Nothing is
            registered then.
    """
    named = _check_arguments(name, implementations, samples, libraries, (rtol, atol))
    frame = inspect.currentframe()
    assert frame is not None and frame.f_back is not None
    module = str(frame.f_back.f_globals.get("__name__", "__main__"))
    library = _define(name, reference)
    try:
        _implement(library, name, implementations)
        torch.library.register_fake(name, fake or reference, lib=library)
        keep, gradient = setup_context or _keep_tensors, backward or _without_backward(name)
        torch.library.register_autograd(name, gradient, setup_context=keep, lib=library)
        operator, formula = _operator(name), None if backward is None else (backward, keep)
        check_operator(operator, reference, samples, {"cpu", *implementations}, formula, Tolerance(rtol, atol))
    except BaseException:
        library._destroy()
        raise
    _REGISTERED[name] = _Registered(library, module, named)
    return operator


def _check_arguments(
    name: str,
    implementations: Mapping[str, Implementation],
    samples: Sequence[tuple[Any, ...]],
    libraries: Sequence[str | os.PathLike[str]],
    tolerances: tuple[float | None, float | None],
) -> tuple[str, ...]:
    """Raise OptionError for an argument that cannot be used, and return the libraries as absolute paths."""
    if not _NAME.fullmatch(name) or name.partition("::")[0] in {OWN, *BUILT_IN}:
        raise OptionError(f"an operator's name is namespace::operator, in a namespace of your own, not {name!r}")
    namespace, _, short = name.partition("::")
    if hasattr(getattr(torch.ops, namespace), short):
        raise OptionError(f"the operator {name} is registered already; choose another name")
    if not implementations:
        raise OptionError(
            f"{name} has no implementation; give one for a device, as implementations={{'cpu': function}}"
        )
    for device in implementations:
        try:
            kind = torch.device(device).type
        except RuntimeError as error:
            raise OptionError(
                f"{name}: {device!r} is no device type: {reason(error)}; give one such as 'cpu' or 'cuda'"
            ) from error
        if kind == "meta":
            raise OptionError(f"{name}: what tells shapes without computing is given as fake=, not for a device")
    if not samples or not all(isinstance(sample, tuple) for sample in samples):
        raise OptionError(f"{name} needs samples to be checked on: a list of tuples of arguments")
    if (tolerances[0] is None) != (tolerances[1] is None):
        raise OptionError(f"{name}: give rtol and atol, or none of them")
    if isinstance(libraries, str | bytes | os.PathLike):
        raise OptionError(f"libraries must be a list, as libraries=[{libraries!r}]")
    return tuple(_library(os.fspath(entry)) for entry in libraries)


def _library(entry: str) -> str:
    path = Path(entry).expanduser()
    if _FILE.fullmatch(path.name):
        if not path.is_file():
            raise OptionError(f"libraries: there is no file {path}; give the path of a .py or .so file")
        return str(path.resolve())
    if not all(part.isidentifier() for part in entry.split(".")):
        raise OptionError(f"libraries: {entry!r} is neither a file (.py, .so) nor the import name of a module")
    return entry


def _define(name: str, reference: Callable[..., Any]) -> torch.library.Library:
    """Define an operator whose reference serves every device.

    Raises:
        OptionError: No schema can be derived from the reference.
    """
    namespace, _, short = name.partition("::")
    try:
        schema = torch.library.infer_schema(reference, mutates_args=())
    except ValueError as error:
        raise OptionError(
            f"{name}: the reference's annotations are no schema: {reason(error)}; annotate each argument and what is "
            "returned, as in x: torch.Tensor"
        ) from error
    library = torch.library.Library(namespace, "FRAGMENT")
    library.define(short + schema, tags=(torch.Tag.pt2_compliant_tag,))
    library.impl(short, reference, "CompositeExplicitAutograd")
    return library


def _implement(library: torch.library.Library, name: str, implementations: Mapping[str, Implementation]) -> None:
    for device, implementation in implementations.items():
        try:
            key: str = torch._C._dispatch_key_for_device(torch.device(device).type)
            if callable(implementation):
                library.impl(name.partition("::")[2], implementation, key)
                continue
        except RuntimeError as error:
            raise OptionError(f"{name}: nothing can be registered for {device!r}: {reason(error)}") from error
        try:
            torch.ops.load_library(os.fspath(implementation))
        except (OSError, TypeError) as error:
            raise OptionError(
                f"{name}: {implementation!r} cannot be loaded: {reason(error)}; compile it again for this torch"
            ) from error
        if not torch._C._dispatch_has_kernel_for_dispatch_key(name, key):
            namespace, _, short = name.partition("::")
            raise OperatorError(
                f"{implementation} has no implementation of {name} for {device}; it needs "
                f'TORCH_LIBRARY_IMPL({namespace}, {key}, m) with m.impl("{short}", ...)'
            )


def _keep_tensors(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    ctx.save_for_backward(*(value for value in inputs if isinstance(value, torch.Tensor)))


def _without_backward(name: str) -> Callable[..., Any]:
    def backward(ctx: Any, *gradients: Any) -> Any:
        raise OperatorError(f"{name} has no backward; give register_kernel one, or call it under torch.no_grad()")

    return backward


def _operator(name: str) -> torch._ops.OpOverload:
    namespace, _, short = name.partition("::")
    found: torch._ops.OpOverload = getattr(getattr(torch.ops, namespace), short).default
    return found
