"""Train small matrices beside a model's own (LoRA, Hu et al., 2021, arXiv:2106.09685), with peft's layers.

A layer W becomes W + (alpha / r) B A, where A has r rows and B r columns. W stays as it is.
"""

import difflib
import warnings
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from whet.core.workload.blocks import blocks_of
from whet.errors import MissingExtra, OptionError, TargetError, foreign
from whet.trainer.model import TrainedModel
from whet.trainer.sections import LoraSection

ADAPTER = "adapter_config.json"
_WEIGHTS = "adapter_model.safetensors"
_NAME = "default"  # peft's own name for an adapter
_BASE = ".base_layer."


def with_lora(model: TrainedModel, section: LoraSection, directory: Path, seed: int) -> TrainedModel:
    """Return a model of which LoRA's matrices alone are trained. Its module is changed in place.

    Args:
        directory: The directory that the model was opened from.
        seed: Decides the first weights.

    Raises:
        MissingExtra: peft is not installed.
        OptionError: A name is none of a linear layer.
    """
    try:
        import peft
    except ImportError as error:
        raise MissingExtra("peft", "lora", "[lora]") from error
    linear = {name: one for name, one in model.module.named_modules() if _is_linear(one)}
    chosen = _chosen(model, linear, section.target_modules)
    transposed = frozenset(name for name in chosen if not isinstance(linear[name], nn.Linear))
    config = peft.LoraConfig(
        r=section.r,
        lora_alpha=section.alpha,
        lora_dropout=section.dropout,
        target_modules=_targets(model, linear, chosen),
        fan_in_fan_out=bool(transposed),
        task_type="CAUSAL_LM",
        base_model_name_or_path=str(directory.resolve()),
    )
    # The model lies in another module, so that peft asks nothing of its config: whet's decoders have one of their own.
    holder = nn.Module()
    holder.model = model.module
    torch.manual_seed(seed)
    with foreign(TargetError, "peft cannot add LoRA's matrices"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        peft.inject_adapter_in_model(config, holder)
    trained = sum(p.numel() for p in model.module.parameters() if p.requires_grad)

    def write(out: Path, weights: Mapping[str, Tensor], tokens: Mapping[str, int]) -> None:
        if section.merge:
            model.write(out, merged(weights, section.alpha / section.r, transposed), tokens)
        else:
            _write_adapter(model, config, out, weights)

    return replace(model, name=f"{model.name}; LoRA trains {trained / 1e6:.3g} million others", write=write)


def merged(weights: Mapping[str, Tensor], scale: float, transposed: frozenset[str] = frozenset()) -> dict[str, Tensor]:
    """Return a model's weights with LoRA's products added, under the names that they had before.

    Args:
        weights: The weights of a module with peft's layers, by the names of its state_dict.
        scale: What the products are multiplied by.
        transposed: The layers whose weight is [in, out], as those of GPT-2.
    """
    found = {}
    for name, value in weights.items():
        if ".lora_" in name:
            continue
        layer = name.removesuffix(f"{_BASE}weight")
        if layer != name:
            a, b = (weights[f"{layer}.lora_{one}.{_NAME}.weight"].float() for one in "AB")
            product = scale * (b @ a)
            value = value + (product.T if layer in transposed else product).to(value.dtype)
        found[name.replace(_BASE, ".")] = value
    return found


def _write_adapter(model: TrainedModel, config: Any, directory: Path, weights: Mapping[str, Tensor]) -> None:
    """Write an adapter as peft does, with the names of the model that transformers makes of the base's directory."""
    kept = {
        f"base_model.model.{model.file_name(name)}".replace(f".{_NAME}.", "."): value.detach().contiguous()
        for name, value in weights.items()
        if ".lora_" in name
    }
    save_file(kept, directory / _WEIGHTS, metadata={"format": "pt"})
    training, config.inference_mode = config.inference_mode, True
    try:
        config.save_pretrained(str(directory))
    finally:
        config.inference_mode = training


def _is_linear(module: nn.Module) -> bool:
    return isinstance(module, nn.Linear) or type(module).__name__ == "Conv1D"  # GPT-2's, from transformers


def _chosen(model: TrainedModel, linear: Mapping[str, nn.Module], names: tuple[str, ...] | None) -> list[str]:
    """Return the names of the linear layers that get matrices.

    Raises:
        OptionError: A name is none of a linear layer, or of one that shares its weight or cannot be adapted.
    """
    if names is None:
        inside = {id(part) for block in blocks_of(model.module) for part in block.modules()}
        found = [name for name, one in linear.items() if id(one) in inside and not _why_not(model, name)]
        if not found:
            raise OptionError(
                "whet finds no blocks with linear layers in the model; name layers in lora.target_modules"
            )
        return found
    chosen: dict[str, None] = {}
    for target in names:
        matching = [name for name in linear if _matches(model, name, target)]
        if not matching:
            raise OptionError(_no_target(model, linear, target))
        if why := next(filter(None, (_why_not(model, name) for name in matching)), ""):
            raise OptionError(f"lora.target_modules: {target} cannot get matrices, since {why}; leave it out")
        chosen.update(dict.fromkeys(matching))
    _check_untied(model.module, linear, chosen)
    return list(chosen)


def _why_not(model: TrainedModel, name: str) -> str:
    """Return why a linear layer cannot get matrices, or "" where it can."""
    return model.not_adapted.get(name.rpartition(".")[2], "")


def _matches(model: TrainedModel, name: str, target: str) -> bool:
    """Return whether peft takes a name for a layer: it is the layer's whole name, or its end."""
    return f".{model.file_name(name)}".endswith(f".{target}")


def _no_target(model: TrainedModel, linear: Mapping[str, nn.Module], target: str) -> str:
    ends = sorted({end for name in linear if (end := name.rpartition(".")[2]) not in model.not_adapted})
    near = difflib.get_close_matches(target.rpartition(".")[2], ends, n=1, cutoff=0.5)
    is_other = any(_matches(model, name, target) for name, _ in model.module.named_modules())
    told = f"{target} is no linear layer" if is_other else f"the model has no layer {target}"
    more = f"; did you mean {near[0]}?" if near else f"; its linear layers are {', '.join(ends)}"
    return f"lora.target_modules: {told}{more}"


def _check_untied(module: nn.Module, linear: Mapping[str, nn.Module], chosen: Mapping[str, None]) -> None:
    owners: dict[int, list[str]] = {}
    for name, p in module.named_parameters(remove_duplicate=False):
        owners.setdefault(id(p), []).append(name.rpartition(".")[0])
    for name in chosen:
        if others := [one for one in owners[id(linear[name].weight)] if one != name]:
            raise OptionError(
                f"lora.target_modules: {name} shares its weight with {others[0]}, which would change with it; leave "
                "it out"
            )


def _targets(model: TrainedModel, linear: Mapping[str, nn.Module], chosen: list[str]) -> list[str]:
    """Return what peft is told: the ends of the names where they mean these layers alone, or else whole names."""
    ends = {name.rpartition(".")[2] for name in chosen}
    if {name for name in linear if name.rpartition(".")[2] in ends} == set(chosen):
        return sorted(ends)
    return [model.file_name(name) for name in chosen]
