"""Small models of each shape that techniques look for, with inputs, as subjects ready to be tuned."""

import copy
import math
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from whet.core.workload import ExaminedWorkload, TrainingWorkload, Workload, examine
from whet.core.workload.training import Loss, OutputLoss
from whet.models.decoder.config import DecoderConfig
from whet.models.decoder.fresh import fresh_decoder
from whet.models.selective import Selective, SelectiveConfig


class ConvNet(nn.Module):
    """Convolutions with batch norms, one of them on a shortcut; 64 channels, as blocked kernels want them."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(16, 64, 3, padding=1, bias=False), nn.BatchNorm2d(64), nn.ReLU())
        self.conv1 = nn.Conv2d(64, 64, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.head = nn.Linear(64, 32)

    def forward(self, x_BCHW: Tensor) -> Tensor:
        x_BCHW = self.stem(x_BCHW)
        x_BCHW = F.relu(x_BCHW + self.bn1(self.conv1(x_BCHW)))
        return self.head(x_BCHW.mean(dim=(2, 3)))


class Encoder(nn.Module):
    """One transformer layer with attention written out by hand and separate projections."""

    def __init__(self, width: int = 64, num_heads: int = 4) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.embedding = nn.Embedding(50, width)
        self.query, self.key = nn.Linear(width, width), nn.Linear(width, width, bias=False)
        self.value, self.output = nn.Linear(width, width), nn.Linear(width, width)
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.dropout = nn.Dropout(0.1)
        self.head = nn.Linear(width, 32)

    def forward(self, ids_BT: Tensor) -> Tensor:
        x_BTD = self.embedding(ids_BT)
        B, T, D = x_BTD.shape

        def heads(y_BTD: Tensor) -> Tensor:
            return y_BTD.view(B, T, self.num_heads, -1).transpose(1, 2)

        query, key, value = heads(self.query(x_BTD)), heads(self.key(x_BTD)), heads(self.value(x_BTD))
        scores_BNTS = query @ key.transpose(-2, -1) / math.sqrt(D / self.num_heads)
        weights_BNTS = self.dropout(scores_BNTS.softmax(dim=-1))
        mixed_BTD = (weights_BNTS @ value).transpose(1, 2).reshape(B, T, D)
        x_BTD = self.norm(x_BTD + self.output(mixed_BTD))
        x_BTD = x_BTD + self.down(F.gelu(self.up(x_BTD)))
        return self.head(x_BTD.mean(dim=1))


class HuggingFaceLike(nn.Module):
    """The part of a transformers model's interface that techniques use: config, attention by name, dict outputs."""

    _supports_sdpa = True

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.config = SimpleNamespace(_attn_implementation="eager", hidden_size=width)
        self.embed = nn.Embedding(50, width)
        self.q_proj, self.k_proj, self.v_proj = (nn.Linear(width, width) for _ in range(3))
        self.o_proj = nn.Linear(width, width)
        self.register_buffer("inv_freq", 1.0 / 10_000 ** (torch.arange(0, 8) / 8), persistent=False)

    def set_attn_implementation(self, name: str) -> None:
        self.config._attn_implementation = name

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> dict[str, Tensor]:
        x = self.embed(input_ids)
        q, k, v = (p(x).unflatten(-1, (4, -1)).transpose(1, 2) for p in (self.q_proj, self.k_proj, self.v_proj))
        angles = torch.outer(torch.arange(x.shape[1], device=x.device).float(), self.inv_freq).repeat(1, 2).to(x.dtype)
        q, k = q * angles.cos(), k * angles.cos()
        keep = attention_mask[:, None, None, :].bool()
        if self.config._attn_implementation == "sdpa":
            mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=keep)
        else:
            scores = q @ k.mT * q.shape[-1] ** -0.5
            dropped = torch.zeros_like(keep, dtype=scores.dtype).masked_fill(~keep, torch.finfo(scores.dtype).min)
            scores = scores + dropped
            mixed = scores.softmax(dim=-1, dtype=torch.float32).to(q.dtype) @ v
        x = x + self.o_proj(mixed.transpose(1, 2).flatten(2))
        return {"last_hidden_state": x, "pooled": x.mean(dim=1)}


