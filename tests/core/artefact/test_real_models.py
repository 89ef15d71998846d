"""Models that people use are not refused: PyTorch's own, transformers' with random weights, and the built-in ones.

Rotary tables that settle, warnings given once, masks, dropout that is off and logging are all in them.
"""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers as hf
from torch import Tensor, nn

from whet.core.artefact import program
from whet.core.workload import Workload, examine
from whet.workloads.target import open_target

IDS = torch.arange(24).reshape(2, 12) % 90 + 3
MASK = torch.ones_like(IDS)
TEXT = {"input_ids": IDS, "attention_mask": torch.where(IDS % 12 == 2, 0, MASK)}
IMAGE = torch.linspace(-1, 1, 2 * 3 * 32 * 32).reshape(2, 3, 32, 32)
SIZE: dict[str, Any] = {
    **{"vocab_size": 100, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64},
}
VISION: dict[str, Any] = {**SIZE, "image_size": 32, "patch_size": 8}
VISION.pop("vocab_size")

QUICK: dict[str, Callable[[], tuple[nn.Module, Any]]] = {
    "bert": lambda: (hf.BertModel(hf.BertConfig(**SIZE)), TEXT),
    "gpt2": lambda: (
        hf.GPT2LMHeadModel(hf.GPT2Config(vocab_size=100, n_embd=32, n_layer=2, n_head=4, use_cache=False)),
        TEXT,
    ),
    "llama": lambda: (hf.LlamaForCausalLM(hf.LlamaConfig(**SIZE, use_cache=False)), TEXT),
    "vit": lambda: (hf.ViTModel(hf.ViTConfig(**VISION)), IMAGE),
    "t5-encoder": lambda: (
        hf.T5EncoderModel(hf.T5Config(vocab_size=100, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4)),
        TEXT,
    ),
    "lstm": lambda: (nn.LSTM(8, 16, batch_first=True), torch.rand(2, 5, 8)),
    "torch-transformer": lambda: (
        nn.TransformerEncoder(nn.TransformerEncoderLayer(32, 4, 64, batch_first=True), 2),
        torch.rand(2, 5, 32),
    ),
    "batch-norm": lambda: (nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Dropout()), IMAGE),
}

SLOW: dict[str, Callable[[], tuple[nn.Module, Any]]] = {
    "dinov2": lambda: (hf.Dinov2Model(hf.Dinov2Config(**VISION)), IMAGE),
    "mixtral": lambda: (
        hf.MixtralForCausalLM(hf.MixtralConfig(**SIZE, num_key_value_heads=2, num_local_experts=4, use_cache=False)),
        TEXT,
    ),
    "wav2vec2": lambda: (
        hf.Wav2Vec2Model(
            hf.Wav2Vec2Config(
                **SIZE, conv_dim=(32, 32), conv_stride=(5, 2), conv_kernel=(10, 3), num_feat_extract_layers=2
            )
        ),
        torch.linspace(-1, 1, 1600).reshape(2, 800),
    ),
    "whisper": lambda: (
        hf.WhisperModel(
            hf.WhisperConfig(
                **{"vocab_size": 100, "d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "num_mel_bins": 16},
                **{"encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_ffn_dim": 64},
                **{"decoder_ffn_dim": 64, "max_source_positions": 50, "use_cache": False, "pad_token_id": 0},
                **{"bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1},
            )
        ),
        {"input_features": torch.linspace(-1, 1, 3200).reshape(2, 16, 100), "decoder_input_ids": IDS[:, :5]},
    ),
    "deberta": lambda: (hf.DebertaV2Model(hf.DebertaV2Config(**SIZE)), TEXT),
    "mamba": lambda: (
        hf.MambaForCausalLM(hf.MambaConfig(vocab_size=100, hidden_size=32, num_hidden_layers=2, use_cache=False)),
        {"input_ids": IDS},
    ),
}  # fmt: skip


def refusal(workload: Workload) -> str:
    examined = examine(workload, with_quality=False)
    return "; ".join(examined.effects) or program.refusal(examined)


def check(make: Callable[[], tuple[nn.Module, Any]]) -> None:
    model, batch = make()
    first: Tensor | dict[str, Tensor] = batch
    assert refusal(Workload(model=model.eval(), inputs=[first])) == ""


@pytest.mark.parametrize("name", QUICK)
def test_is_not_refused(name: str) -> None:
    check(QUICK[name])


@pytest.mark.slow
@pytest.mark.parametrize("name", SLOW)
def test_is_not_refused_either(name: str) -> None:
    check(SLOW[name])


@pytest.mark.parametrize("name", ["digits-cnn", "docs-encoder", "docs-gpt"])
def test_built_in_ones_are_not_refused(name: str) -> None:
    workload = open_target(name)
    assert refusal(Workload(model=workload.model, inputs=[workload.inputs[0]])) == ""
