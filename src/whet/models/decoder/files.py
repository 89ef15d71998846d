"""Read a decoder's weights from a Hugging Face directory: model.safetensors, or shards with an index.

Only safetensors are read, since a pickle can run any code.
"""

from collections.abc import Iterator
from pathlib import Path

import torch
from pydantic import BaseModel, ValidationError
from safetensors import SafetensorError, safe_open
from torch import Tensor

from whet.errors import TargetError
from whet.models.decoder.config import DecoderConfig

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
STORED_AS = ("F32", "BF16", "F16")

Shape = tuple[int, ...]


class _Index(BaseModel):
    weight_map: dict[str, str]


def weight_shapes(config: DecoderConfig) -> dict[str, Shape]:
    """Return the shape of each tensor of a decoder, by name.

    With tied embeddings there is no lm_head.weight: embed_tokens.weight is used for both.
    """
    D = config.hidden_size
    shapes: dict[str, Shape] = {"embed_tokens.weight": (config.vocab_size, D), "norm.weight": (D,)}
    if not config.tie_word_embeddings:
        shapes["lm_head.weight"] = (config.vocab_size, D)
    in_layer = dict(_shapes_of_a_layer(config))
    for layer in range(config.num_hidden_layers):
        shapes |= {f"layers.{layer}.{name}": shape for name, shape in in_layer.items()}
    return shapes


def _shapes_of_a_layer(config: DecoderConfig) -> Iterator[tuple[str, Shape]]:
    D, wide, H = config.hidden_size, config.intermediate_size, config.head_dim
    queries, keys = config.num_attention_heads * H, config.num_key_value_heads * H
    linears = {
        "self_attn.q_proj": (queries, D, config.qkv_bias),
        "self_attn.k_proj": (keys, D, config.qkv_bias),
        "self_attn.v_proj": (keys, D, config.qkv_bias),
        "self_attn.o_proj": (D, queries, config.o_bias),
        "mlp.gate_proj": (wide, D, config.mlp_bias),
        "mlp.up_proj": (wide, D, config.mlp_bias),
        "mlp.down_proj": (D, wide, config.mlp_bias),
    }
    for name, (num_out, num_in, has_bias) in linears.items():
        yield f"{name}.weight", (num_out, num_in)
        if has_bias:
            yield f"{name}.bias", (num_out,)
    yield "input_layernorm.weight", (D,)
    yield "post_attention_layernorm.weight", (D,)
    if config.qk_norm:
        yield "self_attn.q_norm.weight", (H,)
        yield "self_attn.k_norm.weight", (H,)


def read_weights(directory: Path | str, config: DecoderConfig) -> dict[str, Tensor]:
    """Return the tensors that `weight_shapes` names, in their stored dtype. Names lack transformers' prefix `model.`.

    They are views of memory-mapped files. A tensor is read from the disk when it is used, and the files must not change
    while the tensors exist.

    Raises:
        TargetError: A file is missing or damaged, or a tensor is missing, unexpected, quantised, or of another shape.
    """
    directory = Path(directory)
    weights: dict[str, Tensor] = {}
    for file, names in _files(directory).items():
        for stored_name, tensor in _tensors(file, names):
            name = stored_name.removeprefix("model.")
            if name in weights:
                raise TargetError(f"{directory} holds {name} twice")
            weights[name] = tensor
    _drop_what_is_not_needed(weights, directory, config)
    _compare(weights, directory, weight_shapes(config))
    return weights


def _files(directory: Path) -> dict[Path, set[str] | None]:
    """Return the files to read, with the names of their tensors by the index; None for all, if there is no index."""
    if (directory / WEIGHTS).is_file():
        return {directory / WEIGHTS: None}
    index = directory / INDEX
    if not index.is_file():
        raise TargetError(_no_weights(directory))
    try:
        weight_map = _Index.model_validate_json(index.read_bytes()).weight_map
    except (OSError, ValidationError) as error:
        raise TargetError(f"{index} is damaged or lacks weight_map: download or copy it again") from error
    files: dict[Path, set[str] | None] = {}
    for file_name in sorted(set(weight_map.values())):
        if Path(file_name).name != file_name or not file_name.endswith(".safetensors"):
            raise TargetError(f"{index} names {file_name!r}, which is not a safetensors file in the same directory")
        files[directory / file_name] = {name for name, where in weight_map.items() if where == file_name}
    missing = [file.name for file in files if not file.is_file()]
    if missing:
        raise TargetError(f"{directory} lacks {_first_of(missing)}, named in {INDEX}: download or copy it again")
    return files


def _no_weights(directory: Path) -> str:
    message = f"{directory} has no {WEIGHTS} and no {INDEX}"
    pickle = next((p.name for pattern in ("*.bin", "*.pt", "*.pth") for p in sorted(directory.glob(pattern))), None)
    if pickle:
        return (
            f"{message}, only {pickle}, and whet reads no pickles: convert it with transformers, "
            "AutoModelForCausalLM.from_pretrained(DIR).save_pretrained(NEW_DIR)"
        )
    other = next((p.name for p in sorted(directory.glob("*.safetensors"))), None)
    return f"{message}; rename {other} if it holds all the weights" if other else message


def _tensors(file: Path, indexed: set[str] | None) -> Iterator[tuple[str, Tensor]]:
    """Yield the names and tensors of one file, which is mapped into memory."""
    try:
        with safe_open(file, framework="pt") as opened:
            names = set(opened.keys())
            if indexed is not None and (wrong := sorted(indexed ^ names)):
                where = "has no" if wrong[0] in indexed else "also has"
                raise TargetError(f"{file} {where} {_first_of(wrong)}, contrary to {INDEX}: download both again")
            for name in sorted(names):
                stored_as = opened.get_slice(name).get_dtype()
                if stored_as not in STORED_AS:
                    raise TargetError(f"{file}: {name} is stored as {stored_as}; whet reads {', '.join(STORED_AS)}")
                yield name, opened.get_tensor(name)
    except (OSError, SafetensorError, ValueError) as error:
        raise TargetError(f"{file} cannot be read: {error}") from error


def _drop_what_is_not_needed(weights: dict[str, Tensor], directory: Path, config: DecoderConfig) -> None:
    """Remove rotary angles, which old files hold but which are computed, and the second copy of a tied head."""
    for name in [name for name in weights if name.endswith(".rotary_emb.inv_freq")]:
        del weights[name]
    if not config.tie_word_embeddings:
        return
    head, embedding = weights.pop("lm_head.weight", None), weights.get("embed_tokens.weight")
    if head is not None and embedding is not None and not torch.equal(head, embedding):
        raise TargetError(
            f"{directory}: config.json says tie_word_embeddings, but lm_head.weight is not embed_tokens.weight: "
            "set tie_word_embeddings to false"
        )


def _compare(weights: dict[str, Tensor], directory: Path, shapes: dict[str, Shape]) -> None:
    """Raise TargetError unless the tensors are exactly those that the config implies."""
    wrong = {
        "missing": [name for name in shapes if name not in weights],
        "unexpected": [name for name in weights if name not in shapes],
        "of another shape": [
            f"{name} is {list(weights[name].shape)} where {list(shape)} is wanted"
            for name, shape in shapes.items()
            if name in weights and weights[name].shape != shape
        ],
    }
    if found := [f"{said}: {_first_of(names)}" for said, names in wrong.items() if names]:
        raise TargetError(f"the weights in {directory} do not fit its config.json: {'; '.join(found)}")


def _first_of(names: list[str]) -> str:
    return names[0] + (f" (and {len(names) - 1} more)" if len(names) > 1 else "")
