"""The native decoder against the readable one, and against itself: what shares a step must not show."""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from native_steps import assert_cuts_do_not_show
from whet.core.workload import measure_quality
from whet.errors import OptionError
from whet.kernels.build import Isa, library, supported
from whet.kernels.decoder.structs import Kv
from whet.kernels.linear.packed import Kind
from whet.models.decoder import Decoder, load_decoder
from whet.models.decoder.config import DecoderConfig, read_config
from whet.models.decoder.files import read_weights, weight_shapes
from whet.models.decoder.native_layers import refusal
from whet.models.hybrid.native import NativeDecoder
from whet.models.step import Allocation, StepBatch
from whet.techniques.mechanisms.pruning.decoders import Kept, cut_decoder, shape_of
from whet.workloads import WEIGHTS, docs_gpt

NUM_BLOCKS = 64

SIZES = {
    "vocab_size": 211,
    "hidden_size": 72,
    "intermediate_size": 100,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 256,
}
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {"model_type": "llama"},
    "llama-biases-tied": {
        "model_type": "llama",
        "attention_bias": True,
        "mlp_bias": True,
        "tie_word_embeddings": True,
    },
    "llama3-rope": {
        "model_type": "llama",
        "rope_scaling": {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        },
    },
    "mistral-window": {"model_type": "mistral", "sliding_window": 19},
    "qwen2": {"model_type": "qwen2", "num_key_value_heads": 6},
    "qwen3": {"model_type": "qwen3", "head_dim": 48, "num_key_value_heads": 1},
    "yarn": {
        "model_type": "llama",
        "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64},
    },
}


def config_of(family: str) -> DecoderConfig:
    return DecoderConfig.model_validate({**SIZES, **FAMILIES[family]})


def random_weights(config: DecoderConfig) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    weights = {}
    for name, shape in weight_shapes(config).items():
        spread = 1.0 if len(shape) == 1 else 1.5 / math.sqrt(shape[-1])
        weights[name] = torch.randn(shape, generator=generator) * spread
        if "norm" in name:
            weights[name] = 1 + 0.2 * weights[name]
    return weights


def reference(config: DecoderConfig, weights: Mapping[str, Tensor], ids_T: Tensor) -> Tensor:
    model = Decoder(config)
    weights = dict(weights)
    if config.tie_word_embeddings:
        weights["lm_head.weight"] = weights["embed_tokens.weight"]
    model.load_state_dict(weights)
    with torch.no_grad():
        logits_TV: Tensor = model.eval()(ids_T[None])[0]
    return logits_TV


def native(
    config: DecoderConfig, weights: Mapping[str, Tensor], kind: Kind = Kind.F32, kv: Kv = Kv.F32
) -> NativeDecoder:
    model = NativeDecoder(config, weights, library(), kind=kind, kv=kv)
    model.allocate(Allocation(num_blocks=NUM_BLOCKS))
    return model


def run(model: NativeDecoder, texts: list[tuple[Tensor, int, int, np.ndarray[Any, Any]]]) -> list[Tensor]:
    """One step of some sequences, each (token ids, start, end, table): the logits of all their new tokens."""
    news = [end - start for _, start, end, _ in texts]
    starts = np.concatenate([[0], np.cumsum(news)]).astype(np.int32)
    batch = StepBatch(
        token_ids=np.concatenate([ids[start:end].numpy() for ids, start, end, _ in texts]).astype(np.int32),
        positions=np.concatenate([np.arange(start, end) for _, start, end, _ in texts]).astype(np.int32),
        query_start=starts,
        context_len=np.array([end for _, _, end, _ in texts], np.int32),
        settled_len=np.array([end for _, _, end, _ in texts], np.int32),
        block_tables=np.stack([table for *_, table in texts]).astype(np.int32),
        state_rows=np.zeros(len(texts), np.int32),
        logit_rows=np.arange(starts[-1], dtype=np.int32),
    )
    return [part.clone() for part in model.step(batch).split(news)]