class Branching(nn.Module):
    """Asks for values of its input: which way to go, and how often around a loop. torch.export refuses it."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x_BD: Tensor) -> Tensor:
        y_BD = self.linear(x_BD)
        if x_BD.sum() <= 0:
            return y_BD.sin()
        while x_BD.mean() > 1:
            x_BD, y_BD = x_BD / 2, y_BD + 1
        return self.first(y_BD)

    def first(self, y_BD: Tensor) -> Tensor:
        return y_BD.sigmoid() * 3

    def in_float64(self, x_BD: Tensor) -> Tensor:
        """The same in float64, by its definition."""
        x_BD = x_BD.double()
        y_BD = x_BD @ self.linear.weight.double().T + self.linear.bias
        if x_BD.sum() <= 0:
            return y_BD.sin()
        num_rounds = max(0, math.ceil(math.log2(float(x_BD.mean()))))
        return 3 / (1 + torch.exp(-y_BD - num_rounds))


def branching() -> ExaminedWorkload:
    """Its input takes one way through the code."""
    torch.manual_seed(0)
    return examine(Workload(model=Branching().eval(), inputs=[torch.rand(4, 8)], name="branching"))


def conv_net() -> ExaminedWorkload:
    torch.manual_seed(0)
    model = ConvNet().eval()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.running_var, 0.5, 2.0)
            nn.init.normal_(module.running_mean)
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.normal_(module.bias)
    return examine(Workload(model=model, inputs=[torch.randn(2, 16, 12, 12)], name="conv_net"))


def encoder() -> ExaminedWorkload:
    torch.manual_seed(0)
    inputs = [torch.randint(0, 50, (2, 16)), torch.randint(0, 50, (2, 12))]
    return examine(Workload(model=Encoder().eval(), inputs=inputs, name="encoder"))


def hugging_face_like() -> ExaminedWorkload:
    torch.manual_seed(0)
    mask = torch.ones(2, 16, dtype=torch.int64)
    mask[1, 10:] = 0
    batch = {"input_ids": torch.randint(0, 50, (2, 16)), "attention_mask": mask}
    return examine(Workload(model=HuggingFaceLike().eval(), inputs=[batch], name="hugging_face_like"))


def state_space() -> ExaminedWorkload:
    torch.manual_seed(0)
    config = SelectiveConfig.model_validate(
        {"model_type": "mamba", "hidden_size": 32, "num_hidden_layers": 2, "vocab_size": 50, "state_size": 4}
    )
    model = Selective(config).eval()
    return examine(Workload(model=model, inputs=[torch.randint(0, 50, (2, 16))], name="state_space"))


EXAMINED: dict[str, Callable[[], ExaminedWorkload]] = {
    "conv_net": conv_net,
    "encoder": encoder,
    "hugging_face_like": hugging_face_like,
}


def trained_conv_net() -> ExaminedWorkload:
    """The network with the training that it came from."""
    workload = conv_net().workload
    generator = torch.Generator().manual_seed(1)
    batches = [
        (torch.randn(8, 16, 12, 12, generator=generator), torch.randint(0, 32, (8,), generator=generator))
        for _ in range(4)
    ]
    return examine(replace(workload, training=_training(workload.model, OutputLoss(F.cross_entropy), batches)))


def trained_decoder() -> ExaminedWorkload:
    """A decoder with the training that it came from."""
    sizes = {"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "tie_word_embeddings": True}
    config = DecoderConfig.model_validate({"vocab_size": 32, "hidden_size": 32, "intermediate_size": 64, **sizes})
    generator = torch.Generator().manual_seed(0)
    model = fresh_decoder(config, generator).eval()
    rows = [torch.randint(0, 32, (4, 12), generator=generator) for _ in range(4)]
    workload = Workload(model=model, inputs=[rows[0]], name="trained_decoder")
    return examine(replace(workload, training=_training(model, next_token_loss, rows)))


def next_token_loss(model: nn.Module, ids_BT: Tensor) -> Tensor:
    return F.cross_entropy(model(ids_BT)[:, :-1].flatten(0, 1), ids_BT[:, 1:].flatten())


def _training(model: nn.Module, loss: Loss, batches: list[Any]) -> TrainingWorkload:
    return TrainingWorkload(
        model=copy.deepcopy(model),
        loss=loss,
        optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=1e-3),
        batches=batches,
    )


TRAINED: dict[str, Callable[[], ExaminedWorkload]] = {
    "trained_conv_net": trained_conv_net,
    "trained_decoder": trained_decoder,
}
