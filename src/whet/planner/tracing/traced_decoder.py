"""Make the decoder that is traced from a model's sizes, as whet train or as a GPU computes it, and its loss."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)

from whet.models.decoder.config import DecoderConfig
from whet.models.decoder.reference import Decoder
from whet.planner.layout import Recompute
from whet.planner.model_shape import ModelShape
from whet.planner.tracing.shaped_decoder import ShapedDecoder

_KEPT = frozenset({
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default,
    torch.ops._c10d_functional.reduce_scatter_tensor.default,
})  # fmt: skip


def is_whets(shape: ModelShape) -> bool:
    """Return whether whet's own decoder has a model's sizes: rotary positions, RMSNorm, a gated MLP, nothing else."""
    is_plain = shape.experts is None and shape.latent is None and not shape.num_positions and not shape.drops
    return is_plain and shape.norm == "rms" and shape.is_gated and not shape.has_biases


def model_of(shape: ModelShape) -> Decoder | ShapedDecoder:
    """Return whet's own decoder of a model's sizes where it has them, else a plain one."""
    if not is_whets(shape):
        return ShapedDecoder(shape)
    sizes = {
        "model_type": "llama" if shape.window is None else "mistral",
        "hidden_size": shape.hidden_size,
        "intermediate_size": shape.intermediate_size,
        "num_hidden_layers": shape.num_layers,
        "num_attention_heads": shape.num_heads,
        "num_key_value_heads": shape.num_kv_heads,
        "head_dim": shape.head_size,
        "vocab_size": shape.vocab_size,
        "tie_word_embeddings": shape.is_tied,
        "sliding_window": shape.window,
    }
    return Decoder(DecoderConfig.model_validate(sizes))


class _Kernel(torch.autograd.Function):
    """Make what a GPU's kernel of RMSNorm makes, and keep what it keeps: its input. A CPU computes it in parts."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return torch.empty_like(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        x, weight = ctx.saved_tensors
        return torch.empty_like(x), torch.empty_like(weight)


def normalise_as_gpus(model: nn.Module) -> None:
    """Have norms make and keep what a GPU's kernels do, in place; their numbers mean nothing."""
    for module in model.modules():
        if isinstance(module, nn.RMSNorm):
            module.forward = partial(_by_kernel, module)  # type: ignore[method-assign]


def _by_kernel(module: nn.RMSNorm, x: Tensor) -> Tensor:
    found: Tensor = _Kernel.apply(x, module.weight)  # type: ignore[no-untyped-call]
    return found


def wrap_layers(model: Decoder | ShapedDecoder, recompute: Recompute) -> None:
    """Have backward compute layers again, in place: all of each, or all but attention and every second product."""
    if recompute in ("none", "selective"):  # fused attention keeps no matrix of scores that could be computed again
        return
    options: dict[str, Any] = {"use_reentrant": False}
    if recompute == "operators":
        options["context_fn"] = _operators_kept
    for layer in model.layers:
        layer.forward = partial(checkpoint, layer.forward, **options)


def _operators_kept() -> Any:
    """Return the contexts of a layer whose second, fourth and sixth matrix product are computed again (torchtitan)."""
    seen = {False: 0, True: 0}

    def policy(context: Any, operator: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
        if operator == torch.ops.aten.mm.default:
            seen[context.is_recompute] += 1
            again = seen[context.is_recompute] % 2 == 0
        else:
            again = operator not in _KEPT
        return CheckpointPolicy.PREFER_RECOMPUTE if again else CheckpointPolicy.MUST_SAVE

    return create_selective_checkpoint_contexts(policy)


def loss_of(model: Callable[[Tensor], Tensor], ids_BT: Tensor) -> Tensor:
    """Return the loss of a micro-batch as whet train computes it."""
    logits_BTV = model(ids_BT)
    return F.cross_entropy(logits_BTV.float().flatten(0, 1), ids_BT.flatten())
