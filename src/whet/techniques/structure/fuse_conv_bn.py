"""Fold batch norms into the convolutions and linear layers before them.

What            In evaluation a batch norm is a fixed scale and shift for each channel. Both go into the weight and bias
                of the layer before it, and the batch norm disappears.
When it helps   Convolutional networks run operator by operator: each batch norm saves one pass over the activations.
When it hurts   Never slower; the model can't be trained on from there.
Numerics        Scales are multiplied into weights: within 1e-4 relative in float32, checked on a calibration batch.
Composes        Before every precision, so that quantisers see the folded weights; compilers that freeze do the same.
Source          Jacob et al., 2017 (arXiv:1712.05877), section 3.2; torch.nn.utils.fusion.
"""

from collections import Counter
from collections.abc import Iterator
from typing import get_args

from torch import fx, nn
from torch.nn.utils import fusion

from whet.core.workload import ExaminedWorkload
from whet.errors import TargetError
from whet.measure.machine import Limits, Machine
from whet.profiling.model import Profile
from whet.techniques.quantisation.quantisable import is_plain
from whet.techniques.rewriting.graph import operator, trace, trace_original, value, verify
from whet.techniques.technique import Applicability, Applies, Candidate, NoOptions, NotApplicable, Stage, Technique

_TOLERANCE = 1e-4
_CONVOLUTIONS = nn.Conv1d | nn.Conv2d | nn.Conv3d
_TRANSPOSED = nn.ConvTranspose1d | nn.ConvTranspose2d | nn.ConvTranspose3d
_BATCH_NORMS = nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d
_OPERATORS = frozenset(
    {"conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d", "convolution"}
)


def check(examined: ExaminedWorkload, machine: Machine, options: NoOptions) -> Applicability:
    if not any(isinstance(m, _BATCH_NORMS) for m in examined.workload.model.modules()):
        return NotApplicable("the model has no batch norm")
    try:
        pairs = list(_find_pairs(trace_original(examined)))
    except TargetError as error:
        return NotApplicable(str(error))
    if not pairs:
        return NotApplicable("no batch norm directly follows a convolution")
    return Applies(f"{len(pairs)} batch norms")


def predict(profile: Profile, limits: Limits, options: NoOptions) -> float:
    gone_s = sum(cost.time_s for cost in profile.layers if cost.kind.startswith("BatchNorm"))
    return profile.total_s / max(profile.total_s - gone_s, profile.total_s * 0.01)


def apply(candidate: Candidate, options: NoOptions) -> Candidate:
    """Return the candidate with its batch norms folded away.

    Raises:
        TargetError: There is no batch norm to fold, or the outputs would change.
    """
    module = candidate.copy_module()
    num_folded = 0
    for layer_path, norm_path in list(_find_pairs(trace(candidate.module, candidate.examined))):
        num_folded += _fold(module, layer_path, norm_path)
    if not num_folded:
        raise TargetError("fuse_conv_bn finds no batch norm to fold; leave it out of the recipe")
    verify("fuse_conv_bn", module, candidate.module, candidate.examined, _TOLERANCE)
    return candidate.with_module(module)


def _find_pairs(traced: fx.GraphModule) -> Iterator[tuple[str, str]]:
    """Yield the path of each layer with the path of the batch norm that follows it.

    The batch norm is the only reader of the layer's output. Neither of the two is called, or its tensors read, twice.
    """
    num_reads: Counter[str] = Counter()
    for node in traced.graph.nodes:
        if node.op == "get_attr":
            num_reads[str(node.target)] += len(node.users)
        elif node.op == "call_module":
            num_reads[f"{node.target}.weight"] += 1
    for node in traced.graph.nodes:
        if operator(node) != "batch_norm" or node.args[5]:
            continue
        layer, running_var = node.args[0], node.args[4]
        weight = _weight_path(layer) if len(layer.users) == 1 else ""
        if not weight.endswith(".weight") or not isinstance(running_var, fx.Node):
            continue
        if num_reads[weight] == 1 and num_reads[str(running_var.target)] == 1:
            yield weight.removesuffix(".weight"), str(running_var.target).removesuffix(".running_var")


def _weight_path(layer: fx.Node) -> str:
    """Return the name of the layer's weight, or "" where the layer cannot take up a batch norm.

    It can be a convolution, or a linear layer with a 2-d output, whose second dimension is its channels.
    """
    if layer.op == "call_module":
        found = value(layer)
        return f"{layer.target}.weight" if found is not None and found.dim() == 2 else ""
    if operator(layer) not in _OPERATORS:
        return ""
    weight = layer.args[1]
    return str(weight.target) if isinstance(weight, fx.Node) and weight.op == "get_attr" else ""


def _fold(module: nn.Module, layer_path: str, norm_path: str) -> bool:
    """Fold one pair in place. Return False where a module is not of the plain class that the graph suggests."""
    try:
        layer, norm = module.get_submodule(layer_path), module.get_submodule(norm_path)
    except AttributeError:
        return False
    # a subclass may do more than normalise: some apply the activation too
    if not isinstance(norm, _BATCH_NORMS) or type(norm) not in get_args(_BATCH_NORMS):
        return False
    if not (is_plain(layer) and is_plain(norm)):
        return False
    folded: nn.Module
    if isinstance(layer, _CONVOLUTIONS):
        folded = fusion.fuse_conv_bn_eval(layer, norm)
    elif isinstance(layer, _TRANSPOSED):
        folded = fusion.fuse_conv_bn_eval(layer, norm, transpose=True)
    elif isinstance(layer, nn.Linear):
        folded = fusion.fuse_linear_bn_eval(layer, norm)
    else:
        return False
    module.set_submodule(layer_path, folded)
    module.set_submodule(norm_path, nn.Identity())
    return True


TECHNIQUE = Technique(
    name="fuse_conv_bn",
    stage=Stage.STRUCTURE,
    order=10,
    card=__doc__,
    check=check,
    predict=predict,
    apply=apply,
)
