"""CMP113 bias-before-norm: a bias that the normalisation right behind it takes away again.

Finds       Conv or Linear with a bias (the default), whose output goes straight into BatchNorm or InstanceNorm:
            neighbours in nn.Sequential or a list, or attributes used one after the other in `forward`.
Why slow    The mean of each channel is subtracted at once, the bias with it; it still costs its passes.
Example     nn.Sequential(nn.Conv2d(3, 64, 3), nn.BatchNorm2d(64), nn.ReLU())
Instead     nn.Sequential(nn.Conv2d(3, 64, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU())
Gain        one small kernel for each such layer and pass: a hundredth of a step or so.
Fix         unsafe: saved weights have a key that the model has no more. None where the project loads weights, or does
            something with a bias itself, which would be None.
Source      PyTorch performance tuning guide, "Disable bias for convolutions directly followed by a batch norm".
"""

from collections.abc import Iterator

from whet_audit.finding import Confidence, Gain, Hit, Priority
from whet_audit.layer_order import layer_pairs
from whet_audit.project_words import mentions_anywhere
from whet_audit.rule_context import RuleContext, is_known

CODE = "CMP113"
NAME = "bias-before-norm"
PRIORITY = Priority.LOW
_GAIN = Gain(0.0, 0.02, "a network of many small convolutions")
_USED = r"\.bias\b|load_state_dict|pretrained|model_zoo|torch\.load|load_file|checkpoint"
_BIAS_AT = {"Conv": 7, "ConvTranspose": 8, "Linear": 2}
_NORMS = ("BatchNorm", "SyncBatchNorm", "InstanceNorm", "LazyBatchNorm", "LazyInstanceNorm")


def check(context: RuleContext) -> Iterator[Hit]:
    """Pairs of a layer with a bias and a normalisation over what it adds to."""
    for first, second in layer_pairs(context):
        layer, norm = context.dotted(first.func) or "", context.dotted(second.func) or ""
        if not layer.startswith("torch.nn.") or not norm.startswith("torch.nn."):
            continue
        kind = layer.removeprefix("torch.nn.").removeprefix("Lazy").rstrip("123d")
        if kind not in _BIAS_AT or not norm.removeprefix("torch.nn.").startswith(_NORMS):
            continue
        if any(keyword.arg is None for keyword in first.keywords):
            continue
        given = context.keyword(first, "bias", _BIAS_AT[kind])
        if given is not None and (not is_known(context.constant(given)) or context.constant(given) is not True):
            continue
        is_default = given is None or context.keyword(first, "bias") is not None
        yield Hit(
            at=first,
            message=f"the bias of {context.shown(first)} is taken away by {context.shown(second.func)}",
            confidence=Confidence.HIGH,
            gain=_GAIN,
            fix=context.set_keyword(first, "bias", "False", "leave the bias out", safe=False)
            if is_default and not mentions_anywhere(context.project, _USED)
            else None,
        )
