"""Compute attention in one fused operator instead of three that write every score to memory.

What            Hugging Face models are told to use their `sdpa` attention. Attention written out by hand (product,
                scale, mask, softmax, product) is found in the exported graph and replaced.
When it helps   Long sequences and many heads: the scores, quadratic in the sequence length, never reach memory.
When it hurts   Sequences of a few dozen tokens, where the plain products are as fast; masks that must be expanded.
Numerics        Exact attention, summed in another order: within 1e-4 relative in float32, checked on a calibration
                batch and on that batch with other masks. A query whose keys are all masked gives what the original
                gave; where that was NaN, zeros.
Composes        Before every precision and backend. Masks, causal ones included, stay as given.
Source          Dao et al., "FlashAttention", 2022 (arXiv:2205.14135); torch.nn.functional.scaled_dot_product_attention.
"""

from typing import Any

from torch import nn

from whet.core.workload import ExaminedWorkload
from whet.errors import TargetError
from whet.measure.machine import Limits, Machine
from whet.profiling.model import Profile
from whet.techniques.rewriting.attention_pattern import count_fused, find_attention, fuse
from whet.techniques.rewriting.graph import Traced, trace, trace_original, verify
from whet.techniques.technique import Applicability, Applies, Candidate, NoOptions, NotApplicable, Stage, Technique

_TOLERANCE = 1e-4


def check(examined: ExaminedWorkload, machine: Machine, options: NoOptions) -> Applicability:
    """Check that a Hugging Face model is set to eager attention, or that the graph computes attention by hand."""
    eager = _eager_models(examined.workload.model)
    if eager:
        return Applies(f"{', '.join(type(m).__name__ for m in eager)} computes eager attention")
    try:
        traced = trace_original(examined)
    except TargetError as error:
        return NotApplicable(str(error))
    if found := find_attention(traced):
        return Applies(f"attention written out by hand in {len(found)} places")
    if count_fused(traced):
        return NotApplicable("the model already uses scaled_dot_product_attention")
    return NotApplicable("no softmax attention found")


def predict(profile: Profile, limits: Limits, options: NoOptions) -> float:
    """Return the highest possible speedup: attention between its projections costs nothing.

    Attention is what runs in the layers that compute a softmax, and in the parents of softmax modules.
    """
    found = {cost.name for cost in profile.layers if "_softmax" in cost.operators}
    found |= {cost.name.rpartition(".")[0] for cost in profile.layers if cost.name in found and cost.kind == "Softmax"}
    gone_s = sum(cost.time_s for cost in profile.layers if cost.name in found)
    return profile.total_s / max(profile.total_s - gone_s, profile.total_s * 0.01)


def apply(candidate: Candidate, options: NoOptions) -> Candidate:
    """Return the candidate with fused attention.

    Raises:
        TargetError: There is no attention to fuse, or the outputs would change.
    """
    switched, notes = _switched(candidate)
    why = "sdpa_attention finds no attention to fuse; leave it out of the recipe"
    if switched is not None:
        try:
            verify("sdpa_attention", switched, candidate.module, candidate.examined, _TOLERANCE)
            return candidate.with_module(switched, *notes)
        except TargetError as error:  # such as another answer where all keys are masked; a fused graph may keep it
            notes, why = [], str(error)
    traced = trace(candidate.module, candidate.examined)
    found = find_attention(traced)
    if not found:
        raise TargetError(why)
    module = Traced(fuse(traced, found))
    verify("sdpa_attention", module, candidate.module, candidate.examined, _TOLERANCE)
    return candidate.with_module(module, *notes)


def _switched(candidate: Candidate) -> tuple[nn.Module | None, list[str]]:
    """Return a copy of the candidate's module whose Hugging Face models use sdpa, or None; and notes on those left."""
    module = candidate.copy_module()
    notes = []
    switched = False
    for model in _eager_models(module):
        try:
            model.set_attn_implementation("sdpa")
            switched = True
        except (ValueError, ImportError) as error:  # the architecture's code does not support sdpa
            notes.append(
                f"sdpa_attention: {type(model).__name__} stays on eager attention: {str(error).splitlines()[0]}"
            )
    return module if switched else None, notes


def _eager_models(module: nn.Module) -> list[Any]:
    """Return the outermost Hugging Face models in a module that compute attention operator by operator."""
    found: list[Any] = []
    for child in module.modules():
        config = getattr(child, "config", None)
        if getattr(config, "_attn_implementation", None) != "eager" or not hasattr(child, "set_attn_implementation"):
            continue
        if getattr(child, "_supports_sdpa", True) and not any(child in set(m.modules()) for m in found):
            found.append(child)
    return found


TECHNIQUE = Technique(
    name="sdpa_attention",
    stage=Stage.STRUCTURE,
    order=20,
    card=__doc__,
    check=check,
    predict=predict,
    apply=apply,
)
