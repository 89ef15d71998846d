"""Divide the matrices of a decoder among processes that see the same rows: tensor parallelism in one dimension.

Attention is divided by heads and the MLP by its inner width, so that each needs one exchange in its forward and one in
its backward (Shoeybi et al., 2019, arXiv:1909.08053). With sequence parallelism, processes hold other tokens of the
stream between the matrices, and norms and dropout are divided too (Korthikanti et al., 2022, arXiv:2205.05198). The
embedding and the head are divided by the vocabulary. What leaves the model is whole on each process.

The stream is a DTensor, which knows the whole shape. So tokens and the vocabulary need not divide evenly.
"""

import warnings
from typing import Any

from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Placement, Replicate, distribute_module
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

from whet.errors import OptionError
from whet.models.decoder.config import MODEL_TYPES
from whet.models.decoder.reference import Decoder, DecoderLayer
from whet.parallel.stream import Stream, held

_KEY = "parallel.tensor_parallel_degree"
_DIVIDED = (nn.Linear, nn.Embedding, nn.RMSNorm)
_HEADS = 2  # the dimension of [B, T, N, H]


def divide_matrices(model: nn.Module, stream: Stream) -> None:
    """Divide a decoder among the processes that hold its stream, in place; its parameters become DTensors.

    All processes hold the same weights: those of a whole decoder, or of the stages of a pipeline that are theirs.
    Nothing is changed where the model is refused.

    Raises:
        OptionError: It is no decoder of models/, or the number of processes does not divide its heads or its MLP.
    """
    mesh = stream.mesh
    assert mesh is not None
    decoder = checked(model, mesh.size())
    trained = {name: p.requires_grad for name, p in decoder.named_parameters()}
    is_tied = decoder.config.tie_word_embeddings and isinstance(decoder.lm_head, nn.Linear)
    hooks: Any = decoder.embed_tokens._forward_hooks
    dropout = list(hooks)
    for norm in _norms_of_stream(decoder):
        # Where each holds all tokens, what follows reads a plain tensor: then its gradient is summed here, once.
        output_fn = _local_output if stream.placement.is_replicate() else None
        distribute_module(decoder.get_submodule(norm), mesh, output_fn=output_fn)
    parallelize_module(decoder, mesh, _styles(decoder, stream.placement), src_data_rank=None)
    if isinstance(decoder.lm_head, nn.Linear):
        decoder.lm_head.register_forward_hook(_local_logits)
    for hook in dropout:  # it drops numbers of the whole sums, which the styles' own hooks make
        hooks.move_to_end(hook)
    if is_tied:
        decoder.lm_head.weight = decoder.embed_tokens.weight
    for layer in _layers(decoder).values():
        layer.self_attn.num_heads //= mesh.size()
        layer.self_attn.num_kv_heads //= mesh.size()
    for name, p in decoder.named_parameters():
        p.requires_grad_(trained[name])
        if trained[name] and isinstance(p, DTensor):
            p.register_hook(_Placed(p.placements))  # type: ignore[no-untyped-call]


def exchange_while_multiplying(mesh: DeviceMesh) -> None:
    """Have torch.compile divide products into parts, of which processes exchange one while they compute the next one.

    It needs GPUs that reach each other's memory (Wang et al., 2023, doi:10.1145/3567955.3567959).
    """
    from torch._inductor import config  # torch's compiler takes seconds to import
    from torch.distributed._symmetric_memory import enable_symm_mem_for_group

    config._micro_pipeline_tp = True
    with warnings.catch_warnings():
        # It says that it is not needed, but the compiler asks whether it was called.
        warnings.simplefilter("ignore", FutureWarning)
        enable_symm_mem_for_group(mesh.get_group().group_name)


