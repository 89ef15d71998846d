"""The kernels in Triton without a GPU: Triton's interpreter computes them, and its compiler translates them for GPUs.

The interpreter is chosen before triton is imported, so that a process of its own is needed. It runs those tests of
tests/gpu that need no more.
"""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from whet.kernels import dispatch
from whet.kernels.causal_conv import causal_conv
from whet.kernels.selective_scan import selective_scan, ssd

pytestmark = pytest.mark.thorough

ROOT = Path(__file__).parents[2]
FILES = ("test_cross_entropy.py", "test_selective_scan.py", "test_causal_conv.py")


def test_kernels_in_triton_compute_what_they_should() -> None:
    pytest.importorskip("triton", reason="Triton is not installed: it has no package for this machine")
    files = [f"tests/gpu/{name}" for name in FILES]
    command = [sys.executable, "-m", "pytest", "-q", "-m", "gpu", "-p", "no:cacheprovider", "-p", "no:xdist", *files]
    environment = {**os.environ, "TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""}
    ended = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=200)
    assert ended.returncode == 0, ended.stdout[-6000:] + ended.stderr[-2000:]
    assert " passed" in ended.stdout


def translate(fn: Any, arguments: tuple[Any, ...], options: dict[str, Any], capability: int) -> Any:
    """Compile a kernel as Triton would for these arguments on a GPU of this capability."""
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource, compile

    names = {torch.float32: "*fp32", torch.bfloat16: "*bf16"}
    values = dict(zip(fn.arg_names, arguments)) | options  # noqa: B905 - the rest are options
    signature, constants = {}, {}
    for i, parameter in enumerate(fn.params):
        value = values[parameter.name]
        if isinstance(value, torch.Tensor):
            signature[parameter.name] = names[value.dtype]
        elif parameter.is_constexpr or value == 1:
            signature[parameter.name], constants[(i,)] = "constexpr", value
        else:
            signature[parameter.name] = "fp32" if isinstance(value, float) else "i32"
    chosen = {name: options[name] for name in ("num_warps", "num_stages") if name in options}
    source = ASTSource(fn, signature, constexprs=constants)
    return compile(source, target=GPUTarget("cuda", capability, 32), options=chosen)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("capability", [80, 90])
def test_kernels_in_triton_compile_for_gpus(
    dtype: torch.dtype, capability: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """For layers of Mamba 130m and Mamba-2 130m. What the interpreter takes, the compiler may refuse."""
    pytest.importorskip("triton", reason="Triton is not installed: it has no package for this machine")
    from triton.runtime.jit import JITFunction

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(dispatch, "triton_devices", lambda: frozenset({"cpu"}))
    shared: dict[str, int] = {}

    def run(self: Any, *arguments: Any, grid: Any, warmup: bool, **options: Any) -> None:
        shared[self.__name__] = translate(self, arguments, options, capability).metadata.shared

    monkeypatch.setattr(JITFunction, "run", run)
    narrow = lambda *shape: torch.zeros(shape, dtype=dtype, requires_grad=True)  # noqa: E731
    wide = torch.zeros
    for length in (100, 1):
        D, H = 1536, 24
        one, two = narrow(1, length, D), narrow(1, length, H, 64)
        few, many = narrow(1, length, 16), narrow(1, length, 1, 128)
        diagonal = (one, one, wide(D, 16), few, few, wide(D), one, wide(D), wide(1, D, 16))
        by_heads = (two, narrow(1, length, H), wide(H), many, many, wide(H), two, wide(H), wide(1, H, 64, 128))
        if length > 1:
            selective_scan(*diagonal)[0].sum().backward()
            ssd(*by_heads)[0].sum().backward()
            causal_conv(one, wide(D, 4), wide(D))[0].sum().backward()
        else:
            with torch.no_grad():
                selective_scan(*diagonal), ssd(*by_heads)
    assert {"diagonal_gradients", "head_gradients", "hand_on", "step", "_gradients_of_inputs"} <= shared.keys()
    assert max(shared.values()) <= 99 * 1024  # what a block of every GPU since 2020 has
