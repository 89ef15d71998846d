"""Run a selective scan and its gradients by the compiled kernels."""

import ctypes

import torch
from torch import Tensor

from whet.kernels.build import Library
from whet.kernels.dispatch import as_floats, pointer
from whet.kernels.selective_scan.reference import ScanInputs
from whet.kernels.selective_scan.structs import Gradients, Problem, Results, rows, view

CHUNK = 32  # tokens between two saved states; the same number as in selective_scan/problem.h
LANES = 16


def is_per_head(x: ScanInputs) -> bool:
    """Return whether a head has one step size and one rate, as in Mamba-2."""
    return x.A_HqM.shape[1:] == (1, 1) and x.delta_BLHq.shape[3] == 1


def saved_shape(x: ScanInputs) -> tuple[int, ...]:
    """Return the shape of the states that forward saves for the backward pass."""
    B, L, H, P = x.u_BLHP.shape
    return (B, -(-L // CHUNK), H * -(-P // LANES), x.B_BLGN.shape[-1], LANES)


def _fill(x: ScanInputs) -> tuple[Problem, tuple[Tensor | None, ...]]:
    """Return the structure for the kernels, and the tensors that it points to."""
    u, delta, b, c = (rows(part) for part in (x.u_BLHP, x.delta_BLHq, x.B_BLGN, x.C_BLGN))
    z = None if x.z_BLHP is None else rows(x.z_BLHP)
    floats = [None if part is None else as_floats(part) for part in (x.A_HqM, x.D_Hq, x.bias_Hq, x.initial_BHPN)]
    B, L, H, P = u.shape
    numbers = (B, L, H, P, b.shape[2], b.shape[3], is_per_head(x), x.softplus, x.delta_min, x.delta_max)
    struct = Problem(*numbers, *(view(part) for part in (u, delta, b, c, z)), *(pointer(part) for part in floats))
    return struct, (u, delta, b, c, z, *floats)


def scan_native(library: Library, x: ScanInputs, save: bool) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return out, the last states, and if they are to be saved out before the gate and the states before each chunk."""
    problem, _kept = _fill(x)
    B, _, H, P = x.u_BLHP.shape
    out_dtype = torch.bfloat16 if x.u_BLHP.dtype is torch.bfloat16 else torch.float32
    out = torch.empty(x.u_BLHP.shape, dtype=out_dtype)
    last = torch.empty(B, H, P, x.B_BLGN.shape[-1])
    y = torch.empty(x.u_BLHP.shape if save and x.z_BLHP is not None else (0,))
    starts = torch.empty(saved_shape(x) if save else (0,))
    given_y, given_starts = (pointer(part if part.numel() else None) for part in (y, starts))
    results = Results(pointer(out), out_dtype is torch.bfloat16, pointer(last), given_y, given_starts)
    library.functions.whet_selective_scan(ctypes.byref(problem), ctypes.byref(results))
    return out.to(x.u_BLHP.dtype), last, y, starts


def gradients_native(
    library: Library, x: ScanInputs, gout_BLHP: Tensor, glast_BHPN: Tensor | None, y: Tensor, starts: Tensor
) -> dict[str, Tensor]:
    """Return the gradients in float32, by the names of whet.kernels.selective_scan.reference.scan_gradients."""
    problem, _kept = _fill(x)
    B, L, H, P = x.u_BLHP.shape
    G, N = x.B_BLGN.shape[2:]
    bundles = library.functions.whet_selective_scan_bundles(ctypes.byref(problem))
    gout = rows(gout_BLHP)
    glast = None if glast_BHPN is None else as_floats(glast_BHPN)
    found = {name: torch.empty(x.u_BLHP.shape) for name in ("u", *(("z",) if x.z_BLHP is not None else ()))}
    found |= {"delta": torch.empty(x.delta_BLHq.shape), "initial": torch.empty(B, H, P, N)}
    a = torch.empty((B, H, P, 1) if is_per_head(x) else (B, H, P, N))
    d = None if x.D_Hq is None else torch.empty(B, H, P)
    b, c = torch.empty(2, B, G, bundles, L, N)
    written = {"u": found["u"], "delta": found["delta"], "z": found.get("z"), "initial": found["initial"]}
    written |= {"a": a, "d": d, "b": b, "c": c}
    struct = Gradients(view(gout), pointer(glast), pointer(y), pointer(starts))
    for name, tensor in written.items():
        setattr(struct, name, pointer(tensor))
    library.functions.whet_selective_scan_backward(ctypes.byref(problem), ctypes.byref(struct))
    found["A"] = a.sum(0).sum_to_size(x.A_HqM.shape)
    found["B"], found["C"] = (part.sum(2).transpose(1, 2) for part in (b, c))
    if d is not None and x.D_Hq is not None:
        found["D"] = d.sum(0).sum_to_size(x.D_Hq.shape)
    if x.bias_Hq is not None:
        found["bias"] = found["delta"].sum((0, 1))
    return found