def random_ids(vocab_size: int, num: int, seed: int = 1) -> Tensor:
    return torch.randint(0, vocab_size, (num,), generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("family", FAMILIES)
def test_float32_is_the_readable_decoder(family: str) -> None:
    config = config_of(family)
    weights = random_weights(config)
    ids_T = random_ids(config.vocab_size, 90)
    logits_TV = run(native(config, weights), [(ids_T, 0, 90, np.arange(16)[::-1].copy())])[0]
    torch.testing.assert_close(logits_TV, reference(config, weights, ids_T), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("family", ["llama-biases-tied", "mistral-window"])
def test_a_decoder_that_was_cut_is_run(family: str) -> None:
    """Its heads together are narrower than the stream."""
    whole = Decoder(config_of(family)).eval()
    shape = shape_of(whole)
    kept = replace(Kept.all_of(shape), groups=((0,),) * shape.layers, channels=(tuple(range(8, 24)),) * shape.layers)
    small = cut_decoder(whole, kept)
    assert isinstance(small, Decoder)
    config, weights = small.config, dict(small.state_dict())
    assert config.num_attention_heads * config.head_dim < shape.queries * shape.groups * shape.head_dim
    ids_T = random_ids(config.vocab_size, 40)
    logits_TV = run(native(config, weights), [(ids_T, 0, 40, np.arange(16))])[0]
    torch.testing.assert_close(logits_TV, reference(config, weights, ids_T), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("isa", supported())
def test_every_build_computes_the_same(isa: Isa) -> None:
    config = config_of("qwen3")
    weights = random_weights(config)
    ids_T = random_ids(config.vocab_size, 40)
    for kind, kv, tolerance in ((Kind.F32, Kv.F32, 1e-4), (Kind.BF16, Kv.BF16, 0.1), (Kind.S8, Kv.S8, 0.3)):
        model = NativeDecoder(config, weights, library(isa), kind=kind, kv=kv)
        model.allocate(Allocation(num_blocks=NUM_BLOCKS))
        logits_TV = run(model, [(ids_T, 0, 40, np.arange(16))])[0]
        off = (logits_TV - reference(config, weights, ids_T)).norm() / reference(config, weights, ids_T).norm()
        assert off < tolerance, (kind, kv)


@pytest.mark.parametrize("kind, kv", [(Kind.F32, Kv.F32), (Kind.BF16, Kv.BF16), (Kind.S8, Kv.S8), (Kind.S4, Kv.BF16)])
def test_what_shares_a_step_and_how_it_is_cut_does_not_show(kind: Kind, kv: Kv) -> None:
    config = config_of("mistral-window")
    model = native(config, random_weights(config), kind, kv)
    texts = [random_ids(config.vocab_size, num, seed) for seed, num in enumerate((150, 33, 70))]
    tables = np.random.default_rng(0).permutation(NUM_BLOCKS)[: 3 * 16].reshape(3, 16)
    alone = [run(model, [(ids, 0, len(ids), table)])[0] for ids, table in zip(texts, tables, strict=True)]

    @settings(max_examples=12, deadline=None)
    @given(data=st.data())
    def cut_at_random(data: st.DataObject) -> None:
        order = np.random.default_rng(data.draw(st.integers(0, 99))).permutation(NUM_BLOCKS)[: 3 * 16].reshape(3, 16)
        assert_cuts_do_not_show(
            data,
            texts,
            alone,
            lambda parts: run(model, [(texts[i], start, end, order[i]) for i, start, end in parts]),
            (1, 2, 15, 16, 17, 40, 99),
        )

    cut_at_random()


def test_a_sequence_goes_back_and_on() -> None:
    config = config_of("llama")
    model = native(config, random_weights(config), kv=Kv.S8)
    right, wrong = random_ids(config.vocab_size, 40, 3), random_ids(config.vocab_size, 40, 4)
    table = np.arange(16)
    whole = run(model, [(right, 0, 40, table)])[0]
    mixed = torch.cat((right[:20], wrong[20:]))
    run(model, [(mixed, 0, 37, table)])
    assert torch.equal(run(model, [(right, 20, 40, table)])[0], whole[20:])


@pytest.mark.parametrize("kind, most", [(Kind.BF16, 0.001), (Kind.S8, 0.005), (Kind.S4, 0.03)])
def test_quantised_quality(kind: Kind, most: float) -> None:
    """Bits per byte of held-out text: how much worse, as a fraction."""
    workload = docs_gpt.build()
    assert workload.quality is not None
    directory = WEIGHTS / docs_gpt.NAME
    config = read_config(directory)
    model = native(config, read_weights(directory, config), kind, Kv.BF16)

    def predict(ids_BT: Tensor) -> Tensor:
        return torch.stack([run(model, [(ids_T, 0, len(ids_T), np.arange(32))])[0] for ids_T in ids_BT])

    original = measure_quality(workload.quality, load_decoder(directory))
    assert workload.quality.drop(original, measure_quality(workload.quality, predict)) <= most


def test_first_token_after_a_text() -> None:
    """Greedy tokens one by one are those of the readable decoder."""
    directory = WEIGHTS / docs_gpt.NAME
    config = read_config(directory)
    model, readable = native(config, read_weights(directory, config)), load_decoder(directory)
    ids = random_ids(config.vocab_size, 12).tolist()
    for num in range(12, 40):
        start = 0 if num == 12 else num - 1
        logits_V = run(model, [(torch.tensor(ids), start, num, np.arange(32))])[0][-1]
        with torch.no_grad():
            wanted_V = readable(torch.tensor([ids]))[0, -1]
        best = wanted_V.topk(2).values
        assert int(logits_V.argmax()) == int(wanted_V.argmax()) or best[0] - best[1] < 1e-4
        ids.append(int(wanted_V.argmax()))


def test_bad_options() -> None:
    config = config_of("llama")
    for length in (0, 257):
        with pytest.raises(OptionError, match="max_model_len"):
            NativeDecoder(config, random_weights(config), library(), kind=Kind.F32, kv=Kv.F32, max_model_len=length)
    assert refusal(config) is None
    assert "head_dim is 24" in str(refusal(config.model_copy(update={"head_dim": 24})))


def test_cross_entropy_is_finite_on_equal_inputs() -> None:
    """Rows of zeros quantise to zeros: no division by nothing."""
    config = config_of("llama")
    weights = random_weights(config)
    weights["embed_tokens.weight"] = torch.zeros_like(weights["embed_tokens.weight"])
    for kind in Kind:
        logits_TV = run(native(config, weights, kind), [(random_ids(config.vocab_size, 9), 0, 9, np.arange(16))])[0]
        assert torch.isfinite(F.log_softmax(logits_TV, dim=-1)).all()
