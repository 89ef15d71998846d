import pytest
import torch
import torch.nn.functional as F
from torch import nn

from whet.models.encoder import Attention, Encoder, EncoderConfig, EncoderLayer

SMALL = EncoderConfig(vocab_size=50, num_classes=3, max_tokens=16, width=32, num_layers=2, num_heads=4, mlp_width=64)


def test_shape_and_size():
    model = Encoder(EncoderConfig()).eval()
    assert model(torch.randint(2048, (2, 128))).shape == (2, 2)
    assert 3.5e6 < sum(p.numel() for p in model.parameters()) < 4e6


def test_attention_equals_scaled_dot_product_attention():
    torch.manual_seed(0)
    attention = Attention(32, 4)
    x = torch.randn(2, 7, 32)

    def heads(linear):
        return linear(x).unflatten(-1, (4, 8)).transpose(1, 2)

    mixed = F.scaled_dot_product_attention(heads(attention.query), heads(attention.key), heads(attention.value))
    torch.testing.assert_close(attention(x), attention.output(mixed.transpose(1, 2).flatten(2)))


def test_layer_equals_the_one_in_torch():
    torch.manual_seed(0)
    layer = EncoderLayer(SMALL).eval()
    other = nn.TransformerEncoderLayer(32, 4, 64, activation="gelu", batch_first=True).eval()
    attention = layer.attention
    parts = [attention.query, attention.key, attention.value]
    with torch.no_grad():
        other.self_attn.in_proj_weight.copy_(torch.cat([part.weight for part in parts]))
        other.self_attn.in_proj_bias.copy_(torch.cat([part.bias for part in parts]))
    for ours, theirs in [
        (attention.output, other.self_attn.out_proj),
        (layer.attention_norm, other.norm1),
        (layer.up, other.linear1),
        (layer.down, other.linear2),
        (layer.mlp_norm, other.norm2),
    ]:
        theirs.load_state_dict(ours.state_dict())
    x = torch.randn(2, 7, 32)
    torch.testing.assert_close(layer(x), other(x))


def test_width_must_be_a_multiple_of_heads():
    with pytest.raises(ValueError, match="not a multiple"):
        Attention(30, 4)


def test_export():
    model = Encoder(SMALL).eval()
    ids = torch.randint(50, (2, 16))
    program = torch.export.export(model, (ids,), strict=False)
    torch.testing.assert_close(program.module()(ids), model(ids))
