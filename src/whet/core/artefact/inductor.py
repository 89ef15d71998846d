"""Run models that torch's inductor compiles: as native code in a package, or as a program compiled after loading.

InductorRuntime   AOTInductor: compiled once, here; loading takes milliseconds and needs no compiler.
CompileRuntime    torch.compile, as most people call it: compiled again in every process that loads the artefact.

A package holds a shared library with native code: load one only from a source whose programs you would install.
"""

import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import warnings
import weakref
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor, nn

from whet.core.artefact import int8_fusion
from whet.core.artefact.operators import custom_operators
from whet.core.artefact.program import ProgramRuntime, export, operators, packed_for, read_packing
from whet.core.artefact.ranges import finds_ranges
from whet.core.artefact.runtime import Manifest, Runtime
from whet.core.workload import ExaminedWorkload, is_near
from whet.errors import ArtefactError, InputsError, TargetError, foreign, reason
from whet.measure.machine.cpuinfo import instruction_sets, read_cpuinfo

FILE = "model.pt2"

_RANGES = "ranges_per_call"  # the setting that says it, as the files no longer hold the graph
_TRIAL_LIMIT_S = 30.0

# Unpacks of 4-bit weights: folded at compile time they would be stored at four times the size.
_KEEP_PACKED = (torch.ops.aten.bitwise_and.Scalar, torch.ops.aten.__rshift__.Scalar)


