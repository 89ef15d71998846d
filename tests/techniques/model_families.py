"""Models of transformers' families, tiny and with random weights, each with inputs of several sizes."""

from collections.abc import Callable
from typing import Any

import torch
import transformers as hf
from torch import Tensor, nn

from whet.models.decoder import Decoder, DecoderConfig
from whet.models.encoder import Encoder, EncoderConfig

Batches = list[Any]
Built = tuple[nn.Module, Batches]

TEXT: dict[str, Any] = {
    **{"vocab_size": 100, "hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 80},
}
IMAGE: dict[str, Any] = {
    **{"hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 80},
    **{"image_size": 32, "patch_size": 8},
}

SOUND: dict[str, Any] = {
    **{"hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 80},
    **{"conv_dim": (16, 16), "conv_stride": (5, 2), "conv_kernel": (10, 3), "num_feat_extract_layers": 2},
    **{"num_conv_pos_embeddings": 8, "num_conv_pos_embedding_groups": 2},
}


def text(num_rows: int, length: int, *pads: tuple[int, int]) -> dict[str, Tensor]:
    """Ids with a mask: `pads` says for each of the first rows how many places are padded on the left and the right."""
    mask = torch.ones(num_rows, length, dtype=torch.int64)
    for row, (left, right) in enumerate(pads):
        mask[row, :left] = 0
        mask[row, length - right :] = 0
    return {"input_ids": torch.randint(3, 100, (num_rows, length)), "attention_mask": mask}


def texts() -> Batches:
    return [text(2, 9, (2, 0), (0, 3)), text(3, 12), text(4, 17, (0, 5), (6, 0))]


def images() -> Batches:
    return [{"pixel_values": torch.randn(num_rows, 3, 32, 32)} for num_rows in (2, 3)]


def sequences() -> Batches:
    return [(torch.randn(num_rows, length, 48),) for num_rows, length in ((2, 5), (3, 7))]


def torch_encoder(**options: Any) -> nn.Module:
    layer = nn.TransformerEncoderLayer(48, 3, 64, batch_first=True, **options)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)


def whisper_encoder() -> nn.Module:
    sizes = {
        **{"vocab_size": 100, "d_model": 48, "encoder_layers": 2, "decoder_layers": 1, "num_mel_bins": 16},
        **{"encoder_attention_heads": 3, "decoder_attention_heads": 3, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64},
        **{"max_source_positions": 50, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2},
    }
    encoder = hf.WhisperModel(hf.WhisperConfig(**sizes, decoder_start_token_id=1)).encoder
    assert isinstance(encoder, nn.Module)
    return encoder


def waves() -> Batches:
    return [{"input_values": torch.randn(num_rows, 400)} for num_rows in (2, 3)]


def sounds() -> Batches:
    return [{"input_features": torch.randn(num_rows, 16, 100)} for num_rows in (2, 3)]


def docs_gpt() -> nn.Module:
    sizes = {**TEXT, "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64}
    return Decoder(DecoderConfig(**sizes))


def ids() -> Batches:
    return [(torch.randint(3, 100, (num_rows, length)),) for num_rows, length in ((2, 9), (3, 16))]


WHOLE: dict[str, Callable[[], Built]] = {
    "bert": lambda: (hf.BertModel(hf.BertConfig(**TEXT)), texts()),
    "bert, attention by hand": lambda: (
        hf.BertModel._from_config(hf.BertConfig(**TEXT), attn_implementation="eager"),
        texts(),
    ),
    "bert, a classifier": lambda: (hf.BertForSequenceClassification(hf.BertConfig(**TEXT, num_labels=5)), texts()),
    "minilm": lambda: (hf.BertModel(hf.BertConfig(**{**TEXT, "num_attention_heads": 6, "vocab_size": 130})), texts()),
    "roberta": lambda: (hf.RobertaModel(hf.RobertaConfig(**TEXT)), texts()),
    "distilbert": lambda: (
        hf.DistilBertModel(hf.DistilBertConfig(vocab_size=100, dim=48, n_layers=2, n_heads=3, hidden_dim=80)),
        texts(),
    ),
    "mpnet": lambda: (hf.MPNetModel(hf.MPNetConfig(**TEXT)), texts()),
    "electra": lambda: (hf.ElectraModel(hf.ElectraConfig(**TEXT, embedding_size=24)), texts()),
    "albert": lambda: (hf.AlbertModel(hf.AlbertConfig(**TEXT, embedding_size=24)), texts()),
    "deberta-v2": lambda: (
        hf.DebertaV2Model(
            hf.DebertaV2Config(**TEXT, relative_attention=True, position_buckets=8, pos_att_type=["p2c", "c2p"])
        ),
        texts(),
    ),
    "modernbert": lambda: (
        hf.ModernBertModel(
            hf.ModernBertConfig(
                **TEXT,
                **{"global_attn_every_n_layers": 2, "local_attention": 8, "pad_token_id": 0, "bos_token_id": 1},
                **{"eos_token_id": 2, "cls_token_id": 1, "sep_token_id": 2},
            )
        ),
        texts(),
    ),
    "t5's encoder": lambda: (
        hf.T5EncoderModel(hf.T5Config(vocab_size=100, d_model=48, d_kv=16, d_ff=80, num_layers=2, num_heads=3)),
        texts(),
    ),
    "clip's text tower": lambda: (
        hf.CLIPTextModel(hf.CLIPTextConfig(**TEXT, max_position_embeddings=40, eos_token_id=99)),
        texts(),
    ),
    "clip's vision tower": lambda: (hf.CLIPVisionModel(hf.CLIPVisionConfig(**IMAGE)), images()),
    "siglip's vision tower": lambda: (hf.SiglipVisionModel(hf.SiglipVisionConfig(**IMAGE)), images()),
    "siglip's text tower": lambda: (
        hf.SiglipTextModel(hf.SiglipTextConfig(**TEXT, max_position_embeddings=40)),
        texts(),
    ),
    "vit": lambda: (hf.ViTModel(hf.ViTConfig(**IMAGE)), images()),
    "deit": lambda: (hf.DeiTModel(hf.DeiTConfig(**IMAGE)), images()),
    "beit": lambda: (hf.BeitModel(hf.BeitConfig(**IMAGE)), images()),
    "dinov2": lambda: (hf.Dinov2Model(hf.Dinov2Config(**IMAGE)), images()),
    "swin": lambda: (
        hf.SwinModel(
            hf.SwinConfig(image_size=32, patch_size=4, embed_dim=16, depths=[1, 1], num_heads=[2, 4], window_size=4)
        ),
        images(),
    ),
    "convnext": lambda: (
        hf.ConvNextModel(hf.ConvNextConfig(hidden_sizes=[8, 16, 24, 32], depths=[1, 1, 1, 1])),
        images(),
    ),
    "wav2vec2": lambda: (hf.Wav2Vec2Model(hf.Wav2Vec2Config(**SOUND)), waves()),
    "wav2vec2, norms first": lambda: (
        hf.Wav2Vec2Model(hf.Wav2Vec2Config(**SOUND, feat_extract_norm="layer", do_stable_layer_norm=True)),
        waves(),
    ),
    "gpt2": lambda: (
        hf.GPT2LMHeadModel(hf.GPT2Config(vocab_size=100, n_embd=48, n_layer=2, n_head=3, use_cache=False)),
        texts(),
    ),
    "llama": lambda: (
        hf.LlamaForCausalLM(
            hf.LlamaConfig(**{**TEXT, "num_attention_heads": 4}, num_key_value_heads=2, use_cache=False)
        ),
        texts(),
    ),
    "torch's transformer": lambda: (torch_encoder(), sequences()),
    "torch's transformer, norms first": lambda: (torch_encoder(norm_first=True, activation="gelu"), sequences()),
    "docs-encoder": lambda: (
        Encoder(EncoderConfig(vocab_size=100, num_classes=3, max_tokens=32, width=48, num_heads=3, mlp_width=80)),
        ids(),
    ),
    "docs-gpt": lambda: (docs_gpt(), ids()),
    "whisper's encoder": lambda: (whisper_encoder(), sounds()),
}

REFUSED: dict[str, tuple[str, Callable[[], Built]]] = {
    "deberta": (
        r"no sizes that depend on the numbers",
        lambda: (
            hf.DebertaModel(hf.DebertaConfig(**TEXT, relative_attention=True, pos_att_type=["p2c", "c2p"])),
            texts(),
        ),
    ),
}
