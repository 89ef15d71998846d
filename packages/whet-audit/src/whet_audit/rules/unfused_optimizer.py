"""CMP106 unfused-optimizer: an optimiser whose update runs as many kernels, where one would do.

Finds       torch.optim.Adam, AdamW, SGD and Adagrad without `fused`, `foreach`, `capturable` or `differentiable`, where
            the module trains or names a GPU.
Why slow    On a GPU the default (foreach) runs a dozen kernels over all parameters; on a CPU, a loop over parameters.
Example     optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
Instead     optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
Gain        a third to two thirds of the optimiser's share of the step, which is small for large batches.
Fix         unsafe: rounding differs. None where the project supports a torch before 2.4, which has no fused form for
            the CPU; of Adagrad, which has none for CUDA; and beside sparse or complex parameters.
Source      torch.optim documentation, "fused implementation"; release notes of PyTorch 2.4 (fused SGD, Adagrad on CPU).
"""

import ast
from collections.abc import Iterator

from whet_audit.abstract_types import Kind
from whet_audit.finding import Confidence, Fix, Gain, Hit, Priority
from whet_audit.hot_paths import TRAINS
from whet_audit.project_words import mentions
from whet_audit.requirements import supports
from whet_audit.rule_context import RuleContext

CODE = "CMP106"
NAME = "unfused-optimizer"
PRIORITY = Priority.LOW
_GAIN = Gain(0.0, 0.08, "an optimiser that takes up to a tenth of the step: many parameters, small batches")
_WITHOUT = (
    r"sparse\w* *= *True|SparseAdam|\bc(omplex|float|double)\d*\b|create_graph|higher\.|DTensor|parallelize_module"
)
_FUSED = ("Adam", "AdamW", "SGD", "Adagrad")
_DECIDED = ("fused", "foreach", "capturable", "differentiable")
_NAMES = tuple(f"torch.optim.{place}{name}" for name in _FUSED for place in ("", f"{name.lower()}.", "optimizer."))


def check(context: RuleContext) -> Iterator[Hit]:
    """Calls that make one of the optimisers that have a fused form."""
    if not context.mentions_gpu and not any(True for _ in context.loops(*TRAINS)):
        return
    for call in context.calls_to(*_NAMES):
        if any(context.keyword(call, name) is not None for name in _DECIDED) or _has_options(call):
            continue
        if not call.args and context.keyword(call, "params") is None:
            continue
        if _is_small(context, context.keyword(call, "params", 0)):
            continue
        yield Hit(
            at=call,
            message=f"{context.shown(call.func)} without fused=True: several kernels for each update",
            confidence=Confidence.MEDIUM,
            gain=_GAIN,
            fix=_fused(context, call),
        )


def _fused(context: RuleContext, call: ast.Call) -> Fix | None:
    if supports(context.module.path, (2, 4)) is False or (context.dotted(call.func) or "").endswith("Adagrad"):
        return None
    if mentions(context.project, context.module, _WITHOUT):
        return None
    return context.set_keyword(call, "fused", "True", "update all parameters in one kernel", safe=False)


def _has_options(call: ast.Call) -> bool:
    """Whether keywords come through **, which may decide."""
    return any(keyword.arg is None for keyword in call.keywords)


def _is_small(context: RuleContext, parameters: ast.expr | None) -> bool:
    """Whether what is optimised is a tensor or a few, written one by one: an image, a latent."""
    if isinstance(parameters, ast.List | ast.Tuple):
        return all(
            isinstance(one, ast.Name | ast.Attribute) and context.kind(one) is not Kind.LIST for one in parameters.elts
        )
    return False
