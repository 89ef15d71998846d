"""The models of native_peers.py, as targets FILE.py:FUNCTION: weights at random, from transformers' configs."""

from typing import Any

import torch
from torch import Tensor, nn

_VOCABULARY = 30522


class MeanOfTokens(nn.Module):
    """A text encoder with the mean over the tokens that are no padding, as sentence embeddings are made."""

    def __init__(self, encoder: nn.Module) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        hidden = self.encoder(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        seen = attention_mask.unsqueeze(-1).to(hidden.dtype)
        mean: Tensor = (hidden * seen).sum(1) / seen.sum(1)
        return mean


def bert_1x128() -> Any:
    return _bert(), _texts([128])


def bert_8x128() -> Any:
    return _bert(), _texts([128] * 8)


def bert_16_texts() -> Any:
    """Sixteen texts of 5 to 128 tokens, evenly spread and shuffled, padded to the longest."""
    lengths = torch.linspace(5, 128, 16).round().long()[torch.randperm(16, generator=torch.Generator().manual_seed(0))]
    return MeanOfTokens(_bert()).eval(), _texts(lengths.tolist())


def minilm_1x16() -> Any:
    """The shape of all-MiniLM-L6-v2."""
    return _bert(hidden_size=384, num_hidden_layers=6, intermediate_size=1536), _texts([16])


def vit_1() -> Any:
    import transformers

    torch.manual_seed(0)
    return transformers.ViTModel(transformers.ViTConfig()).eval(), {"pixel_values": torch.randn(1, 3, 224, 224)}


def resnet_1() -> Any:
    import transformers

    torch.manual_seed(0)
    model = transformers.ResNetForImageClassification(transformers.ResNetConfig()).eval()
    return model, {"pixel_values": torch.randn(1, 3, 224, 224)}


def _bert(**config: int) -> Any:
    import transformers

    torch.manual_seed(0)
    return transformers.BertModel(transformers.BertConfig(**config)).eval()


def _texts(lengths: list[int]) -> dict[str, Tensor]:
    ids = torch.randint(1000, _VOCABULARY, (len(lengths), max(lengths)), generator=torch.Generator().manual_seed(1))
    mask = torch.arange(max(lengths)) < torch.tensor(lengths).unsqueeze(1)
    return {"input_ids": ids * mask, "attention_mask": mask.long()}
