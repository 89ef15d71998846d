import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from whet.models.decoder.config import DecoderConfig
from whet.models.decoder.rope import inverse_frequencies, rotary_scale, rotate

SIZES = {
    "vocab_size": 8,
    "hidden_size": 8,
    "intermediate_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 1,
    "max_position_embeddings": 65_536,
}
LLAMA3 = {
    "low_freq_factor": st.floats(0.5, 2.0),
    "high_freq_factor": st.floats(2.5, 8.0),
    "original_max_position_embeddings": st.integers(16, 8192),
}
YARN = {
    "beta_fast": st.floats(8.0, 64.0),
    "beta_slow": st.floats(0.5, 4.0),
    "attention_factor": st.floats(0.5, 2.0),
    "mscale": st.floats(0.1, 2.0),
    "mscale_all_dim": st.floats(0.1, 2.0),
    "truncate": st.booleans(),
}
TYPES = {
    "default": st.just({}),
    "linear": st.fixed_dictionaries({"factor": st.floats(1.0, 32.0)}),
    "llama3": st.fixed_dictionaries({"factor": st.floats(1.0, 32.0), **LLAMA3}),
    "yarn": st.fixed_dictionaries(
        {"factor": st.floats(1.0, 32.0), "original_max_position_embeddings": st.integers(16, 8192)}, optional=YARN
    ),
}


@pytest.mark.parametrize("rope_type", TYPES)
@given(st.data())
@settings(max_examples=30)
def test_angles_equal_transformers(rope_type, data):
    transformers = pytest.importorskip("transformers")
    rope = data.draw(TYPES[rope_type])
    rope |= {"rope_type": rope_type, "rope_theta": data.draw(st.floats(100.0, 1e6))}
    sizes = SIZES | {"head_dim": data.draw(st.sampled_from([2, 8, 64, 128]))}
    embedding = transformers.models.llama.modeling_llama.LlamaRotaryEmbedding
    theirs = embedding(transformers.LlamaConfig(**sizes, rope_parameters=dict(rope)))
    config = DecoderConfig(**sizes, rope_parameters=rope)
    torch.testing.assert_close(inverse_frequencies(config), theirs.inv_freq, rtol=1e-5, atol=0)
    assert rotary_scale(config) == pytest.approx(theirs.attention_scaling)


def test_pairs_turn():
    x_NTH = torch.tensor([[[1.0, 0.0, 0.0, 2.0]]])  # the pairs (1, 0) and (0, 2)
    angles_TH = torch.tensor([[math.pi / 2, math.pi, math.pi / 2, math.pi]])
    turned = rotate(x_NTH, angles_TH.cos(), angles_TH.sin())
    torch.testing.assert_close(turned, torch.tensor([[[0.0, 0.0, 1.0, -2.0]]]), rtol=0, atol=1e-6)