class InductorRuntime(Runtime):
    """Run an AOTInductor package.

    Args:
        isa: The instruction sets of the machine it was compiled on, as in Machine.isa. The code may use all of them.
        packing: What the manifest says about packed weights and ranges; see packed_for and _RANGES.
        gpu: The architecture of the GPU that its kernels were compiled for, as "sm_90"; "" for a package for the CPU.
        custom: The qualified names of the custom operators that it calls.
    """

    NAME = "inductor"

    def __init__(
        self,
        package: Path,
        isa: Sequence[str],
        packing: Mapping[str, Any],
        gpu: str = "",
        custom: Sequence[str] = (),
    ) -> None:
        self._package = package
        self._isa = list(isa)
        self._gpu = gpu
        self._device = "cuda" if gpu else "cpu"
        self._custom = list(custom)
        self._packing = dict(packing)
        # What torch._inductor.aoti_load_package wraps: that one imports the compiler (seconds) to load, and parses the
        # structure of inputs and outputs again at every call.
        self._loader = torch._C._aoti.AOTIModelPackageLoader(str(package), "model", False, 1, -1)

    @classmethod
    def compile(cls, module: nn.Module, examined: ExaminedWorkload, *, freezing: bool, max_autotune: bool) -> Self:
        """Compile a module ahead of time, for a workload's inputs.

        Args:
            freezing: Whether weights become constants of the code.
            max_autotune: Whether several kernels are tried for each operator.

        Raises:
            TargetError: The compiler fails, or makes a model whose outputs are wrong.
        """
        program = export(module, examined, contiguous=True)
        called = operators(program)
        packing, custom = {**packed_for(program), _RANGES: finds_ranges(called)}, custom_operators(called)
        _forget_dtypes(program)
        if int8_fusion.is_quantised(program):
            int8_fusion.register()
        folder = Path(tempfile.mkdtemp(prefix="whet-inductor-"))
        with ExitStack() as undo, foreign(TargetError, "torch's inductor cannot compile the model"):
            undo.callback(shutil.rmtree, folder, ignore_errors=True)
            with tempfile.TemporaryDirectory(dir=folder) as work:
                # freezing does nothing while gradients are on
                with torch.no_grad(), quiet(), _settings(Path(work), freezing=freezing, max_autotune=max_autotune):
                    torch._inductor.aoti_compile_and_package(program, package_path=str(Path(work) / FILE))
                _copy_without_sources(Path(work) / FILE, folder / FILE)
            runtime = cls(folder / FILE, _isa(), packing, _gpu_of(examined), custom)
            check_is_pure(runtime, examined)
            undo.pop_all()
        weakref.finalize(runtime, shutil.rmtree, folder, ignore_errors=True)
        return runtime

    def run(self, tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Return the outputs for flat inputs, or raise InputsError where one lies on another device than the model."""
        for tensor in tensors:
            if tensor.device.type != self._device:  # the compiled code reads addresses, wherever they lie
                raise InputsError(f"this model runs on {self._device}, and an input lies on {tensor.device}; move it")
        with torch.no_grad():
            # The package was compiled for tensors in one piece, and reads others as if they were.
            return tuple(self._loader.run([tensor.contiguous() for tensor in tensors]))

    def write(self, directory: Path) -> None:
        shutil.copyfile(self._package, directory / FILE)

    @property
    def settings(self) -> dict[str, Any]:
        gpu = {"gpu": self._gpu} if self._gpu else {}
        return {"isa": self._isa, "torch": torch.__version__, **gpu, **self._packing}

    @property
    def custom_operators(self) -> list[str]:
        return self._custom

    @property
    def ranges_per_call(self) -> bool | None:
        found: bool | None = self._packing.get(_RANGES)  # packages of older versions do not say it
        return found

    @classmethod
    def read(cls, directory: Path, manifest: Manifest) -> Self:
        """Load the package, or raise ArtefactError where it is damaged or this machine cannot run it."""
        path = directory / FILE
        isa, gpu = _compiled_for(path, manifest), _gpu_compiled_for(path, manifest)
        packing: dict[str, Any] = {**read_packing(path, manifest)}
        if _RANGES in manifest.settings:
            packing[_RANGES] = bool(manifest.settings[_RANGES])
        try:
            with zipfile.ZipFile(path) as archive:
                broken = archive.testzip()  # a library that is cut short would end the process when it is mapped
        except (OSError, zipfile.BadZipFile) as error:
            raise ArtefactError(f"{path} is damaged: {reason(error)}; write it again with `whet apply`") from error
        if broken is not None:
            raise ArtefactError(
                f"{path} is damaged: {broken} is not what was written; write it again with `whet apply`"
            )
        custom = [name for source in manifest.operators for name in source.operators]

        def remedy(error: Exception) -> str:
            return (
                f"{reason(error)}. It was compiled by torch {manifest.settings.get('torch')}, this is "
                f"{torch.__version__}; apply the recipe again with `whet apply` on this machine"
            )

        with foreign(ArtefactError, f"{path} does not load here", words=remedy):
            return cls(path, isa, packing, gpu, custom)


class CompileRuntime(ProgramRuntime):
    """Run a program that torch.compile compiles at its first call in each process.

    A CUDA graph (`reduce_overhead`) writes into the same outputs at every call, so copies of them are returned.
    """

    NAME = "compile"

    def __init__(
        self,
        program: torch.export.ExportedProgram,
        *,
        freezing: bool = False,
        max_autotune: bool = False,
        reduce_overhead: bool = False,
        is_dynamic: bool = False,
    ) -> None:
        _forget_dtypes(program)
        super().__init__(program)
        self._options = {"freezing": freezing, "max_autotune": max_autotune, "reduce_overhead": reduce_overhead}
        if int8_fusion.is_quantised(program):
            int8_fusion.register()
        options: dict[str, Any] = {
            "freezing": freezing,
            "max_autotune": max_autotune,
            "triton.cudagraphs": reduce_overhead,
        }
        # None compiles once more when another shape comes; where shapes are known to vary, once is enough
        self._compiled = torch.compile(self._module, dynamic=True if is_dynamic else None, options=options)
        self._is_compiled = False

    def run(self, tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
        with torch.no_grad():
            if self._is_compiled:
                return self._handed_out(self._compiled(*tensors))
            with quiet():
                outputs = self._handed_out(self._compiled(*tensors))
        self._is_compiled = True
        return outputs

    def _handed_out(self, outputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        return tuple(y.clone() for y in outputs) if self._options["reduce_overhead"] else tuple(outputs)

    def run_uncompiled(self, tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Run the program itself, operator by operator: torch.compile makes code of its own for each size of 1."""
        return super().run(tensors)

    @property
    def settings(self) -> dict[str, Any]:
        return {**super().settings, **self._options}

    @classmethod
    def read(cls, directory: Path, manifest: Manifest) -> Self:
        plain = ProgramRuntime.read(directory, manifest)
        options = {name: bool(manifest.settings.get(name)) for name in ("freezing", "max_autotune", "reduce_overhead")}
        return cls(plain._program, is_dynamic=manifest.read_signature().is_dynamic, **options)


def missing_tools(*, at_load: bool, device: str = "cpu") -> str:
    """Say what has to be installed before inductor can compile for a device; "" where all is there."""
    if device == "cuda" and find_spec("triton") is None:
        return "torch's inductor writes GPU kernels in Triton, which is not installed: pip install triton"
    if device == "cuda" and not at_load and torch.version.hip is None and not _has_cuda_headers():
        return (
            "a package for a GPU is compiled against CUDA's headers (cuda.h), which are not here: install the CUDA "
            "toolkit, or set CUDA_HOME to where it lies"
        )
    compiler = compiler_name()
    if shutil.which(compiler) is None:
        return f"torch compiles with {compiler}, which is not installed: install it (Debian: apt install g++)"
    headers = Path(sysconfig.get_path("include")) / "Python.h"
    if at_load and not headers.is_file():
        return f"torch.compile needs {headers}: install Python's headers (Debian: apt install python3-dev)"
    return ""


def compiler_name() -> str:
    """Return the C++ compiler that torch's inductor calls. Its own configuration takes seconds to import."""
    return os.environ.get("CXX", "clang++" if sys.platform == "darwin" else "g++")


def try_compiler() -> tuple[str, str]:
    """Compile a line of C++ with OpenMP and with Python's headers, as torch.compile does, and keep nothing of it.

    Returns:
        The compiler's path, and why it fails or what is missing; "" where it works.
    """
    if missing := missing_tools(at_load=True):
        return shutil.which(compiler_name()) or compiler_name(), missing
    compiler = shutil.which(compiler_name()) or compiler_name()
    with tempfile.TemporaryDirectory(prefix="whet-inductor-") as scratch:
        source, target = Path(scratch) / "trial.cpp", Path(scratch) / "trial.so"
        source.write_text("#include <Python.h>\n#include <omp.h>\nint threads() { return omp_get_max_threads(); }\n")
        flags = ["-shared", "-fPIC", "-fopenmp", f"-I{sysconfig.get_path('include')}"]
        try:
            done = subprocess.run(
                [compiler, *flags, str(source), "-o", str(target)],
                capture_output=True, text=True, errors="replace", timeout=_TRIAL_LIMIT_S, check=False,
            )  # fmt: skip
        except (OSError, subprocess.TimeoutExpired) as error:
            return compiler, f"{compiler} fails: {reason(error)}; name another compiler in CXX"
    if not done.returncode:
        return compiler, ""
    lines = [line for line in done.stderr.splitlines() if "error" in line] or done.stderr.splitlines() or ["?"]
    return compiler, f"{compiler} fails: {lines[0]}; install OpenMP for it, or name another compiler in CXX"


def _has_cuda_headers() -> bool:
    """Return whether the CUDA toolkit is where torch.utils.cpp_extension, which is slow to import, looks for it."""
    home = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH")
    if not home:
        nvcc = shutil.which("nvcc")
        home = str(Path(nvcc).parents[1]) if nvcc else "/usr/local/cuda"
    places = [Path(home) / "include", Path(os.environ.get("CUDA_INC_PATH") or home)]
    return any((place / "cuda.h").is_file() for place in places)


@contextmanager
def _settings(work: Path, *, freezing: bool, max_autotune: bool) -> Iterator[None]:
    """Set the compiler's options for a package. Its temporary files go to `work`."""
    import torch._inductor.constant_folding as folding  # the compiler: seconds to import, not needed to load a package

    settings = {
        "freezing": freezing,
        "max_autotune": max_autotune,
        "aot_inductor.output_path": str(work),  # else copies of the weights stay in the compiler's cache for good
        "cpp.dynamic_threads": True,  # else the number of threads in force now would be compiled in
    }
    # Nobody debugs the generated code here: without line tables g++ needs a fifth less time. torch 2.11 writes none.
    if "aot_inductor.enable_line_tables" in torch._inductor.config.get_config_copy():
        settings["aot_inductor.enable_line_tables"] = False
    kept = [operator for operator in _KEEP_PACKED if operator not in folding._dont_constant_fold]
    folding._dont_constant_fold.extend(kept)
    try:
        with torch._inductor.config.patch(settings):
            yield
    finally:
        for operator in kept:
            folding._dont_constant_fold.remove(operator)


@contextmanager
def quiet() -> Iterator[None]:
    """Keep the compiler's warnings about its own insides from the user."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module=r"torch\b.*")
        warnings.filterwarnings("ignore", message=".*isinstance\\(treespec, LeafSpec\\).*", category=FutureWarning)
        yield


def _forget_dtypes(program: torch.export.ExportedProgram) -> None:
    """Drop a graph's checks of its own dtypes: fused int8 kernels give float32 where autocast gave bfloat16."""
    for graph_module in program.graph_module.modules():
        if isinstance(graph_module, torch.fx.GraphModule):
            for node in list(graph_module.graph.nodes):
                if node.target is torch.ops.aten._assert_tensor_metadata.default:
                    graph_module.graph.erase_node(node)
            graph_module.recompile()


def _copy_without_sources(package: Path, destination: Path) -> None:
    """Copy a package without the C++ it was compiled from, which names paths of this machine."""
    with zipfile.ZipFile(package) as old, zipfile.ZipFile(destination, "w", zipfile.ZIP_STORED) as new:
        for entry in old.infolist():
            if not entry.filename.endswith(".cpp"):
                with old.open(entry) as source, new.open(entry, "w", force_zip64=True) as target:
                    shutil.copyfileobj(source, target, 1 << 20)


def check_is_pure(runtime: Runtime, examined: ExaminedWorkload) -> None:
    """Raise TargetError where a compiled model writes into its inputs, or answers differently the second time.

    Fusing an addition into a product may turn into adding in place, to a tensor that is still needed.
    """
    given = examined.flat_inputs[0]
    inputs = tuple(x.clone() for x in given)
    first = tuple(y.clone() for y in runtime.run(inputs))
    changed = [i for i, (x, before) in enumerate(zip(inputs, given, strict=True)) if not torch.equal(x, before)]
    if changed:
        raise TargetError(
            f"torch's inductor made a model that overwrites its input {changed[0]}; leave it out of the recipe"
        )
    for a, b in zip(first, runtime.run(tuple(x.clone() for x in given)), strict=True):
        if not is_near(a, b, tolerance=1e-2):
            raise TargetError(
                "torch's inductor made a model that answers differently each time; leave it out of the recipe"
            )


def _isa() -> tuple[str, ...]:
    """Return the CPU's instruction sets without describe(), which queries the GPU: that would forbid later forks."""
    return instruction_sets(read_cpuinfo())


def _gpu_of(examined: ExaminedWorkload) -> str:
    """Return the architecture of the GPU that holds a workload's inputs, as "sm_90"; "" if they are on the CPU."""
    if examined.device_type != "cuda":
        return ""
    major, minor = torch.cuda.get_device_capability()
    return f"sm_{major}{minor}"


def _gpu_compiled_for(path: Path, manifest: Manifest) -> str:
    """Return the GPU architecture that a package was compiled for ("" for none); ArtefactError without such a GPU."""
    gpu = str(manifest.settings.get("gpu", ""))
    if not gpu:
        return ""
    again = "apply the recipe again with `whet apply` on this machine"
    if not torch.cuda.is_available():
        raise ArtefactError(f"{path} was compiled for a GPU ({gpu}), and torch finds none here; {again}")
    major, minor = torch.cuda.get_device_capability()
    if gpu != f"sm_{major}{minor}":
        raise ArtefactError(f"{path} was compiled for {gpu}, and this GPU is sm_{major}{minor}; {again}")
    return gpu


def _compiled_for(path: Path, manifest: Manifest) -> list[str]:
    """The instruction sets a package was compiled for; all of them must be here, else its code ends the process."""
    isa = manifest.settings.get("isa")
    if not isinstance(isa, list) or not all(isinstance(name, str) for name in isa):
        raise ArtefactError(f"{path.parent} does not say what it was compiled for; write it again with `whet apply`")
    here = _isa()
    missing = [name for name in isa if name not in here]
    if missing:
        raise ArtefactError(
            f"{path} was compiled for a machine with {', '.join(missing)}, which this one has not; apply the recipe "
            "again with `whet apply` on this machine"
        )
    return isa
