"""CMP114 numpy-in-forward: numpy, scipy or cv2 between two tensors, in a forward pass or a training step.

Finds       In hot code (not data loading, not what follows inference), a tensor made of what numpy, scipy or cv2
            computed from another tensor: torch.from_numpy(np.f(x.cpu().numpy())), over several statements too.
Why slow    The GPU is waited for, idles while the CPU works on one core, and waits for the copy back.
Example     peaks = scipy.ndimage.maximum_filter(x.cpu().numpy(), 3); y = torch.from_numpy(peaks).to(x.device)
Instead     y = F.max_pool2d(x, 3, 1, 1): most functions of numpy have their like in torch.
Gain        all of the wait, copies and the CPU's work: often a tenth of the step or more on a GPU.
Fix         none: it depends on the function.
Source      PyTorch performance tuning guide, "Avoid unnecessary CPU-GPU synchronization".
"""

import ast
from collections.abc import Iterator

from whet_audit.dataflow import last_name, origins
from whet_audit.finding import Confidence, Gain, Hit, Priority
from whet_audit.hot_paths import HeatKind
from whet_audit.rule_context import RuleContext

CODE = "CMP114"
NAME = "numpy-in-forward"
PRIORITY = Priority.MEDIUM
PREVIEW = True
_GAIN = Gain(0.0, 0.3, "a model on a GPU; little on a CPU")
_MAKERS = (
    "torch.from_numpy",
    "torch.tensor",
    "torch.as_tensor",
    "torch.Tensor",
    "torch.FloatTensor",
    "torch.LongTensor",
)
_OUTSIDE = ("numpy.", "scipy.", "cv2.", "skimage.", "sklearn.", "librosa.", "PIL.")
_CHOSEN = frozenset("linear_sum_assignment randint choice permutation rand randn normal".split())
_HOT = (HeatKind.FORWARD, HeatKind.TRAINING, HeatKind.TRAINING_STEP, HeatKind.GENERATION, HeatKind.DENOISING)


def check(context: RuleContext) -> Iterator[Hit]:
    """Tensors made of arrays that were computed from tensors."""
    if not any(name.startswith(_OUTSIDE) or name + "." in _OUTSIDE for name in context.module.imports.values()):
        return
    for call in context.calls_to(*_MAKERS):
        hot = context.hot(call)
        if not call.args or hot is None or hot.guard or hot.kind not in _HOT:
            continue
        worked = _round_trip(context, call.args[0])
        if worked is None:
            continue
        yield Hit(
            at=call,
            hot=hot,
            message=f"{context.shown(worked)} works on the CPU between two tensors",
            confidence=Confidence.MEDIUM,
            gain=_GAIN,
        )


def _round_trip(context: RuleContext, e: ast.expr) -> ast.Call | None:
    """The call outside of torch that an array comes from, where it worked on a tensor's array."""
    worked, is_from_tensor = None, False
    for origin in origins(context, e):
        for call in (n for n in ast.walk(origin) if isinstance(n, ast.Call)):
            name = last_name(call.func)
            if name == "numpy" and isinstance(call.func, ast.Attribute) and not call.args:
                is_from_tensor = True
            elif (context.dotted(call.func) or "").startswith(_OUTSIDE) and name not in _CHOSEN and call.args:
                worked = worked or call
                is_from_tensor = is_from_tensor or any(context.is_tensor(a, surely=True) for a in call.args)
    return worked if is_from_tensor else None