def checked(model: nn.Module, degree: int) -> Decoder:
    """Return a model that so many processes can share.

    Raises:
        OptionError: It is no decoder of models/, or they do not divide its heads or its MLP.
    """
    if type(model) is not Decoder:
        raise OptionError(
            f"{_KEY} is {degree}, and whet divides the matrices of its own decoders alone ({', '.join(MODEL_TYPES)}); "
            f"this model is a {type(model).__name__}. Leave it out, and share the model with parallel.zero_stage = 3"
        )
    for layer in _layers(model).values():
        for key, size in (
            ("num_attention_heads", layer.self_attn.num_heads),
            ("num_key_value_heads", layer.self_attn.num_kv_heads),
            ("intermediate_size", layer.mlp.gate_proj.out_features),
        ):
            if size % degree:
                raise OptionError(
                    f"{_KEY} {degree} does not divide model.{key} {size}; choose a degree that does, or another size"
                )
    names = [*_styles(model, Replicate()), *_norms_of_stream(model)]
    divided = [module for name, module in model.named_modules() if name in names and type(module) in _DIVIDED]
    known = {id(p) for module in divided for p in module.parameters(recurse=False)}
    for name, p in model.named_parameters():
        if id(p) not in known:
            raise OptionError(
                f"{_KEY} is {degree}, and the model has {name}, which whet does not divide; leave the degree out, or "
                "what added it, such as [lora]"
            )
    return model


def _layers(decoder: Decoder) -> dict[int, DecoderLayer]:
    """Return the layers that this process holds, by their places."""
    return {number: layer for number, layer in enumerate(decoder.layers) if isinstance(layer, DecoderLayer)}


def _norms_of_stream(decoder: Decoder) -> list[str]:
    kinds = ("input_layernorm", "post_attention_layernorm")
    last = ["norm"] if isinstance(decoder.norm, nn.RMSNorm) else []
    return [*last, *(f"layers.{number}.{kind}" for number in _layers(decoder) for kind in kinds)]


def _styles(decoder: Decoder, stream: Placement) -> dict[str, ParallelStyle]:
    """Return how each module is divided, where the stream lies on processes in a given way."""
    styles: dict[str, ParallelStyle] = {}
    if isinstance(decoder.embed_tokens, nn.Embedding):
        styles["embed_tokens"] = RowwiseParallel(
            input_layouts=Replicate(), output_layouts=stream, use_local_output=False
        )
    if isinstance(decoder.lm_head, nn.Linear):
        styles["lm_head"] = ColwiseParallel(input_layouts=stream, output_layouts=Replicate(), use_local_output=False)
    for number, layer in _layers(decoder).items():
        own: dict[str, ParallelStyle] = {
            "self_attn": PrepareModuleInput(
                input_layouts=(stream, None, None, None), desired_input_layouts=(Replicate(), None, None, None)
            ),
            "mlp": PrepareModuleInput(input_layouts=stream, desired_input_layouts=Replicate()),
        }
        for name in ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "mlp.gate_proj", "mlp.up_proj"):
            own[name] = ColwiseParallel()
        for name in ("self_attn.o_proj", "mlp.down_proj"):
            own[name] = RowwiseParallel(output_layouts=stream, use_local_output=False)
        if layer.self_attn.q_norm is not None:
            for name in ("self_attn.q_norm", "self_attn.k_norm"):
                own[name] = SequenceParallel(sequence_dim=_HEADS, use_local_output=True)
        styles |= {f"layers.{number}.{name}": style for name, style in own.items()}
    return styles


def _local_output(module: nn.Module, output: Any, mesh: DeviceMesh) -> Any:
    return output.to_local()


def _local_logits(module: nn.Module, inputs: Any, logits_BTV: DTensor) -> Tensor:
    return held(logits_BTV)


class _Placed:
    """Sum a gradient, or take its part, so that it lies on processes as its parameter does.

    A norm's gradient comes as one summand of each process, and an embedding's as a whole one.
    """

    def __init__(self, placements: Any) -> None:
        self._placements = placements

    def __call__(self, gradient: DTensor) -> DTensor:
        return gradient.redistribute(placements=self._placements)
