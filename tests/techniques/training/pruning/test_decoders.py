"""Parts of decoders that are gone: the outputs are those of a decoder in which these parts were silent."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from whet.core.workload import TrainingWorkload
from whet.models.decoder import Decoder, load_decoder
from whet.models.decoder.config import DecoderConfig
from whet.models.decoder.fresh import TRAINABLE, fresh_decoder
from whet.techniques.mechanisms.pruning.cost import cost_of
from whet.techniques.mechanisms.pruning.decoders import Kept, changed_config, cut_decoder, refusal, shape_of
from whet.techniques.mechanisms.pruning.importance import Amounts, cut_to_share, decoder_scores, kept_by

SIZES = {"hidden_size": 48, "intermediate_size": 64, "num_hidden_layers": 3, "num_attention_heads": 6}
IDS = torch.arange(20)[None] * 3 % 40


def decoder(family: str = "llama", **changes: Any) -> Decoder:
    given = {"model_type": family, "vocab_size": 40, "num_key_value_heads": 3, "head_dim": 8, **SIZES, **changes}
    model = fresh_decoder(DecoderConfig.model_validate(given), torch.Generator().manual_seed(0)).eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(torch.randn(weight.shape, generator=torch.Generator().manual_seed(1)) * 0.1)
    return model


def training(model: nn.Module) -> TrainingWorkload:
    def loss(module: nn.Module, ids: Tensor) -> Tensor:
        found = module(ids)
        logits = found if isinstance(found, Tensor) else found.logits
        return F.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())

    batches = [torch.randint(0, 40, (2, 12), generator=torch.Generator().manual_seed(i)) for i in range(3)]
    return TrainingWorkload(model=model, loss=loss, optimizer=torch.optim.SGD, batches=batches)


def silenced(model: Decoder, kept: Kept) -> Decoder:
    """The decoder in which what goes adds nothing: heads and channels by zeros where they are added to the stream."""
    found = copy.deepcopy(model)
    size = shape_of(model).queries * shape_of(model).head_dim
    with torch.no_grad():
        for index, layer in enumerate(found.layers):
            if index not in kept.layers:
                layer.self_attn.o_proj.weight.zero_()
                layer.mlp.down_proj.weight.zero_()
                continue
            place = kept.layers.index(index)
            for group in set(range(shape_of(model).groups)) - set(kept.groups[place]):
                layer.self_attn.o_proj.weight[:, group * size : (group + 1) * size] = 0
            gone = sorted(set(range(shape_of(model).channels)) - set(kept.channels[place]))
            layer.mlp.down_proj.weight[:, gone] = 0
    return found


KEPT = Kept((0, 2), ((0, 2), (1, 2)), (tuple(range(0, 64, 2)), tuple(range(32))), tuple(range(48)))


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3", "mistral"])
def test_parts_that_are_gone_are_as_parts_that_are_silent(family: str) -> None:
    model = decoder(family)
    small = cut_decoder(model, KEPT)
    with torch.no_grad():
        torch.testing.assert_close(small(IDS), silenced(model, KEPT)(IDS), rtol=1e-4, atol=1e-5)
    assert sum(p.numel() for p in small.parameters()) < 0.7 * sum(p.numel() for p in model.parameters())
    shapes = {name: p.shape for name, p in small.named_parameters()}
    assert shapes["layers.1.self_attn.k_proj.weight"] == (16, 48) and shapes["layers.1.mlp.up_proj.weight"] == (32, 48)


def test_everything_kept_changes_nothing() -> None:
    model = decoder()
    small = cut_decoder(model, Kept.all_of(shape_of(model)))
    with torch.no_grad():
        assert torch.equal(small(IDS), model(IDS))


def test_width_that_is_zero_everywhere_can_go() -> None:
    """RMSNorm's mean counts the width, so that its weights take the factor up."""
    model = decoder()
    kept = Kept(
        *[getattr(Kept.all_of(shape_of(model)), name) for name in ("layers", "groups", "channels")], tuple(range(24))
    )
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name.endswith(("o_proj.weight", "down_proj.weight")):
                weight[24:] = 0
            elif name == "embed_tokens.weight":
                weight[:, 24:] = 0
    small = cut_decoder(model, kept)
    with torch.no_grad():
        for name, weight in small.named_parameters():
            if name.endswith("norm.weight"):
                weight *= 2**0.5
        torch.testing.assert_close(small(IDS), model(IDS), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("tied", [False, True])
def test_transformers_loads_the_smaller_decoder(tmp_path: Path, tied: bool) -> None:
    from transformers import AutoModelForCausalLM

    model = decoder(tie_word_embeddings=tied)
    small = cut_decoder(model, KEPT)
    assert isinstance(small, Decoder)
    given = {"model_type": "llama", "vocab_size": 40, "num_key_value_heads": 3, "head_dim": 8, **SIZES}
    TRAINABLE.write(small.config, tmp_path, {**given, **changed_config(model, KEPT)}, small.state_dict(), {})
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    with torch.no_grad():
        expected = silenced(model, KEPT)(IDS)
        torch.testing.assert_close(theirs(IDS).logits, expected, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(load_decoder(tmp_path)(IDS), expected, rtol=1e-4, atol=1e-5)


def test_a_model_of_transformers_is_cut_alike() -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(vocab_size=40, num_key_value_heads=3, head_dim=8, **SIZES)
    model = LlamaForCausalLM(config).eval()
    assert refusal(model) == ""
    small = cut_decoder(model, KEPT)
    with torch.no_grad():
        masked = copy.deepcopy(model)
        for index, layer in enumerate(masked.model.layers):
            if index == 1:
                layer.self_attn.o_proj.weight.zero_()
                layer.mlp.down_proj.weight.zero_()
        layers = masked.model.layers
        layers[0].self_attn.o_proj.weight[:, 16:32] = 0
        layers[2].self_attn.o_proj.weight[:, :16] = 0
        layers[0].mlp.down_proj.weight[:, 1::2] = 0
        layers[2].mlp.down_proj.weight[:, 32:] = 0
        torch.testing.assert_close(small(IDS).logits, masked(IDS).logits, rtol=1e-4, atol=1e-5)
    assert "no decoder" in refusal(nn.Linear(2, 2))


@pytest.mark.parametrize("importance", ["magnitude", "taylor"])
def test_silent_parts_go_first(importance: str) -> None:
    model = decoder()
    with torch.no_grad():
        for layer in model.layers:
            layer.self_attn.o_proj.weight[:, 16:32] *= 1e-3
            layer.mlp.down_proj.weight[:, :32] *= 1e-3
        model.layers[1].self_attn.o_proj.weight *= 1e-3
        model.layers[1].mlp.down_proj.weight *= 1e-3
    scores = decoder_scores(model, training(model), importance=importance)  # type: ignore[arg-type]
    kept = kept_by(model, scores, Amounts(mlp=0.5, heads=1 / 3, layers=1 / 3))
    assert kept.layers == (0, 2)
    assert kept.groups == ((0, 2), (0, 2))
    assert kept.channels == (tuple(range(32, 64)),) * 2


def test_taylor_is_the_derivative_by_a_gate() -> None:
    """Finite differences in float64: what the loss changes by where one channel's output is scaled."""
    model = decoder().double()
    workload = training(model)
    scores = decoder_scores(model, workload, num_batches=1)
    batch, weight, step = next(iter(workload.batches)), model.layers[1].mlp.down_proj.weight, 1e-4

    def loss(factor: float) -> float:
        changed = copy.deepcopy(model)
        with torch.no_grad():
            changed.layers[1].mlp.down_proj.weight[:, 5] = weight[:, 5] * factor
            return float(workload.loss(changed, batch))

    slope = (loss(1 + step) - loss(1 - step)) / (2 * step)
    assert float(scores.channels[1, 5]) == pytest.approx(slope**2, rel=1e-3)


@pytest.mark.parametrize("what", [["mlp", "heads"], ["layers"], ["width"]])
def test_a_share_of_the_operations(what: list[str]) -> None:
    model = decoder()

    def call(module: nn.Module) -> Tensor:
        found: Tensor = module(IDS)
        return found

    small = cut_to_share(model, decoder_scores(model, training(model)), what, call, 0.6)
    assert cost_of(small, call).flops <= 0.6 * cost_of(model, call).flops
    assert refusal(small) == ""
